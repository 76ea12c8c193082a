"""The public operators of custom_fp.

Rules for all of them:

- Inputs are tensors of float32, float64, float16 or bfloat16, of any shape and strides. An operator never writes to its
  inputs. Formats without scales round float64 inputs directly, not through float32. Results are float32.
- `fmt` is a number format or its name.
- `out` is a tensor of the right shape, dtype and device, with any strides. The result is written to `out`, and `out` is
  returned. It may be one of the inputs, but if it shares only a part of an input's memory, RuntimeError is raised.
- A seed is an integer from -2**63 to 2**64 - 1.
- NaN is positive and quiet in every result.
- Subnormal numbers are kept, even if the caller has enabled flush-to-zero.
- An unsuitable argument raises a TypeError or ValueError that says what was given and what is allowed.
- Gradients flow through `quantize`, `hadamard` and `matmul`. The results of the other operators are detached.

Formats with scales (MX formats, codebooks and so on) work with quantize, encode, decode, pack, unpack and packed_size.
operators/table.py lists what each operator checks and returns.
"""

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
from custom_fp.rounding import Overflow, Rounding
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
    """Round a tensor to the values of a number format.

    Example:
        >>> x = torch.tensor([0.3, 1.1, 1000.0])
        >>> custom_fp.quantize(x, "e4m3")
        tensor([0.3125, 1.1250,    inf])
        >>> custom_fp.quantize(x, "e4m3", overflow="saturate")
        tensor([  0.3125,   1.1250, 240.0000])

    Args:
        x: A float32, float64, float16 or bfloat16 tensor of any shape.
        fmt: A number format or its name, such as "e5m2", "bf16", "posit8", "mxfp8_e4m3" or "nvfp4".
        rounding: `nearest_even`, `nearest_away`, `toward_zero`, `toward_positive`, `toward_negative`, `to_odd`,
            `stochastic` or `stochastic_N`. `custom_fp.Rounding` defines them.
        overflow: What a value that is too large after rounding becomes: `infinity`, `saturate` or `propagate`.
            `custom_fp.Overflow` defines them. Elements of a format with scales always saturate.
        seed: The seed of stochastic rounding. If None, a seed is drawn from torch's default generator, so the result
            can be reproduced with torch.manual_seed.
        offset: The index of the first element of x for stochastic rounding. To round a part of a tensor as it would be
            rounded within the whole tensor, pass the index at which the part begins.
        axis: The dimension along which the blocks of a format with scales run. No block crosses from one row into the
            next, and the last block of a row may be shorter. If None, blocks follow the order of the elements in
            memory, and a row is the last dimension. Formats without scales, and formats whose blocks are tiles of the
            last two dimensions, ignore this argument.
        out: A float32 tensor of the shape of x for the result.

    Returns:
        The rounded values as float32, of the same shape. Subnormals of x and of the format are kept. -0 stays -0, and
        infinity and NaN are kept, if the format has them. If the format has no NaN, NaN becomes infinity or the
        largest value. The gradient passes straight through.

    Raises:
        TypeError: x is not a floating-point tensor, or another argument has the wrong type.
        ValueError: The format, rounding or overflow is unknown, or the format does not support the rounding.
        RuntimeError: `out` shares a part of its memory with x.
    """
    return operators.quantize(x, fmt, rounding, overflow, check_seed(seed), offset, axis, out=out)


def scale_pow2(x: Tensor, shift: int, *, out: Tensor | None = None) -> Tensor:
    """Return x * 2**shift as float32. If the exact result is not a float32 value, it is rounded once.

    Args:
        x: A tensor of any shape.
        shift: Any integer.
        out: A float32 tensor for the result.
    """
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
    """Apply a random Hadamard transform to each block of values along an axis.

    Value j of a block is multiplied by a random sign that depends on (seed, j). Then the block is multiplied by
    size**-0.5 * H, where H is Sylvester's matrix, H[i, j] = (-1)**popcount(i & j), as in scipy.linalg.hadamard. Two
    operands that are transformed with the same seed keep their dot products along the axis, up to rounding. arXiv
    2509.25149 transforms the operands of the weight gradient in this way, with size 16.

    Sums are float32 and are added as butterflies: values at distance 1, then 2, 4 and so on. The factor size**-0.5 is
    applied once. It is exact if log2(size) is even, and rounded to float32 otherwise. If the factor is exact and the
    values are integers of at most 2**24 / size, all multiplied by one power of two, `inverse` restores them exactly.

    Args:
        x: A tensor of any shape. float64 is rounded to float32 first.
        size: The size of a block, a power of two.
        seed: The seed of the random signs. If None, no signs are applied.
        axis: The dimension along which the blocks run. Values after the last whole block are left unchanged.
        inverse: Apply the inverse transform: first H, then the signs.
        out: A float32 tensor for the result.

    Returns:
        The transformed values as float32, of the same shape. Infinity, NaN and overflowing sums spread to all values of
        their block. -0 becomes 0 if another value is added to it. Subnormals are kept. The gradient of x is the inverse
        transform of the result's gradient.
    """
    return operators.hadamard(x, size, check_seed(seed), axis, bool(inverse), out=out)


def max_exponent(x: Tensor) -> int | None:
    """Return ceil(log2(max|x|)) over the finite elements of x, or None if x has no finite element except zeros.

    Raises:
        RuntimeError: The values of x cannot be read, as in FakeTensorMode, on the meta device or under vmap.
    """
    if is_plain(x) and not x.is_meta:
        return operators.compute_max_exponent(x)
    check_float(x)
    try:
        exponent = operators.max_exponent(x).item()
    except RuntimeError as error:
        raise RuntimeError(
            f"max_exponent returns a Python integer, so it must read the values of x, but failed: {error}"
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
    """Add tensors in their order and round every partial sum to a format.

    The sum starts with acc = +0, and each tensor g is added as acc = Q(acc + g). The sum acc + g is exact before Q
    rounds it, even if the format cannot represent the values of g. Q is `quantize` with the given rounding and
    overflow, so with "saturate" partial sums never exceed the largest value.

    Args:
        tensors: Tensors of the same shape.
        fmt: The format of the partial sums.
        kahan: Use Kahan summation: y = Q(g - c); t = Q(acc + y); c = Q(Q(t - acc) - y); acc = t. c is set to 0 when t
            is not finite.
        order: The order of summation. "sequential" adds the tensors one by one. "exact" adds all terms exactly and
            rounds once. "aligned" works as integer adders do: it truncates each term below 2**(E - width), adds the
            truncated terms exactly, and rounds once. E is the largest exponent among the terms of an element, and at
            least the exponent of the format's smallest normal value. The results of "exact" and "aligned" do not depend
            on the order of the tensors. Both reject float64 tensors and `kahan`, and return +0 for a sum of zero.
        width: The number of bits for order="aligned". If it covers the whole range of the format, nothing is truncated.
        rounding: See `quantize`.
        overflow: See `quantize`.
        seed: See `quantize`. Each step of the sum uses new random bits.
        offset: See `quantize`.
        out: A float32 tensor for the result.

    Returns:
        The sum as float32.
    """
    rule = rounding, overflow, check_seed(seed), offset
    return operators.accumulate(list(tensors), fmt, kahan, *rule, order, width, out=out)


def encode(
    x: Tensor, fmt: NumberFormat | str, *, axis: int | None = None, out: Tensor | None = None
) -> Tensor | tuple[Tensor, ...]:
    """Return the codes of a tensor, rounded to nearest even.

    Args:
        x: A tensor of any shape.
        fmt: A number format or its name.
        axis: The dimension along which blocks run, as in `quantize`.
        out: A tensor for the codes of a format without scales.

    Returns:
        For a format without scales, the codes: uint8 up to 8 bits, int32 up to 31 bits, int64 for 32 bits. For a format
        with scales, a tuple. It contains the codes (uint8) and the scales (uint8, or float32 if the format's scales are
        float32). If the format has zero points (uint8) or a scale of the whole tensor (float32, 0-d), these follow.
        Scales are in the order of the blocks. With an axis, they have the shape of x except along that dimension.
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
    """Return the float32 values of integer codes.

    Args:
        codes: The codes, of which only the lowest `fmt.bits` bits are read. For a format with scales, the tuple that
            `encode` returned.
        fmt: A number format or its name.
        axis: The axis that was passed to `encode`.
        out: A float32 tensor for the result.
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
    """Round x * 2**shift once, as `quantize` does, and return its codes as dense bytes.

    Args:
        x: A tensor of n elements.
        fmt: A number format of k bits, or its name.
        shift: An integer. It must be 0 for formats with scales.
        rounding: See `quantize`.
        overflow: See `quantize`.
        seed: See `quantize`.
        offset: See `quantize`.
        axis: See `quantize`.
        out: A uint8 tensor for the result.

    Returns:
        A uint8 tensor of length ceil(n / 8) * k. Eight codes fill k bytes. Code j starts at bit j * k, little-endian.
        The last group of eight is filled up with zero codes. For a format with scales, the bytes of the scales come
        before the codes, and the scale of the whole tensor comes before the scales of its blocks.
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
    """Return the values that `pack` wrote, times 2**shift, as float32.

    Args:
        data: The bytes from `pack`.
        fmt: The number format that was passed to `pack`, or its name.
        shape: The shape of the result.
        shift: An integer, usually the negative of the shift that was passed to `pack`.
        axis: The axis that was passed to `pack`.
        out: A float32 tensor for the result.
    """
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
    """Add packed payloads and return their packed sum, without creating float32 tensors of the full size.

    The result equals `pack(accumulate([unpack(p) for p in payloads]))`.

    Args:
        payloads: The bytes from `pack`, one tensor for each term.
        fmt: The format of the payloads and of the partial sums.
        n: The number of values in each payload.
        kahan: See `accumulate`.
        order: See `accumulate`.
        width: See `accumulate`.
        rounding: See `quantize`.
        overflow: See `quantize`.
        seed: See `quantize`.
        offset: See `quantize`.
        out: A uint8 tensor for the result.
    """
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
    """Return the matrix product a @ b, computed with an emulated accumulator.

    If the accumulator is a number format, every product and every partial sum is rounded to this format (nearest
    even), in ascending order of k: acc = +0, then acc = Q(acc + Q(a[i, k] * b[k, j])) for k = 0 to K-1. Products and
    sums are exact before they are rounded. An `Accumulator` or its name (h100_fp8, fp32-fused, fp16-stochastic_8)
    models other hardware, such as tensor cores.

    Args:
        a: A tensor of shape (..., M, K), or a vector.
        b: A tensor of shape (..., K, N), or a vector. Shapes broadcast as in torch.matmul.
        accumulator: An accumulator, a number format, or the name of either.
        kahan: Add the products with Kahan summation, as in `accumulate`.
        backward_accumulator: The accumulator of the two products that compute the gradients. If None, `accumulator` is
            used. If a has batch dimensions and b is a single matrix, the gradient of b is a single product over all
            rows of the batch.
        seed: The seed for accumulators that round stochastically, used for the product and its gradients. If None,
            each product draws a seed from torch's default generator.

    Returns:
        The product as float32.
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
    """Return the number of bytes of packed values: ceil(n / 8) * k, plus the bytes of the scales if there are any.

    Args:
        n: The number of values, or the shape of the tensor.
        fmt: A number format of k bits, or its name.
        axis: The axis that will be passed to `pack`.
    """
    return parse(fmt).packed_size(n, None if isinstance(n, int) else check_axis(axis, n))


def quantize_rows(x_RxN: Tensor, fmt: NumberFormat | str) -> Tensor:
    """Quantize each row as a separate tensor. For formats with scales, the result differs from `quantize`.

    Args:
        x_RxN: A tensor of shape (R, N).
        fmt: A number format or its name.

    Returns:
        The rounded values as float32, of shape (R, N), without a gradient.
    """
    fmt = parse(fmt)
    if fmt.together == 1:
        return quantize(x_RxN.detach(), fmt)
    check_float(x_RxN)
    source = single(as_source(x_RxN))
    result = torch.empty_like(source)
    function("quantize_rows", fmt.backends, x_RxN.device.type)(source, fmt, result)
    return result
