"""User-defined block formats: blocks of any size, elements of at most 8 bits, and errors."""

import math

import custom_fp
import pytest
import torch
from custom_fp import BlockFormat, Format, ScaledFormat, _native
from scaled_in_torch import in_torch

ELEMENTS = ["e2m1fn", "e4m3fn", "e2m2", "e3m0", None]


def values() -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20_011, generator=g) * torch.exp2(torch.randint(-140, 100, (20_011,), generator=g))
    x[1000:9000] = torch.randn(8000, generator=g)
    x[5000], x[7001], x[7002:7100] = math.nan, math.inf, 0.0
    return x


def everything(x: torch.Tensor, fmt: ScaledFormat) -> list[torch.Tensor]:
    codes, scales = custom_fp.encode(x, fmt)
    data = custom_fp.pack(x, fmt)
    rows = custom_fp.quantize_rows(x[: x.numel() // 3 * 3].view(3, -1), fmt)
    found = [custom_fp.quantize(x, fmt), custom_fp.decode((codes, scales), fmt), rows]
    found.append(custom_fp.unpack(data, fmt, x.shape))
    return [codes, scales, data, *(f.view(torch.int32) for f in found)]


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("block", [1, 3, 7, 8, 33, 100, 1001, 5003, 10**12])
def test_any_block_equals_torch_on_every_instruction_set_and_two_threads(block, element, monkeypatch):
    fmt, x = BlockFormat("mine", element, block), values()
    sizes = (len(x), 7 * 33, 1, 0)
    with monkeypatch.context() as m:
        in_torch(m)
        expected = [everything(x[:n], fmt) for n in sizes]
    used, threads = _native.isa(), torch.get_num_threads()
    try:
        for isa in _native.isas():
            _native.use_isa(isa)
            torch.set_num_threads(2 if isa == used else 1)
            for n, by_torch in zip(sizes, expected, strict=True):
                for ours, theirs in zip(everything(x[:n], fmt), by_torch, strict=True):
                    assert torch.equal(ours, theirs), (isa, n)
    finally:
        _native.use_isa(used)
        torch.set_num_threads(threads)


TABLES = ["mxposit8", "nvhif8_2d", "posit6_column", "mxtakum8", "nvlns4_3_4x7", "mxp3109_k8p3se"]
BOOKS = ["mxnf4", "nf4_2d", "nvdynamic_tree_2d", "dynamic_map_unsigned_8x16"]


@pytest.mark.parametrize("name", [*TABLES, *BOOKS, "int5_affine_8x16"])
def test_tables_under_scales_equal_the_reference_in_every_rounding(name, monkeypatch):
    """Values, bytes, and the values of all bytes, of which not all are codes."""
    fmt, x = custom_fp.parse(name), values()[:7740].view(4, 45, 43)
    x[1] = torch.randn(45, 43, generator=torch.Generator().manual_seed(1))
    some_bytes = torch.arange(256, dtype=torch.uint8).repeat(31)[:7740].view(x.shape)
    roundings = ["nearest_even", "to_odd", "stochastic", "stochastic_even_9"][
        : 4 if fmt.takes_rounding else 1
    ]

    def everything() -> list[torch.Tensor]:
        found = []
        for axis in (None, 0, 1, 2):
            codes, *scales = custom_fp.encode(x, fmt, axis=axis)
            found += [codes, *scales, custom_fp.decode((some_bytes, *scales), fmt, axis=axis)]
            for rounding in roundings:
                rule = {"rounding": rounding, "seed": 3, "axis": axis, "offset": 1001}
                found += [custom_fp.quantize(x, fmt, **rule), custom_fp.pack(x, fmt, **rule)]
        return [part.view(-1).view(torch.uint8) for part in found]

    compiled = everything()
    in_torch(monkeypatch)
    assert all(map(torch.equal, compiled, everything()))


def test_codes_whose_values_are_no_float32_are_not_written_under_scales():
    """A third of takum8's codes have values past the ends of float32."""
    element = custom_fp.parse("takum8")
    held = {*element.positive.codes, *element.negative.codes}
    x = torch.logspace(-38, 38, 4096) * torch.tensor([1.0, -1.0]).repeat(2048)
    assert element.unheld and {*custom_fp.encode(x, "takum8_tensor")[0].tolist()} <= held


def test_threads_begin_at_whole_bytes():
    """Large enough for several threads: 400,000 values in blocks of 3, 4 bits each."""
    fmt, x = BlockFormat("mine", "e2m1fn", 3), torch.randn(400_001)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = everything(x, fmt)
        torch.set_num_threads(2)
        for ours, theirs in zip(everything(x, fmt), expected, strict=True):
            assert torch.equal(ours, theirs)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("block", [0, -8, True, 32.0, None, "32"], ids=repr)
def test_a_block_is_a_whole_number_from_1(block):
    with pytest.raises(ValueError, match="allowed: a whole number of at least 1"):
        BlockFormat("mine", Format.parse("e2m1fn"), block)


def test_elements_have_at_most_8_bits():
    with pytest.raises(
        ValueError, match="elements of fp16 have 16 bits; allowed: elements of at most 8 bits"
    ):
        BlockFormat("mine", Format.parse("fp16"))
    with pytest.raises(ValueError, match="unknown element 'nonsense'; allowed: int2"):
        BlockFormat("mine", "nonsense")
    assert BlockFormat("mine", "e4m3fn").element == Format.parse("e4m3fn")
