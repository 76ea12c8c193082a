"""What cuda.py and the *_cuda.py modules launch gives the bits of the CPU kernels. The CUDA kernels are compiled for
the CPU here."""

from ctypes import c_int, c_longlong

import custom_fp
import pytest
import torch
from kernels_on_host import OFFSET, ROUNDINGS, SEED, address, addresses, as_drawn, hostile, same_bits


@pytest.mark.parametrize("size", [1, 4, 16, 64])
@pytest.mark.parametrize("shape", [(3, 130, 1), (2, 67, 9)], ids=str)
def test_hadamard(launched, size, shape):
    cuda, _, ran = launched
    for x in (hostile(*shape), torch.randn(shape)):
        for seed, inverse in ((None, False), (SEED, False), (-5, True)):
            out = torch.empty_like(x)
            cuda.hadamard(x, size, seed, inverse, out)
            assert same_bits(out, custom_fp.hadamard(x, size, seed=seed, inverse=inverse, axis=1))
    assert set(ran) == {"hadamard"}


@pytest.mark.parametrize(
    "name",
    [
        "fp32-exact",
        "fp16-pairwise",
        "bf16-fused-toward_zero",
        "fp16-stochastic_5-kahan",
        "fp16-stochastic_even_5",
        "e4m3-block_4-pairwise-stochastic",
        "h100_fp16",
        "deepseek_v3",
        "mi250_fp16",
        "mi300_fp8",
        "b200_mxfp8",
        "b200_mxfp4",
        "b200_nvfp4",
        "posit16-exact",
        "posit8-product_e4m3fnuz-pairwise-stochastic",
        "ue5m6-fused-toward_zero-chunk_5_takum8",
    ],
)
def test_accumulators(launched, name):
    from custom_fp.accumulators import cuda as dots

    how = custom_fp.Accumulator.parse(name)
    g = torch.Generator().manual_seed(4)
    for a_shape, b_shape in (((2, 5, 37), (2, 37, 9)), ((1, 5, 37), (3, 37, 9)), ((2, 4, 0), (1, 0, 3))):
        a, b = torch.randn(a_shape, generator=g).bfloat16().float(), torch.randn(b_shape, generator=g)
        if how.scales:
            a, b = (
                custom_fp.quantize(x, f, axis=i) for x, f, i in zip((a, b), how.operands, (2, 1), strict=True)
            )
        out = torch.empty(max(a_shape[0], b_shape[0]), a_shape[1], b_shape[2])
        dots.matmul(a, b, how, custom_fp.Rule(how.rounding, seed=SEED), out)
        assert same_bits(out, custom_fp.matmul(a, b, accumulator=how, seed=SEED))
    assert set(launched[-1]) == {f"dot_{how.rule.rounding}"}


DENSE = custom_fp.Codebook("dense", tuple(0.5 + i * 2.0**-20 for i in range(256)), block=7)


@pytest.mark.parametrize("book", ["nf4_b64", "dynamic_tree", "dynamic_map_b16", DENSE], ids=str)
def test_codebooks(launched, book):
    _, scaled_cuda, ran = launched
    book = custom_fp.parse(book)
    for x in (hostile(3, 41, 150), torch.randn(2, 90, 101), torch.empty(0, 4)):
        for axis in (None, 0, 1, x.dim() - 1):
            out = torch.empty_like(x)
            scaled_cuda.backend.quantize(x, book, custom_fp.Rule(), out, axis)
            assert same_bits(out, custom_fp.quantize(x, book, axis=axis)), axis
            expected = custom_fp.encode(x, book, axis=axis)
            codes = [torch.empty_like(part) for part in expected]
            scaled_cuda.backend.encode(x, book, *codes, axis=axis)
            assert all(map(same_bits, codes, expected)), axis
    rows = torch.randn(5, 70)
    out = torch.empty_like(rows)
    scaled_cuda.backend.quantize_rows(rows, book, out)
    assert same_bits(out, custom_fp.quantize_rows(rows, book))
    assert set(ran) == {"codebook_tiles"} | ({"codebook_whole"} if book.block == "tensor" else set())


@pytest.mark.parametrize("name", ["int8_affine", "int4_affine_b32", "int8_affine_channel", "int3_affine_4x8"])
def test_affine_integers(launched, name):
    _, scaled_cuda, ran = launched
    fmt = custom_fp.parse(name)
    for x in (hostile(3, 41, 150), torch.randn(2, 90, 101) + 1, torch.empty(0, 4)):
        for axis in (None, 0, 1, x.dim() - 1):
            out = torch.empty_like(x)
            scaled_cuda.backend.quantize(x, fmt, custom_fp.Rule(), out, axis)
            assert same_bits(out, custom_fp.quantize(x, fmt, axis=axis)), axis
            expected = custom_fp.encode(x, fmt, axis=axis)
            codes = [torch.empty_like(part) for part in expected]
            scaled_cuda.backend.encode(x, fmt, *codes, axis=axis)
            assert all(map(same_bits, codes, expected)), axis
    assert ("affine_whole" in ran) == (name == "int8_affine")


@pytest.mark.parametrize(
    "name",
    [
        "mxfp8_e4m3",
        "mxfp4_rceil",
        "nvfp4",
        "nvfp4_2d",
        "nvfp4_4over6",
        "nvfp4_5x3_4over6",
        "nvint4",
        "fp8_tensor",
        "int8_channel",
        "mxfp4_amax",
    ],
)
def test_scaled_formats(launched, name):
    from custom_fp.scaled.cuda import backend

    _, _, ran = launched
    fmt = custom_fp.parse(name)
    for x in (hostile(3, 41, 150), torch.randn(40, 51), torch.empty(0, 4)):
        for axis in (None, 0, 1, x.dim() - 1):
            for rounding in (*ROUNDINGS, "toward_negative"):
                rule = {"rounding": rounding, "seed": SEED, "offset": OFFSET}
                out = torch.empty_like(x)
                backend.quantize(x, fmt, custom_fp.Rule(**rule), out, axis)
                assert same_bits(out, custom_fp.quantize(x, fmt, axis=axis, **rule)), (axis, rounding)
                data = torch.empty(custom_fp.packed_size(x.shape, fmt, axis=axis), dtype=torch.uint8)
                backend.pack(x, fmt, 0, custom_fp.Rule(**rule), data, axis)
                assert same_bits(data, custom_fp.pack(x, fmt, axis=axis, **rule)), (axis, rounding)
            expected = custom_fp.encode(x, fmt, axis=axis)
            codes = [torch.empty_like(part) for part in expected]
            backend.encode(x, fmt, *codes, axis=axis)
            assert all(
                torch.equal(*(p.view(-1).view(torch.uint8) for p in pair))
                for pair in zip(codes, expected, strict=True)
            )
            backend.decode(*codes, fmt, out, axis=axis)
            assert same_bits(out, custom_fp.quantize(x, fmt, axis=axis)), axis
    assert "scaled_decode" in ran and ("scaled_whole_stochastic" in ran) == (fmt.block == "tensor")


@pytest.mark.parametrize("name", ["p3109_k8p3se", "p3109_k6p2uf", "posit12", "takum9", "hif8"])
def test_tables(launched, name):
    fmt, (cuda, _, ran) = custom_fp.parse(name), launched
    terms = [*hostile(3, 67), torch.tensor([1e-38, -3e38, 0.0, -0.0]).repeat(17)[:67]]
    for word in (
        "nearest_even",
        "to_odd",
        "toward_negative",
        "stochastic",
        "stochastic_5",
        "stochastic_odd_3",
    ):
        rule = custom_fp.Rule(word, seed=SEED, offset=OFFSET)
        words = {"rounding": word, "seed": SEED, "offset": OFFSET}
        for x in (*terms, terms[0].double() / 3):
            out = torch.empty_like(x, dtype=torch.float32)
            cuda.quantize(x, fmt, rule, out)
            assert same_bits(out, custom_fp.quantize(x, fmt, **words)), word
        for kahan in (False, True):
            out = torch.empty(67)
            cuda.accumulate(terms, fmt, kahan, rule, out)
            assert same_bits(out, custom_fp.accumulate(terms, fmt, kahan=kahan, **words)), word
    for x in terms:
        expected = custom_fp.encode(x, fmt)
        codes, out = torch.empty_like(expected), torch.empty(67)
        cuda.encode(x, fmt, codes)
        cuda.decode(codes, fmt, out)
        assert torch.equal(codes, expected) and same_bits(out, custom_fp.decode(codes, fmt))
    a, b = torch.randn(2, 3, 7), torch.randn(1, 7, 5)
    out = torch.empty(2, 3, 5)
    cuda.matmul(a, b, fmt, True, out)
    assert same_bits(out, custom_fp.matmul(a, b, accumulator=fmt, kahan=True))
    assert len(set(ran)) == 9


@pytest.mark.parametrize("name", ["p3109_k7p3se", "posit16"])
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_packed_tables(kernels, name, rounding):
    """A thread block, whose threads pass bytes through shared memory: what CUDA launches for one."""
    from custom_fp.rounding import Overflow, Rounding
    from custom_fp.tabulated.step_arrays import table_of

    fmt, n, mode = custom_fp.parse(name), 2003, "random" if rounding == "stochastic" else "plain"
    words = {"rounding": rounding, "seed": SEED, "offset": OFFSET}
    table, nearest = (
        address(table_of(fmt, word, Overflow.INFINITY, "cpu"))
        for word in (Rounding(rounding), Rounding.NEAREST_EVEN)
    )
    x = torch.randn(n, generator=torch.Generator().manual_seed(2)) ** 5
    size, drawn = custom_fp.packed_size(n, fmt), as_drawn(rounding)

    def run(kernel, *args):
        for thread in 3 * [*range(256)]:  # random words, then codes, then bytes are all there
            kernels.be_thread(thread, 256)
            getattr(kernels, kernel)(*args)

    for shift in (0, 7):
        data, back = torch.zeros(size, dtype=torch.uint8), torch.empty(n)
        args = address(x), address(data), c_longlong(n), table, nearest, c_int(shift)
        run(f"table_pack_{mode}", *args, *drawn)
        assert torch.equal(data, custom_fp.pack(x, fmt, shift=shift, **words))
        run("table_unpack", address(data), address(back), c_longlong(n), nearest, c_int(-shift))
        assert same_bits(back, custom_fp.unpack(data, fmt, n, shift=-shift))
    # 8 codes are one access, of one thread: others' bytes, and random words, are not there when it adds
    if fmt.code_bits == 16 and mode == "plain":
        kernels.be_thread(0, 256)
        total = torch.zeros(16, dtype=torch.uint8)
        out = address(total), c_longlong(8), table, nearest, c_int(1)
        getattr(kernels, f"table_accumulate_packed_{mode}")(addresses([data] * 3), c_int(3), *out, *drawn)
        expected = custom_fp.accumulate_packed([data[:16]] * 3, fmt, 8, kahan=True, **words)
        assert torch.equal(total, expected)
