"""All backends return the bits of the reference: every operator, kind of format, rounding and overflow.

The CPU kernels run with every instruction set, with subnormals flushed by the caller, and on several threads. The CUDA
kernels run on the CPU, thread by thread, through their own launches. `pytest -m gpu` compares a GPU with the CPU.
"""

import math
from functools import cache

import custom_fp
import pytest
import torch
from backend_choice import in_cuda, in_reference
from custom_fp import BlockFormat, Codebook, _native
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Overflow, Rounding
from tensors import bit_patterns, normal, same_bits, specials, spread
from torch.utils._python_dispatch import TorchDispatchMode

FLOATS = [
    *("e5m2", "e4m3", "e4m3fn", "e3m0", "e2m1fn", "e3m2fn", "e1m2", "e1m0", "e2m0fn", "e8m0fn", "e8m3"),
    *("e5m11", "bf16", "fp16", "e5m13", "e8m11", "e6m22", "e8m22", "e5m23", "fp32", "e3m11fn"),
    *("e4m3b-100", "e2m2b127", "e4m3fnuz", "e5m10fnuz", "e3m0fnuz", "e4m3fo", "ue4m3", "ue5m6", "ue8m23"),
]
TABLES = [  # with cells of equal width and by octave; with and without infinity, NaN, a sign; values past float32
    *("p3109_k8p3se", "p3109_k6p2uf", "p3109_k8p1ue", "posit8", "posit13", "takum9", "lns4_3", "hif8"),
    *("posit2", "p3109_k2p1se", "takum16"),
]
ROUNDINGS = [
    *Rounding,
    *("stochastic_1", "stochastic_15", "stochastic_16", "stochastic_17", "stochastic_31"),
    *("stochastic_fast_4", "stochastic_fast_29", "stochastic_even_15", "stochastic_odd_17"),
]
SCALED = [
    *("mxfp8_e5m2", "mxfp6_e2m3", "mxfp4", "mxint8", "mxfp4_ceil", "mxfp4_nearest", "mxfp8_e4m3_even"),
    *("mxfp4_rceil", "mxint4", "mxfp4_amax", "mxfp4_b7", "nvfp4", "nvfp4_2d", "nvint4", "nvfp4_4over6"),
    *("nvfp4_2d_4over6", "nvfp4_5x3_4over6", "nvfp4_3x24_4over6", "nvfp4_ue5m3", "nvfp4_1level"),
    *("nvfp4_e8m0", "nvfp4_margin1", "nvfp4_row", "fp8_tensor", "fp8_column", "fp8_block128"),
    *("fp8_e5m2_tensor", "int8_channel", "int4_b32"),
]
SIZES = {1: "e2m1fn", 3: None, 8: "e2m2", 33: "e2m1fn", 1001: None, 10**12: "e2m2"}
OWN = [
    BlockFormat("a", "e4m3b-100", (3, 5)),
    BlockFormat("b", "e3m0", 4, "fp32"),
    BlockFormat("c", "e1m2", 9, "ue5m3", tensor_scale="fp32"),
    BlockFormat("d", "int3", 16, "e8m0", "ceil"),
    *(BlockFormat(f"b{size}", element, size) for size, element in SIZES.items()),
]
BOOKS = [
    *("dynamic_tree_b64", "linear", "static_tree", "nf4_b64", "fp4", "dynamic_map_b256"),
    "dynamic_map_unsigned",
    Codebook("ternary", (0.0, 1.0, -1.0), block=16),
    Codebook("dense", tuple(0.5 + i * 2.0**-20 for i in range(256))),
    Codebook("seventeen", tuple(i / 16 for i in range(17)), block=5),
]
AFFINE = ["int8_affine", "int4_affine_b32", "int3_affine_column", "int2_affine_8x16", "int5_affine_b7"]
TABLES_UNDER_SCALES = [
    *("mxposit8", "nvhif8_2d", "posit6_column", "mxtakum8", "nvlns4_3_4x7", "mxp3109_k8p3se", "mxnf4"),
    *("nvdynamic_tree_2d", "dynamic_map_unsigned_8x16"),
]
BLOCKS = [*SCALED, *OWN, *BOOKS, *AFFINE, *TABLES_UNDER_SCALES]
N = 203


# ---- what is computed


def rules(name, roundings):
    """Yield a rule for each rounding. Neighbors in the list of formats have different overflows."""
    first = [*FLOATS, *TABLES].index(name)
    for i, rounding in enumerate(roundings):
        yield {"rounding": rounding, "overflow": list(Overflow)[(first + i) % 3], "seed": 3, "offset": 1001}


@cache
def inputs(name):
    """Return rows of N values: random bits, values in the format's range, ties and their neighbors in float64."""
    fmt, g = custom_fp.parse(name), torch.Generator().manual_seed(0)
    codes = torch.randint(2**fmt.code_bits - 1, (N,), generator=g)
    low, high = (custom_fp.decode(codes + i, fmt).double() for i in (0, 1))
    ties = (low + high) / 2
    if isinstance(fmt, Format):
        near = normal(N) * min(fmt.max / 4 or 1.0, 2.0)
    else:
        bounds = torch.tensor([float(b) for half in (fmt.positive, fmt.negative) for b in half.boundaries])
        ties = bounds.double()[torch.randint(len(bounds), (N,), generator=g)]
        near = normal(N) ** 3 * (fmt.max**0.5 if fmt.max > 1e6 else fmt.max / 8)
    infinity = torch.tensor(math.inf, dtype=torch.float64)
    wide = [ties, ties.nextafter(infinity), ties.nextafter(-infinity), near.double() * (1 + 2.0**-40)]
    patterns = torch.randint(-(2**63), 2**63 - 1, (N,), generator=g).view(torch.float64)
    rows = [bit_patterns(N), near, low.float(), ties.float(), specials().repeat(15)[:N]]
    return torch.stack(rows), torch.stack([patterns, *wide])


@cache
def summands(name):
    """Return terms of sums in float32, and terms of which some are float64."""
    narrow, wide = inputs(name)
    others = [torch.cat([narrow[1:4].roll(i, 1), narrow[:1]]) for i in range(3)]
    terms = [narrow[:4], *others, narrow.roll(1, 0)[:4]]
    return terms, [terms[0], wide[:4], terms[2].double(), wide.roll(1, 0)[:4]]


@cache
def factors(name):
    fmt, a, b = custom_fp.parse(name), normal(8, 11), normal(11, 70, seed=1)
    if isinstance(fmt, Format):  # in range, subnormal, overflowing
        a[2:4], a[4:6], a[6:] = a[2:4] * 1e-4, a[4:6] * 1e-37, a[6:] * 1e19
    else:
        a = a * fmt.max**0.25
    a[3, 5], b[7, 69] = math.inf, math.nan
    return a, b


def elementwise(name, device="cpu"):
    fmt, (narrow, wide) = custom_fp.parse(name), (x.to(device) for x in inputs(name))
    for rule in rules(name, ROUNDINGS):
        for source in (narrow, wide):
            yield f"quantize {source.dtype} {rule}", custom_fp.quantize(source, fmt, **rule)
        for source, shift in ((narrow, 0), (narrow, -140), (wide, 40), (wide, -1299)):
            yield f"pack {source.dtype} {shift} {rule}", custom_fp.pack(source, fmt, shift=shift, **rule)
    for source in (narrow, wide):
        yield f"encode {source.dtype}", custom_fp.encode(source, fmt)
    codes = torch.arange(min(2**fmt.code_bits, 1 << 12)) * max(1, 2**fmt.code_bits >> 12)
    for dtype in [torch.uint8] * (fmt.code_bits <= 8) + [torch.int32] * (fmt.code_bits < 32) + [torch.int64]:
        yield f"decode {dtype}", custom_fp.decode(codes.to(device, dtype), fmt)
    data = torch.arange(fmt.packed_size(N)).mul(37).to(device, torch.uint8)
    for shift in (0, 5, -140, 1300):
        yield f"unpack {shift}", custom_fp.unpack(data, fmt, (N,), shift=shift)


def sums(name, device="cpu", blocks=True):
    """Yield sums and products. Without `blocks`, omit those whose CUDA kernels need several threads at once."""
    fmt, (terms, mixed) = custom_fp.parse(name), ([x.to(device) for x in rows] for rows in summands(name))
    payloads = [custom_fp.pack(term, fmt) for term in terms]
    roundings = [*Rounding, "stochastic_8", "stochastic_even_6"]
    first = [*FLOATS, *TABLES].index(name)
    for i, rule in enumerate(rules(name, roundings)):
        # There are four combinations of dtype and Kahan summation. To save time, only two of them are tested for each
        # rule. The other two are tested with the next format in the list.
        kahan = (first + i) % 2 == 0
        how, other = {"kahan": kahan, **rule}, {"kahan": not kahan, **rule}
        yield f"accumulate {how}", custom_fp.accumulate(terms, fmt, **how)
        yield f"accumulate float64 {other}", custom_fp.accumulate(mixed, fmt, **other)
        if blocks:
            yield f"accumulate_packed {how}", custom_fp.accumulate_packed(payloads, fmt, 4 * N, **how)
    a, b = factors(name)
    for kahan in (False, True) if blocks or not isinstance(fmt, Format) else ():
        got = custom_fp.matmul(a.to(device), b.to(device), accumulator=fmt, kahan=kahan)
        yield f"matmul kahan={kahan}", got


@cache
def hostile():
    """Return a tensor with values of every magnitude, a block of zeros, NaN and infinity, and one of normal values."""
    x = spread(3, 37, 70, binades=(-140, 100))
    x[0, :5, 40:], x[1, 3, 9], x[2, 30, 17], x[2, :, 11] = 0.0, math.nan, -math.inf, 1e-45
    x[1, 6, :] = torch.tensor([0.0, -0.0]).repeat(35)
    return x, normal(40, 51, seed=1)


def in_blocks(name, device="cpu"):
    fmt = custom_fp.parse(name)
    roundings = ["nearest_even", "stochastic", "to_odd", "stochastic_even_9", "toward_negative"]
    for x in (x.to(device) for x in hostile()):
        for axis in (None, *range(x.ndim)):
            where = f"{tuple(x.shape)} {axis}"
            codes = custom_fp.encode(x, fmt, axis=axis)
            yield from ((f"encode {where} {i}", part) for i, part in enumerate(codes))
            yield f"decode {where}", custom_fp.decode(codes, fmt, axis=axis)
            data = custom_fp.pack(x, fmt, axis=axis)
            yield f"unpack {where}", custom_fp.unpack(data, fmt, x.shape, axis=axis)
            if fmt.kernels != "codebook":
                any_code = torch.arange(x.numel()).remainder(2**fmt.code_bits).view(x.shape)
                any_code = any_code.to(device, torch.uint8)
                yield f"decode any {where}", custom_fp.decode((any_code, *codes[1:]), fmt, axis=axis)
            for rounding in roundings if fmt.takes_rounding else roundings[:1]:
                rule = {"rounding": rounding, "seed": 3, "offset": 1001, "axis": axis}
                yield f"quantize {where} {rounding}", custom_fp.quantize(x, fmt, **rule)
                yield f"pack {where} {rounding}", custom_fp.pack(x, fmt, **rule)
    if not (fmt.has_tiles or fmt.block == "column"):
        yield "quantize_rows", custom_fp.quantize_rows(hostile()[0].view(3, -1).to(device), fmt)


@cache
def any_values():
    x = torch.cat([bit_patterns(500), normal(500), specials()])
    y = spread(3, 133, 20, binades=(-30, 10))
    y[0, 0, 0], y[1, 9, 3], y[2, 20:24, 5] = math.nan, -math.inf, torch.tensor([3e38, 3e38, 1e-45, -0.0])
    rows = [bit_patterns(700), *(spread(700, seed=i) for i in range(6))]
    terms = [term.roll(3 * i * i) for i, term in enumerate(rows)]
    terms[2][:14] = specials()
    return x, x.double() * (1 + 2.0**-40), y, *terms


def without_format(_, device="cpu"):
    """Yield the results of the operators that take no format, and of sums that are rounded once."""
    x, wide, y, *terms = (x.to(device) for x in any_values())
    for source in (x, wide):
        for shift in (0, 3, -127, 128, 200, -1190, 10**9):
            yield f"scale_pow2 {source.dtype} {shift}", custom_fp.scale_pow2(source, shift)
        exponent = custom_fp.max_exponent(source)
        yield f"max_exponent {source.dtype}", torch.tensor(-999 if exponent is None else exponent)
    for size in (1, 2, 4, 16, 64, 128):
        for axis in range(3):
            for seed, inverse in ((None, False), (2**63 + 11, False), (-5, True)):
                how = {"size": size, "axis": axis, "seed": seed, "inverse": inverse}
                yield f"hadamard {how}", custom_fp.hadamard(y, **how)
    for order in ({"order": "exact"}, *({"order": "aligned", "width": width} for width in (3, 23, 40))):
        for name in ("e4m3", "fp32", "posit8"):
            yield f"accumulate {order} {name}", custom_fp.accumulate(terms, name, **order)


# ---- backends


def label(x):
    return getattr(x, "__name__", str(x))


def different(found, expected):
    """Return the results that differ from the expected ones."""
    found = dict(found)
    assert found.keys() == expected.keys() and found
    return [case for case, result in found.items() if not same_bits(result.cpu(), expected[case])]


CASES = [
    *((compute, name) for compute in (elementwise, sums) for name in (*FLOATS, *TABLES)),
    *((in_blocks, name) for name in BLOCKS),
    (without_format, "operators"),
]
each_case = pytest.mark.parametrize(("compute", "name"), CASES, ids=label)


@each_case
def test_cpu_kernels_return_the_bits_of_the_reference(compute, name):
    with in_reference():
        expected = dict(compute(name))
    for isa in _native.isas():
        _native.use_isa(isa)
        assert different(compute(name), expected) == [], isa


SOME = ["e5m2", "e3m0", "e2m1fn", "bf16", "e5m23", "e4m3fnuz", "ue5m6", "p3109_k8p3se", "posit13"]
SOME_BLOCKS = [
    *("mxfp8_e4m3_even", "mxfp4_rceil", "nvfp4", "nvfp4_2d", "nvfp4_5x3_4over6", "nvint4", "fp8_tensor"),
    *("int8_channel", "mxfp4_amax", "nf4_b64", "fp4", BOOKS[-1], "int8_affine", "int4_affine_b32"),
    "int2_affine_8x16",
]
ON_HOST = [
    *((compute, name) for compute in (elementwise, sums) for name in SOME),
    *((in_blocks, name) for name in SOME_BLOCKS),
    (without_format, "operators"),
]


@pytest.mark.parametrize(("compute", "name"), ON_HOST, ids=label)
def test_cuda_kernels_return_the_bits_of_the_cpu_kernels(compute, name, launched):
    options = {"blocks": False} if compute is sums else {}
    expected = dict(compute(name, **options))
    with in_cuda():
        assert different(compute(name, **options), expected) == []
    assert launched


@pytest.mark.parametrize(
    ("compute", "name"),
    [(elementwise, "e8m11"), (sums, "bf16"), (elementwise, "fp32"), (in_blocks, "mxfp8_e5m2"), (in_blocks, "mxint8"),
     (in_blocks, OWN[0]), (in_blocks, "linear"), (in_blocks, "int8_affine"), (without_format, "operators")],
    ids=label,
)  # fmt: skip
def test_results_do_not_depend_on_flush_to_zero(compute, name, request):
    x = torch.tensor([2.0**-130])
    expected = dict(compute(name))
    request.getfixturevalue("flushed_subnormals")
    assert different(compute(name), expected) == []
    assert (x * 1.0).count_nonzero() == 0, "the caller's setting is back"


def test_every_kernel_of_the_extension_is_compared(monkeypatch):
    same_everywhere = {"isas", "isa", "use_isa", "use_paths", "count_binades", "join_halves", "split_halves"}
    same_everywhere |= {"count_disorder", "dot"}  # test_accumulators.py compares dot
    kinds = {name: type(value).__name__ for name, value in vars(_native).items()}
    kernels = {name for name, kind in kinds.items() if kind == "nb_func"} - same_everywhere
    ran = set()

    def recorded(name, kernel):
        return lambda *args: (ran.add(name), kernel(*args))[1]

    for name in kernels:
        monkeypatch.setattr(_native, name, recorded(name, getattr(_native, name)))
    for compute, name in CASES:
        if kernels - ran:
            dict(compute(name))
    assert kernels - ran == set()


def test_packed_sums_of_one_cuda_thread(launched):
    """One thread handles eight codes of whole bytes in one access, so barriers have no effect."""
    for name in ("posit16", "fp16"):
        data = [custom_fp.pack(normal(8, seed=seed), name) for seed in range(3)]
        expected = custom_fp.accumulate_packed(data, name, 8, kahan=True)
        with in_cuda():
            assert same_bits(custom_fp.accumulate_packed(data, name, 8, kahan=True), expected)


LARGE = [  # blocks that are longer than one thread's share, and many small ones
    *("e4m3", "posit8", "nvfp4_4over6", "fp8_tensor", "int8_channel", "mxfp4_b200001", "int8_affine"),
    "dynamic_tree",
    *(BlockFormat("mine", "e2m1fn", 3), Codebook("long", (-1.0, 0.0, 0.3, 1.0), 150_003)),
]


@pytest.mark.parametrize("name", LARGE, ids=str)
def test_results_do_not_depend_on_threads(name):
    fmt, x = custom_fp.parse(name), normal(2, 200_001)
    x[1, 70_000] = math.nan  # in one block, or in the whole tensor

    def compute():
        rounding = "stochastic" if fmt.takes_rounding else "nearest_even"
        yield "quantize", custom_fp.quantize(x, fmt, rounding=rounding, seed=5)
        codes = custom_fp.encode(x, fmt)
        yield from enumerate(codes if fmt.has_scales else [codes])
        yield "decode", custom_fp.decode(codes, fmt)
        data = custom_fp.pack(x, fmt, rounding=rounding, seed=5)
        yield from (("pack", data), ("unpack", custom_fp.unpack(data, fmt, x.shape)))
        if not fmt.has_scales:
            yield "accumulate", custom_fp.accumulate([x, x.flip(1), x], fmt)
            yield "packed", custom_fp.accumulate_packed([data, data], fmt, x.numel())
            a, b = x[0, :50_000].view(5, 100, 100), x[0, 90_000:100_000].view(100, 100)
            yield "matmul", custom_fp.matmul(a, b, accumulator=fmt)
            yield "hadamard", custom_fp.hadamard(x, 16, seed=1, axis=1)
            yield "hadamard of columns", custom_fp.hadamard(x.T.contiguous(), 16, seed=1, axis=0)
            yield "sum rounded once", custom_fp.accumulate([x, x.flip(1)], fmt, order="exact")

    torch.set_num_threads(1)
    expected = dict(compute())
    for threads in (2, 3):
        torch.set_num_threads(threads)
        assert different(compute(), expected) == []


class _Quotients(TorchDispatchMode):
    """Records each Python number by which a tensor is divided. Powers of two are not recorded."""

    def __init__(self):
        super().__init__()
        self.divisors = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten.div and not isinstance(args[1], torch.Tensor):
            self.divisors += [args[1]] * (math.frexp(args[1])[0] != 0.5)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", BLOCKS, ids=str)
def test_no_tensor_is_divided_by_a_python_number(name):
    """The reference divides tensors only by tensors or powers of two.

    On a GPU, `x / 3.0` is not correctly rounded, because PyTorch multiplies by the reciprocal of a Python number.
    """
    fmt, x = custom_fp.parse(name), normal(6, 140)
    with in_reference(), _Quotients() as quotients:
        custom_fp.quantize(x, fmt)
        custom_fp.encode(x, fmt)
        custom_fp.pack(x, fmt, rounding="stochastic" if fmt.takes_rounding else "nearest_even")
        if not (fmt.has_tiles or fmt.block == "column"):
            custom_fp.quantize_rows(x, fmt)
    assert quotients.divisors == []


# ---- a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@each_case
def test_a_gpu_returns_the_bits_of_the_cpu(compute, name):
    assert different(compute(name, "cuda"), dict(compute(name))) == []
