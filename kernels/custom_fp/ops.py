"""The public operators: what they promise. operators/table.py is the table of what they do.

Rules for all of them. Inputs are float32, float64, float16 or bfloat16 tensors of any shape and strides, rounded
once and never written; results are float32. `fmt` is a number format or its name. `out=` takes a tensor of the right
shape, dtype and device (any strides) and returns it; it may be an input, but RuntimeError is raised where it shares
only part of an input's memory. Seeds are whole numbers from -2**63 to 2**64 - 1. NaN is positive and quiet in every
result. A tensor, format or word that does not fit raises TypeError or ValueError, which say what was given and what is
allowed. Gradients flow through quantize and matmul; the results of the others are cut from autograd's graph.

quantize, encode, decode, pack, unpack and packed_size take formats with scales too (codebooks, MX: see scaled/).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.backends import backend, function
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from custom_fp.operators import table as operators
from custom_fp.operators.checks import as_source, check_axis, check_float, check_seed
from custom_fp.operators.registration import is_plain
from custom_fp.rule import Overflow, Rounding
from custom_fp.scaled.blocks import single

__all__ = [
    "accumulate",
    "accumulate_packed",
    "backend",
    "decode",
    "encode",
    "hadamard",
    "matmul",
    "max_exponent",
    "pack",
    "packed_size",
    "quantize",
    "quantize_rows",
    "scale_pow2",
    "unpack",
]


def quantize(
    x: Tensor,
    fmt: NumberFormat | str,
    *,
    rounding: Rounding | str = "nearest_even",
    overflow: Overflow | str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    axis: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """x rounded to the values of a format, as float32 of the same shape.

    rounding: nearest_even, nearest_away, toward_zero, toward_positive, toward_negative, to_odd, stochastic or
    stochastic_N, as `Rounding` defines them. With seed None stochastic rounding draws a seed from torch's default
    generator, so that torch.manual_seed repeats it; offset is the index of x's first element: a part of a tensor, with
    its own offset, is rounded as it is in the whole. overflow: infinity, saturate or propagate, as `Overflow` defines
    them, decided after rounding; elements under a scale always saturate. axis: the dimension that the blocks of a
    format with scales run along, where none crosses into another row and the last of each may be short. None: they are
    cut from x in the order of its elements in memory, and a row is the last dimension. A format without
    scales gives the same along any, and so do tiles, which are of the last two dimensions.

    Subnormals are kept, of the format and of x; -0 stays -0 where the format has one. inf and NaN stay what they
    are where the format has them; NaN becomes inf (or max) where it has no NaN. The gradient passes straight
    through.
    """
    return operators.quantize(x, fmt, rounding, overflow, check_seed(seed), offset, axis, out=out)


def scale_pow2(x: Tensor, shift: int, *, out: Tensor | None = None) -> Tensor:
    """x * 2**shift as float32 for any integer shift, rounded once (where the result is subnormal or too large)."""
    return operators.scale_pow2(x, shift, out=out)


def hadamard(
    x: Tensor,
    size: int = 16,
    *,
    seed: int | None = None,
    axis: int = -1,
    inverse: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Each block of `size` values along an axis times size**-.5 H, after random signs: float32 of the same shape.

    size: a power of two; H: Sylvester's matrix, H[i, j] = (-1)**popcount(i & j), as scipy.linalg.hadamard has it. Value
    j of every block is multiplied by a sign drawn by (seed, j); with seed None there are none, so that who transforms
    two operands, or back, need not keep what was drawn. inverse: H first, then the signs. Blocks do not cross a row of
    the axis; what is left of it behind the last whole block stays as it is.

    Two operands with the same seed keep their dot products along the axis, up to rounding (what arXiv 2509.25149
    does to the operands of the weight gradient, with 16). Sums are float32, in the order of butterflies: values 1
    apart, then 2, 4 ...; then one multiplication by size**-.5: exact where log2(size) is even (16: 1/4), else by the
    nearest float32. So inverse gives back exactly what was transformed where that is even and the values are whole
    multiples, up to 2**24 / size, of some power of two; else up to rounding.

    inf and NaN spread over their block, as does a sum that passes the largest float32; -0 becomes 0 where it meets
    another value (one block of -0 alone: signed zeros); subnormals are kept. A float64 is rounded to float32 first. The
    gradient is that of the matrix: the inverse of the gradient.
    """
    return operators.hadamard(x, size, check_seed(seed), axis, bool(inverse), out=out)


def max_exponent(x: Tensor) -> int | None:
    """ceil(log2(max|x|)) over the finite elements of x; None where they are all zero, or there are none.

    A Python integer, so RuntimeError where x has no values to read: in FakeTensorMode, on the meta device, under vmap.
    """
    if is_plain(x) and not x.is_meta:
        return operators.max_exponent_of(x)
    check_float(x)
    try:
        exponent = operators.max_exponent(x).item()
    except RuntimeError as error:
        raise RuntimeError(
            f"max_exponent returns a Python integer and needs a tensor's values here: {error}"
        ) from None
    return None if exponent == operators.NO_EXPONENT else exponent


def accumulate(
    tensors: Sequence[Tensor],
    fmt: NumberFormat | str,
    *,
    kahan: bool = False,
    order: str = "sequential",
    width: int | None = None,
    rounding: Rounding | str = "nearest_even",
    overflow: Overflow | str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """The sum of tensors of one shape, in their order, every partial sum rounded to the format (float32).

    acc = +0; for each g: acc = Q(acc + g), where acc + g is exact before Q rounds it, also for terms g that are
    no values of the format. With kahan: y = Q(g - c); t = Q(acc + y); c = Q(Q(t - acc) - y); acc = t, and c = 0
    once t is not finite. Q is `quantize` with the same rounding and overflow, so that with "saturate" partial sums stop
    at the largest value; stochastic rounding draws anew in every step, by the index of an element, from `offset` on.

    order="exact": Q(g_0 + g_1 + ...), the sum of all exact and rounded once. order="aligned": each g is cut off (toward
    zero) below 2**(E - width) before that, E the largest exponent among an element's terms (none below that of the
    format's smallest normal value), as adders of integers have it; a width of the format's range in bits or more cuts
    nothing off. Both give the same in any order of the terms; they take no float64 and no kahan, and a zero is +0.
    """
    rule = rounding, overflow, check_seed(seed), offset
    return operators.accumulate(list(tensors), fmt, kahan, *rule, order, width, out=out)


def encode(
    x: Tensor, fmt: NumberFormat | str, *, axis: int | None = None, out: Tensor | None = None
) -> Tensor | tuple[Tensor, ...]:
    """The codes of x, rounded to nearest even first: uint8 up to 8 bits, int32 up to 31, int64 for 32.

    Of a format with scales, (codes, scales), (codes, scales, the tensor's scale) where it has one, or (codes, scales,
    zero points), uint8, where it has those: codes are uint8;
    scales are uint8, or float32 in formats whose scales are that, in the order of the blocks, and with an axis of the
    shape of x but for that dimension; the tensor's scale is a float32 of no dimensions. There is no `out` then. axis:
    as `quantize` has it.
    """
    codes, *scales = operators.encode(x, fmt, axis, out=out)
    return (codes, *scales) if scales else codes


def decode(
    codes: Tensor | tuple[Tensor, ...],
    fmt: NumberFormat | str,
    *,
    axis: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The float32 values of integer codes, of which the low `fmt.bits` bits are read.

    Of a format with scales, `codes` is what `encode` gave along the same axis.
    """
    encoded = list(codes) if isinstance(codes, tuple | list) else [codes]
    return operators.decode(encoded, fmt, axis, out=out)


def pack(
    x: Tensor,
    fmt: NumberFormat | str,
    *,
    shift: int = 0,
    rounding: Rounding | str = "nearest_even",
    overflow: Overflow | str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    axis: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """x * 2**shift, rounded once as `quantize` does, as dense bytes: uint8 of length ceil(n / 8) * k.

    8 codes fill k bytes, code j from bit j * k on, little-endian; zero codes fill up the last group. Of a format with
    scales, those come first, the tensor's before those of its blocks; there is no shift. axis: as `quantize` has it.
    """
    rule = rounding, overflow, check_seed(seed), offset
    return operators.pack(x, fmt, shift, *rule, axis, out=out)


def unpack(
    data: Tensor,
    fmt: NumberFormat | str,
    shape: Sequence[int] | int,
    *,
    shift: int = 0,
    axis: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The values that `pack` wrote along the same axis, times 2**shift, as float32 of the given shape."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return operators.unpack(data, fmt, shape, shift, axis, out=out)


def accumulate_packed(
    payloads: Sequence[Tensor],
    fmt: NumberFormat | str,
    n: int,
    *,
    kahan: bool = False,
    order: str = "sequential",
    width: int | None = None,
    rounding: Rounding | str = "nearest_even",
    overflow: Overflow | str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """pack(accumulate(unpack each payload)) without the float32 tensors in between (a part of them at a time, where all
    terms are added at once); n values a payload."""
    rule = rounding, overflow, check_seed(seed), offset
    return operators.accumulate_packed(list(payloads), fmt, n, kahan, *rule, order, width, out=out)


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    accumulator: Accumulator | NumberFormat | str,
    kahan: bool = False,
    backward_accumulator: Accumulator | NumberFormat | str | None = None,
    seed: int | None = None,
) -> Tensor:
    """a @ b in float32, every product and every partial sum rounded to `accumulator` (nearest even), k ascending.

    acc = +0; for k = 0..K-1: acc = Q(acc + Q(a[i, k] * b[k, j])), products and sums exact before they are rounded.
    With kahan the term Q(a b) is added as in `accumulate`. Shapes (and vectors) as in torch.matmul: leading
    dimensions broadcast. The gradients are two such products, with `backward_accumulator` (default: accumulator);
    where b is one matrix for a whole batch of a, its gradient is one product over all their rows.

    That is an accumulator that a format alone names. An `Accumulator`, or its name (h100_fp8, fp32-fused,
    fp16-stochastic_8), sums in other ways: see there. seed: of one that draws, in the product and its gradients; None:
    each draws one from torch's default generator.
    """
    backward = accumulator if backward_accumulator is None else backward_accumulator
    rest = accumulator, kahan, backward, check_seed(seed)
    if a.dim() == 1 or b.dim() == 1:
        a_matrix = a.unsqueeze(0) if a.dim() == 1 else a
        b_matrix = b.unsqueeze(1) if b.dim() == 1 else b
        result = operators.matmul(a_matrix, b_matrix, *rest)
        result = result.squeeze(-2) if a.dim() == 1 else result
        return result.squeeze(-1) if b.dim() == 1 else result
    if a.dim() > 2 and b.dim() == 2:
        rows = operators.matmul(a.reshape(-1, a.shape[-1]), b, *rest)
        return rows.view(*a.shape[:-1], b.shape[-1])
    return operators.matmul(a, b, *rest)


def packed_size(n: int | Sequence[int], fmt: NumberFormat | str, *, axis: int | None = None) -> int:
    """Bytes of n packed values, or of a tensor of shape n: ceil(n / 8) * k, and before them the scales of a format that
    has them."""
    return parse(fmt).packed_size(n, None if isinstance(n, int) else check_axis(axis, n))


def quantize_rows(x_RxN: Tensor, fmt: NumberFormat | str) -> Tensor:
    """Each row quantized as a tensor of its own, which matters to formats with scales: float32, (R, N)."""
    fmt = parse(fmt)
    if fmt.together == 1:
        return quantize(x_RxN.detach(), fmt)
    check_float(x_RxN)
    source = single(as_source(x_RxN))
    result = torch.empty_like(source)
    function("quantize_rows", type(fmt), x_RxN.device.type)(source, fmt, result)
    return result
