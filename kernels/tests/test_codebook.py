"""Codebook formats: tables, the nearest entry compared with rational arithmetic, codes, bytes, and special values."""

import math
import subprocess
import sys
from bisect import bisect
from fractions import Fraction
from itertools import pairwise

import custom_fp
import pytest
import torch
from custom_fp import Codebook, _native
from custom_fp.formats.names import parse
from custom_fp.scaled import arithmetic
from scaled_in_torch import in_torch

TABLES = ["dynamic_tree", "linear", "static_tree", "mantissa"]
NF4 = Codebook("nf4", (-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
                       0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0))  # fmt: skip
TERNARY = Codebook("ternary", (0.0, 1.0, -1.0), block=16)
BINARY = Codebook("binary", (-1.0, 1.0))
ALL = [*map(parse, TABLES), parse("dynamic_tree_b64"), NF4, TERNARY, BINARY]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def nearest(y: float, ascending: list[float]) -> float:
    """By definition: least distance, then least magnitude, then the positive one; exact."""
    i = bisect(ascending, y)
    neighbours = ascending[max(0, i - 2) : i + 2]
    return min(neighbours, key=lambda v: (abs(Fraction(v) - Fraction(y)), abs(v), -v))


def test_known_answers_of_the_dynamic_tree():
    """Code by code, worked out by hand: sign, leading zeros, place in the decade."""
    known = {
        0b0_0000000: 0.0,
        0b0_0000001: 1.0,
        0b1_0000001: -1.0,
        0b0_0000010: 0.275e-5,  # 5 leading zeros: the middle of [.1, .45]
        0b0_0000011: 0.725e-5,  # the middle of [.45, 1]
        0b0_0000100: 0.1875e-4,  # 4: two parts of [.1, .45]
        0b0_0000111: 0.8625e-4,
        0b0_0100000: (0.1 + 0.35 / 32) * 1e-1,  # 1: 16 parts of [.1, .45]
        0b0_0111111: (1.0 - 0.55 / 32) * 1e-1,
        0b0_1000000: 0.1 + 0.35 / 64,
        0b0_1011111: 0.45 - 0.35 / 64,
        0b0_1100000: 0.45 + 0.55 / 64,
        0b0_1111111: 0.99140625,
        0b1_1111111: -0.99140625,
    }
    values = parse("dynamic_tree").element.values
    for code, value in known.items():
        assert values[code] == torch.tensor(value, dtype=torch.float32).item(), f"{code:08b}"
    decades = [sum(10.0**-z * 0.1 < value < 10.0**-z for value in values) for z in range(6)]
    assert decades == [64, 32, 16, 8, 4, 2]
    assert len(set(values)) == 255  # one code more says zero


def test_the_author_s_threshold_to_the_maximum():
    """clusterNet's kernel: above .995703 of the largest magnitude the code is the maximum's."""
    x = torch.tensor([1.0, 0.9957031, 0.9957033])
    assert custom_fp.quantize(x, "dynamic_tree").tolist() == pytest.approx([1.0, 0.99140625, 1.0], abs=1e-7)


def test_the_other_tables():
    linear, static, mantissa = (parse(name).element.values for name in TABLES[1:])
    assert [round(127 * v) for v in linear] == [*range(128), 0, *(-k for k in range(1, 128))]
    assert static[0] == pytest.approx(0.1 + 0.9 / 32) and static[15] == pytest.approx(1 - 0.9 / 32)
    assert static[16] == pytest.approx(0.01 + 0.09 / 32) and {0.0, 1.0, -1.0} <= set(static)
    assert mantissa[3] == pytest.approx(0.3) and mantissa[2 * 16 + 12] == pytest.approx(0.012)
    assert max(mantissa) == 1.0 and len(set(mantissa)) == 217


@pytest.mark.parametrize("book", ALL, ids=str)
def test_nearest_entry_with_every_middle_and_its_neighbours(book):
    distinct = sorted(set(book.element.values))
    middles = [(a + b) / 2 for a, b in pairwise(distinct)]
    points = torch.tensor([*distinct, *middles], dtype=torch.float64).to(torch.float32)
    infinity = torch.full_like(points, math.inf)
    y = torch.cat([points, points.nextafter(infinity), points.nextafter(-infinity)]).clamp(-1, 1)
    y = torch.cat([y, torch.linspace(-1, 1, 501), torch.tensor([0.0, -0.0, 2.0**-149])])
    book = Codebook(book.name, book.element.values)  # one scale for all
    y = torch.cat([torch.ones(1), y])  # which is 1
    ours = custom_fp.quantize(y, book).tolist()
    for value, result in zip(y.tolist(), ours, strict=True):
        assert result == nearest(value, distinct), value


@pytest.mark.parametrize("book", ALL, ids=str)
@pytest.mark.parametrize("shape", [(1000,), (7, 9), (1,), (), (0,), (3, 0)], ids=str)
def test_codes_and_bytes_say_what_quantize_gives(book, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3e-4
    rounded = custom_fp.quantize(x, book)
    codes, scales = custom_fp.encode(x, book)
    assert codes.dtype == torch.uint8 and codes.shape == x.shape == rounded.shape
    assert scales.shape == (book.scales(x.numel()),)
    assert same(custom_fp.decode((codes, scales), book), rounded)
    data = custom_fp.pack(x, book)
    assert data.numel() == custom_fp.packed_size(x.numel(), book) == book.packed_size(x.numel())
    assert same(custom_fp.unpack(data, book, x.shape), rounded)


@pytest.mark.parametrize("n", [2, 3, 5, 9, 17, 33, 65, 129, 256])
def test_every_number_of_bits_is_packed_densely(n):
    book = Codebook("steps", tuple(i / n for i in range(n)))
    assert book.code_bits == math.ceil(math.log2(n))
    x = torch.rand(83, generator=torch.Generator().manual_seed(n))
    codes, _ = custom_fp.encode(x, book)
    data = custom_fp.pack(x, book)[4:]
    number = int.from_bytes(bytes(data.tolist()), "little")
    k = book.code_bits
    assert [number >> (j * k) & (2**k - 1) for j in range(83)] == codes.tolist()
    assert data.numel() == 11 * k
    assert same(custom_fp.unpack(custom_fp.pack(x, book), book, (83,)), custom_fp.quantize(x, book))


@pytest.mark.parametrize("name", ["linear_b64", "nf4_b64", "linear"])
@pytest.mark.parametrize("n", [64, 1000, 4096])
def test_doubles_are_packed_like_the_float32_that_they_round_to(name, n):
    """The float32 copy has to live until it is packed: malloc writes to the first bytes of what is freed."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    assert torch.equal(custom_fp.pack(x.double(), name), custom_fp.pack(x, name))


@pytest.mark.parametrize("name", ["nf4_16x16", "nf4_column"])
@pytest.mark.parametrize("compiled", [True, False])
def test_rows_are_not_cut_into_tiles_or_columns(name, compiled, monkeypatch):
    if not compiled:
        in_torch(monkeypatch)
    with pytest.raises(ValueError, match="last two dimensions"):
        custom_fp.quantize_rows(torch.randn(3, 64), name)


def test_blocks_have_scales_of_their_own():
    x = torch.randn(150, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 150)
    blocks = [custom_fp.quantize(part, "dynamic_tree") for part in x.split(64)]
    assert same(custom_fp.quantize(x, "dynamic_tree_b64"), torch.cat(blocks))
    assert custom_fp.encode(x, "dynamic_tree_b64")[1].tolist() == [part.abs().max() for part in x.split(64)]


def test_the_largest_magnitude_comes_back_exactly_and_twice_is_once():
    x = torch.randn(999, generator=torch.Generator().manual_seed(2)) * 1e-12
    for name in TABLES:
        rounded = custom_fp.quantize(x, name)
        assert rounded.abs().max() == x.abs().max()
        assert same(custom_fp.quantize(rounded, name), rounded)
        assert same(custom_fp.quantize(-x, name), -rounded + 0.0)


def test_corners():
    zeros = custom_fp.quantize(torch.tensor([0.0, -0.0, 0.0]), "dynamic_tree")
    assert same(zeros, torch.zeros(3))  # -0 becomes +0
    tiny = torch.tensor([1e-45, -1e-45, 0.0])
    assert same(custom_fp.quantize(tiny, "linear"), tiny)
    huge = torch.tensor([3.4028235e38, -1.7e38])
    assert custom_fp.quantize(huge, "linear")[0] == huge[0]
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.tensor([1.0, 2.0, 3.0, bad, 5.0])
        assert custom_fp.quantize(x, "dynamic_tree").isnan().all()
        in_blocks = custom_fp.quantize(x, Codebook("pairs", (0.0, 0.5, 1.0), block=2))
        assert in_blocks.isnan().tolist() == [False, False, True, True, False]
        assert custom_fp.unpack(custom_fp.pack(x, "linear"), "linear", (5,)).isnan().all()


def test_inputs_of_other_types_and_strides_are_rounded_and_never_written():
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(3))
    before = x.clone()
    assert same(custom_fp.quantize(x.t(), "linear"), custom_fp.quantize(x.t().contiguous(), "linear"))
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        assert same(
            custom_fp.quantize(x.to(dtype), "linear"), custom_fp.quantize(x.to(dtype).float(), "linear")
        )
    assert same(x, before)
    out = torch.empty(6, 8)
    assert custom_fp.quantize(x.t(), "linear", out=out) is out and same(
        out, custom_fp.quantize(x.t(), "linear")
    )


def test_gradients_pass_straight_through_also_compiled_and_vmapped():
    x = torch.randn(4, 5, requires_grad=True)
    custom_fp.quantize(x, "dynamic_tree").mul(torch.arange(20.0).view(4, 5)).sum().backward()
    assert torch.equal(x.grad, torch.arange(20.0).view(4, 5))
    rows = torch.vmap(lambda row: custom_fp.quantize(row, NF4))(x.detach())
    assert same(rows, torch.stack([custom_fp.quantize(row, NF4) for row in x.detach()]))
    slopes = torch.func.grad(lambda t: (custom_fp.quantize(t, "linear") * 3).sum())(x.detach())
    assert torch.equal(slopes, torch.full((4, 5), 3.0))
    compiled = torch.compile(
        lambda t: custom_fp.quantize(t, "dynamic_tree_b64") + 1, fullgraph=True, backend="eager"
    )
    assert same(compiled(x.detach()), custom_fp.quantize(x.detach(), "dynamic_tree_b64") + 1)


def test_layers_round_to_formats_with_scales():
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(5), requires_grad=True)
    grad = torch.randn(6, 40, generator=torch.Generator().manual_seed(6))
    custom_fp.Quantizer(forward=NF4, backward="mxfp8_e5m2")(x).backward(grad)
    assert same(x.grad, custom_fp.quantize(grad, "mxfp8_e5m2"))
    assert same(custom_fp.Quantizer(forward=NF4)(x.detach()), custom_fp.quantize(x.detach(), NF4))
    layer = custom_fp.QuantLinear(40, 3, accumulator="fp32", operands="mxfp4")
    x_rows, w_rows = (custom_fp.quantize(of.detach(), "mxfp4", axis=-1) for of in (x, layer.weight))
    expected = x_rows @ w_rows.t()
    torch.testing.assert_close(layer(x).detach(), expected + layer.bias.detach())
    with pytest.raises(ValueError, match="matmul is not defined for a ScaledFormat"):
        custom_fp.QuantLinear(4, 3, accumulator="linear")


def test_names():
    assert parse("dynamic_tree_b64").block == 64 and str(parse("dynamic_tree_b64")) == "dynamic_tree_b64"
    assert parse("dynamic_tree").bits == 8 and parse("dynamic_tree_b64").bits == 8.5
    assert parse("linear").has_scales and not parse("e4m3").has_scales and parse("e4m3").name == "e4m3"
    assert parse(NF4) is NF4 and NF4.code_bits == 4


def test_names_cost_no_torch():
    code = "import sys, custom_fp; custom_fp.parse('mxfp4'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Codebook("one", (1.0,)), "has 1 values; allowed: 2 to 256 values"),
        (lambda: Codebook("many", tuple(i / 300 for i in range(300))), "has 300 values"),
        (lambda: Codebook("wide", (0.0, 1.5)), r"has the value 1.5; values must be in \[-1, 1\]"),
        (lambda: Codebook("same", (0.5, 0.5)), "has only the value 0.5"),
        (lambda: Codebook("nan", (0.0, math.nan)), "finite numbers"),
        (lambda: Codebook("block", (0.0, 1.0), block=0), "block is 0"),
        (lambda: parse("dynamic_twig"), "unknown format 'dynamic_twig'; allowed: .*dynamic_tree"),
        (lambda: parse("nowhere.at_all.nf4"), "unknown format 'nowhere.at_all.nf4'"),
        (lambda: parse("math.pi"), "math.pi is a float, not a format"),
        (lambda: custom_fp.quantize(torch.ones(2), "linear", rounding="stochastic"), "rounds to nearest only"),
        (lambda: custom_fp.pack(torch.ones(2), "linear", shift=1), "has its own scales"),
        (lambda: custom_fp.unpack(torch.zeros(3, dtype=torch.uint8), "linear", (8,)), "requires 12 bytes for 8 values"),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "book",
    [
        *ALL,
        *map(parse, ["nf4_b64", "fp4", "dynamic_map_b256", "dynamic_map_unsigned"]),
        Codebook("dense", tuple(0.5 + i * 2.0**-20 for i in range(256))),
        Codebook("seventeen", tuple(i / 16 for i in range(17)), block=5),
    ],
    ids=str,
)
def test_the_compiled_search_equals_torch(book, monkeypatch):
    """On every instruction set. The second half of the input lies on thresholds and beside them."""
    near = torch.tensor(book.element.thresholds).repeat(3)[:700]
    near = torch.cat([near, near.nextafter(torch.ones(())), torch.ones(1), -torch.ones(1)])
    odd = torch.tensor([0.0, -0.0, 1e-45, 3e38, math.nan, 1.0, -math.inf, 2.0])
    x = torch.cat([torch.randn(1000, generator=torch.Generator().manual_seed(4)) * 1e-3, near, odd, odd[:4]])
    rows = torch.stack([x[:1000], x[-1000:]])

    def everything():
        codes, scales = custom_fp.encode(x, book)
        return (
            codes,
            scales,
            custom_fp.decode((codes, scales), book),
            custom_fp.quantize_rows(rows, book),
            custom_fp.pack(x, book),
        )

    found = []
    for isa in _native.isas():
        _native.use_isa(isa)
        found.append(everything())
    in_torch(monkeypatch)
    expected = everything()
    for compiled in found:
        for ours, theirs in zip(compiled, expected, strict=True):
            assert ours.shape == theirs.shape
            assert (
                torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))
                if ours.is_floating_point()
                else torch.equal(ours, theirs)
            )


@pytest.mark.parametrize("block", [None, 64, 100_003, 300_000])
@pytest.mark.parametrize("table", ["dynamic_tree", "nf4"])
def test_several_threads_give_the_bits_of_one(block, table):
    """Blocks spread over the threads, and blocks so long that one is spread."""
    book = custom_fp.Codebook("mine", custom_fp.parse(table).element.values, block)
    x = torch.randn(700_001, generator=torch.Generator().manual_seed(0))
    x[650_000] = math.nan  # in a block, or in the whole tensor
    threads = torch.get_num_threads()
    try:
        for source in (x, x[:600_000]):
            expected = torch.empty_like(source)
            arithmetic.backend.quantize_rows(source.view(1, -1), book, expected.view(1, -1))
            found = []
            for number in (1, 2, 3):
                torch.set_num_threads(number)
                codes, scales = custom_fp.encode(source, book)
                data = custom_fp.pack(source, book)
                values = custom_fp.quantize(source, book), custom_fp.decode((codes, scales), book)
                for value in (*values, custom_fp.unpack(data, book, source.shape)):
                    assert torch.equal(value.view(torch.int32), expected.view(torch.int32)), number
                found.append((codes, scales.view(torch.int32), data))
            for others in found[1:]:
                assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))
    finally:
        torch.set_num_threads(threads)
