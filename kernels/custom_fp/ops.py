"""The public operators: what they promise. eager.py runs them, registration.py shows them to autograd and compilers.

Rules for all of them. Inputs are float32, float64, float16 or bfloat16 tensors of any shape and strides, rounded
once and never written; results are float32. `fmt` is a Format or its name. `out=` takes a tensor of the right
shape, dtype and device (any strides) and returns it; it may be an input, but RuntimeError is raised where it shares
only part of an input's memory. Seeds are whole numbers from -2**63 to 2**64 - 1. NaN is positive and quiet in every
result. A tensor, format or word that does not fit raises TypeError or ValueError, which say what was given and what is
allowed. Gradients flow through quantize and matmul; the results of the others are cut from autograd's graph.

quantize, encode, decode, pack, unpack and packed_size take formats with scales too (codebooks, MX: see scaled.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from custom_fp import eager, scaled, scaled_autograd
from custom_fp.backends import backend
from custom_fp.checks import check_float, check_out, check_rule, check_seed, packed_size
from custom_fp.formats.names import ScaledFormat, as_scaled, spelled
from custom_fp.formats.scalar import Format
from custom_fp.registration import NO_EXPONENT, Matmul, Quantize, forward_level, is_plain, read_integer

__all__ = [
    "accumulate",
    "accumulate_packed",
    "backend",
    "decode",
    "encode",
    "matmul",
    "max_exponent",
    "pack",
    "packed_size",
    "quantize",
    "scale_pow2",
    "unpack",
]


def quantize(
    x: Tensor,
    fmt: Format | ScaledFormat | str,
    *,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """x rounded to the values of a format, as float32 of the same shape.

    rounding
        "nearest_even": IEEE 754-2019 roundTiesToEven. With m = 0 a tie between two normal values goes to the
        larger magnitude (4.3.1: both have an odd digit), and half the smallest value goes to zero, which is even.
        "toward_zero": never overflows. "stochastic": up with a probability equal to the distance, in steps of
        2**-31, from Philox4x32-7 keyed by (seed, element index); with seed None the seed is drawn from torch's
        default generator, so that torch.manual_seed repeats it. `offset` is the index of x's first element: a part
        of a tensor, with its own offset, is rounded as it is in the whole.
    overflow
        Decided after rounding. "infinity": inf, or NaN where the format has no inf, or max if it has neither.
        "saturate": max, for infinite inputs too.

    Subnormals are kept, of the format and of x; -0 stays -0. inf and NaN stay what they are where the format has
    them; NaN becomes inf (or max) where it has no NaN. The gradient passes straight through.
    """
    seed = check_seed(seed)
    if (with_scales := _with_scales(fmt)) is not None:
        check_rule(rounding, overflow)
        return _quantize_scaled(x, with_scales, rounding, out)
    if out is None and _differentiated(x):
        return Quantize.apply(x, _name(fmt), rounding, overflow, seed, offset)
    if _eager(x, out):
        return eager.quantize(x, fmt, rounding, overflow, seed, offset, out)
    if out is None:
        return torch.ops.custom_fp.quantize(x, _name(fmt), rounding, overflow, seed, offset)
    return _into(out, torch.ops.custom_fp.quantize(x.detach(), _name(fmt), rounding, overflow, seed, offset))


def scale_pow2(x: Tensor, shift: int, *, out: Tensor | None = None) -> Tensor:
    """x * 2**shift as float32 for any integer shift, rounded once (where the result is subnormal or too large)."""
    if not _eager(x, out):
        return _into(out, torch.ops.custom_fp.scale_pow2(x.detach(), shift))
    return eager.scale_pow2(x, shift, out)


def max_exponent(x: Tensor) -> int | None:
    """ceil(log2(max|x|)) over the finite elements of x; None where they are all zero, or there are none.

    A Python integer, so RuntimeError where x has no values to read: in FakeTensorMode, on the meta device, under vmap.
    """
    if _eager(x) and not (isinstance(x, Tensor) and x.is_meta):
        return eager.max_exponent(x)
    check_float(x)
    exponent = read_integer("max_exponent", torch.ops.custom_fp.max_exponent(x.detach()))
    return None if exponent == NO_EXPONENT else exponent


def accumulate(
    tensors: Sequence[Tensor],
    fmt: Format | str,
    *,
    kahan: bool = False,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """The sum of tensors of one shape, in their order, every partial sum rounded to the format (float32).

    acc = +0; for each g: acc = Q(acc + g), where acc + g is exact before Q rounds it, also for terms g that are
    no values of the format. With kahan: y = Q(g - c); t = Q(acc + y); c = Q(Q(t - acc) - y); acc = t, and c = 0
    once t is not finite. Q is `quantize` with the same rounding and overflow, so that with "saturate" partial sums stop
    at the largest value; stochastic rounding draws anew in every step, by the index of an element, from `offset` on.
    """
    tensors, seed = list(tensors), check_seed(seed)
    if not _eager(*tensors, out):
        terms = [x.detach() for x in tensors]
        total = torch.ops.custom_fp.accumulate(terms, _name(fmt), kahan, rounding, overflow, seed, offset)
        return _into(out, total)
    return eager.accumulate(tensors, fmt, kahan, rounding, overflow, seed, offset, out)


def encode(x: Tensor, fmt: Format | str, *, out: Tensor | None = None) -> Tensor:
    """The codes of x, rounded to nearest even first: uint8 up to 8 bits, int32 up to 31, int64 for 32.

    Of a format with scales, (codes, scales): see scaled.encode; there is no `out` then.
    """
    if (with_scales := _with_scales(fmt)) is not None:
        if out is not None:
            raise ValueError(f"{fmt} has codes and scales: encode takes no out for it")
        return scaled_autograd.run("encode", (x,), with_scales)
    if not _eager(x, out):
        return _into(out, torch.ops.custom_fp.encode(x.detach(), _name(fmt)))
    return eager.encode(x, fmt, out)


def decode(codes: Tensor, fmt: Format | str, *, out: Tensor | None = None) -> Tensor:
    """The float32 values of integer codes, of which the low `fmt.bits` bits are read.

    Of a format with scales, `codes` is the pair (codes, scales) that `encode` gave; there is no `out` then.
    """
    if (with_scales := _with_scales(fmt)) is not None:
        if out is not None:
            raise ValueError(f"{fmt} has codes and scales: decode takes no out for it")
        return scaled_autograd.run("decode", tuple(codes), with_scales)
    if not _eager(codes, out):
        return _into(out, torch.ops.custom_fp.decode(codes, _name(fmt)))
    return eager.decode(codes, fmt, out)


def pack(
    x: Tensor,
    fmt: Format | str,
    *,
    shift: int = 0,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """x * 2**shift, rounded once as `quantize` does, as dense bytes: uint8 of length ceil(n / 8) * k.

    8 codes fill k bytes, code j from bit j * k on, little-endian; zero codes fill up the last group. Of a format with
    scales, the scales' bytes come first; there is no shift, and rounding is to nearest even.
    """
    seed = check_seed(seed)
    if (with_scales := _with_scales(fmt)) is not None:
        _no_shift(shift, with_scales)
        _nearest_only(rounding, with_scales)
        if out is not None and _eager(x, out):
            return scaled.pack(x, with_scales, out)
        return _into(out, scaled_autograd.run("pack", (x,), with_scales))
    if not _eager(x, out):
        data = torch.ops.custom_fp.pack(x.detach(), _name(fmt), shift, rounding, overflow, seed, offset)
        return _into(out, data)
    return eager.pack(x, fmt, shift, rounding, overflow, seed, offset, out)


def unpack(
    data: Tensor,
    fmt: Format | str,
    shape: Sequence[int] | int,
    *,
    shift: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """The values that `pack` wrote, times 2**shift, as float32 of the given shape."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if (with_scales := _with_scales(fmt)) is not None:
        _no_shift(shift, with_scales)
        if out is not None and _eager(data, out):
            return scaled.unpack(data, with_scales, shape, out)
        return _into(out, scaled_autograd.run("unpack", (data,), with_scales, shape))
    if not _eager(data, out):
        return _into(out, torch.ops.custom_fp.unpack(data, _name(fmt), shape, shift))
    return eager.unpack(data, fmt, shape, shift, out)


def accumulate_packed(
    payloads: Sequence[Tensor],
    fmt: Format | str,
    n: int,
    *,
    kahan: bool = False,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """pack(accumulate(unpack each payload)) without the float32 tensors in between; n values a payload."""
    payloads, seed = list(payloads), check_seed(seed)
    if not _eager(*payloads, out):
        total = torch.ops.custom_fp.accumulate_packed(
            payloads, _name(fmt), n, kahan, rounding, overflow, seed, offset
        )
        return _into(out, total)
    return eager.accumulate_packed(payloads, fmt, n, kahan, rounding, overflow, seed, offset, out)


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    accumulator: Format | str,
    kahan: bool = False,
    backward_accumulator: Format | str | None = None,
) -> Tensor:
    """a @ b in float32, every product and every partial sum rounded to `accumulator` (nearest even), k ascending.

    acc = +0; for k = 0..K-1: acc = Q(acc + Q(a[i, k] * b[k, j])), products and sums exact before they are rounded.
    With kahan the term Q(a b) is added as in `accumulate`. Shapes (and vectors) as in torch.matmul: leading
    dimensions broadcast. The gradients are two such products, with `backward_accumulator` (default: accumulator);
    where b is one matrix for a whole batch of a, its gradient is one product over all their rows.
    """
    forward = _name(accumulator)
    backward = forward if backward_accumulator is None else _name(backward_accumulator)
    if a.dim() == 1 or b.dim() == 1:
        a_matrix = a.unsqueeze(0) if a.dim() == 1 else a
        b_matrix = b.unsqueeze(1) if b.dim() == 1 else b
        result = _matmul(a_matrix, b_matrix, forward, kahan, backward)
        result = result.squeeze(-2) if a.dim() == 1 else result
        return result.squeeze(-1) if b.dim() == 1 else result
    if a.dim() > 2 and b.dim() == 2:
        rows = _matmul(a.reshape(-1, a.shape[-1]), b, forward, kahan, backward)
        return rows.view(*a.shape[:-1], b.shape[-1])
    return _matmul(a, b, forward, kahan, backward)


def _matmul(a: Tensor, b: Tensor, forward: str, kahan: bool, backward: str) -> Tensor:
    if _differentiated(a, b):
        return Matmul.apply(a, b, forward, kahan, backward)
    if _eager(a, b):
        return eager.matmul(a, b, forward, kahan)
    return torch.ops.custom_fp.matmul(a, b, forward, kahan, backward)


# ---- formats with scales ---------------------------------------------------------------------------------------


def _with_scales(fmt: Format | ScaledFormat | str) -> ScaledFormat | str | None:
    """The format if it has scales, for a compiler a text that stands for it; else None."""
    if type(fmt) is Format:
        return None
    return scaled_autograd.spelled_if_scaled(fmt) if torch.compiler.is_compiling() else as_scaled(fmt)


def _quantize_scaled(x: Tensor, fmt: ScaledFormat | str, rounding: str, out: Tensor | None) -> Tensor:
    _nearest_only(rounding, fmt)
    if not isinstance(fmt, str):
        if out is None and _differentiated(x):
            return scaled_autograd.QuantizeScaled.apply(x, spelled(fmt))
        if _eager(x, out):
            return scaled.quantize(x, fmt, out)
        fmt = spelled(fmt)
    if out is None:
        return torch.ops.custom_fp.quantize_scaled(x, fmt)
    return _into(out, torch.ops.custom_fp.quantize_scaled(x.detach(), fmt))


def _nearest_only(rounding: str, fmt: ScaledFormat | str) -> None:
    if rounding != "nearest_even":
        raise ValueError(f"rounding is {rounding!r}; {fmt} rounds to nearest only")


def _no_shift(shift: int, fmt: ScaledFormat) -> None:
    if shift:
        raise ValueError(f"shift is {shift}; {fmt} has scales of its own and takes none")


# ---- which way -------------------------------------------------------------------------------------------------


def _name(fmt: Format | str) -> str:
    return fmt if isinstance(fmt, str) else fmt.name


def _eager(*tensors: object) -> bool:
    """Whether to skip the dispatcher, which costs more than a small tensor's arithmetic. What is no tensor goes to
    the eager functions too: they say what is wrong with it. None stands for no `out`.
    """
    return is_plain(*tensors) or not all(isinstance(tensor, Tensor | None) for tensor in tensors)


def _into(out: Tensor | None, result: Tensor) -> Tensor:
    """What an op gave, copied to `out` if there is one: a compiler makes of that what it likes."""
    if out is None:
        return result
    check_out(out, result.shape, result.dtype, result.device)
    with torch.no_grad():
        return out.copy_(result)


def _differentiated(*tensors: object) -> bool:
    """Whether autograd, forwards or backwards, or torch.func looks on, outside a compiler."""
    if torch.compiler.is_compiling():
        return False
    interpreter = torch._C._functorch.peek_interpreter_stack()
    if interpreter is not None:
        return interpreter.key() != torch._C._functorch.TransformType.Functionalize
    if forward_level() >= 0:
        return True
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tensors)
