"""The table of operators: what each takes, what its result is like, and which function of a backend computes it.

A row checks its arguments and returns the shapes and dtypes of the results, their device, and what fills them: see
registration.py, which makes of it all that torch's transforms need. ops.py documents the operators.

Backends get tensors that are dense, float32 or float64; `native`, `cuda` and `reference` have the same functions with
the same arguments, scaled/ those of formats with scales. An operator is added here, in ops.py and in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.accumulator import read as read_accumulator
from custom_fp.accumulators import at_once
from custom_fp.backends import check_knows, function
from custom_fp.formats.names import read
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.operators.batching import all_at_once, along_an_axis, matrices, one_at_a_time
from custom_fp.operators.checks import (
    as_source,
    check_axis,
    check_bytes,
    check_codes,
    check_float,
    check_matrices,
    check_terms,
    code_dtype,
    dense,
    draw_seed,
    scale_shapes,
)
from custom_fp.operators.registration import Derivative, Work, operator
from custom_fp.rounding import Rounding, Rule

Fmt = NumberFormat | str  # a str is a name or a format's spelling

NO_EXPONENT = -(1 << 31)  # of a tensor of zeros
_ON_HOST = torch.empty(0, device="cpu")


def _on(x: Tensor, fmt: NumberFormat | Accumulator, name: str) -> Callable[..., None]:
    return function(name, fmt.backends, _device(x))


def _device(x: Tensor) -> str:
    return "cpu" if x.is_cpu else x.device.type  # the short way for most


def _rule(fmt: NumberFormat, parts: Sequence[object], shift: int = 0) -> Rule:
    """The rule of these parts, if the format can follow it."""
    try:
        rule = Rule.of(*parts)
    except TypeError:  # a compiler's numbers have no hash
        rule = Rule(*parts)
    if rule.rounding is not Rounding.NEAREST_EVEN and not fmt.takes_rounding:
        raise ValueError(f"rounding is {rule.rounding.value!r}; {fmt} rounds to nearest only")
    if shift and fmt.has_scales:
        raise ValueError(f"shift is {shift}; {fmt} has scales of its own and takes none")
    return rule


def _along(axis: int | None, fmt: NumberFormat, x: Tensor | Sequence[int]) -> dict[str, int]:
    """What a backend is told of an axis: nothing where there is none, or no block to be cut. Raises ValueError for a
    tensor that is no x, or its shape, of this format."""
    shape = x.shape if isinstance(x, Tensor) else x
    axis = check_axis(axis, shape)
    if not fmt.has_scales:
        return {}
    if not fmt.is_flat:
        fmt.layout(shape, axis)
    return {} if axis is None else {"axis": axis}


def _drawn(rule: Rule) -> Rule:
    """With a seed, where one is needed."""
    return replace(rule, seed=draw_seed()) if rule.is_stochastic and rule.seed is None else rule


def _remember_dtype(ctx, inputs, output) -> None:
    ctx.dtype, ctx.others = inputs[0].dtype, len(inputs) - 1


# The gradient passes straight through, forwards and backwards: Bengio, Leonard and Courville 2013 (arXiv:1308.3432),
# section 4.
STRAIGHT_THROUGH = Derivative(
    _remember_dtype,
    lambda ctx, grad: (grad.to(ctx.dtype), *[None] * ctx.others),
    lambda ctx, tangent, *_: tangent.to(torch.float32, copy=True),
)


@operator(
    "(Tensor x, str fmt, str rounding, str overflow, SymInt? seed, SymInt offset=0, int? axis=None) -> Tensor",
    vmap=all_at_once,
    derivative=STRAIGHT_THROUGH,
    draws=True,
)
def quantize(
    x: Tensor,
    fmt: Fmt,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    axis: int | None = None,
) -> Work:
    check_float(x)
    fmt = read(fmt)
    rule = _rule(fmt, (rounding, overflow, seed, offset))
    along = _along(axis, fmt, x)
    return (
        [(x.shape, torch.float32)],
        x,
        lambda out: _on(x, fmt, "quantize")(as_source(x), fmt, _drawn(rule), out, **along),
    )


@operator("(Tensor x, SymInt shift) -> Tensor", vmap=all_at_once)
def scale_pow2(x: Tensor, shift: int) -> Work:
    check_float(x)
    scale = function("scale_pow2", Format.BACKENDS, _device(x))
    return [(x.shape, torch.float32)], x, lambda out: scale(as_source(x), int(shift), out)


@operator("(Tensor x) -> Tensor", vmap=one_at_a_time)
def max_exponent(x: Tensor) -> Work:
    check_float(x)

    def fill(out: Tensor) -> None:
        exponent = max_exponent_of(x)
        out.fill_(NO_EXPONENT if exponent is None else exponent)

    return [((), torch.int64)], x if x.is_meta else _ON_HOST, fill


def max_exponent_of(x: Tensor) -> int | None:
    check_float(x)
    return function("max_exponent", Format.BACKENDS, _device(x))(as_source(x))


# ---- Hadamard transforms


def _remember_transform(ctx, inputs, output) -> None:
    x, ctx.size, ctx.seed, ctx.axis, ctx.inverse = inputs
    ctx.dtype = x.dtype


# The matrix is orthonormal: its transpose is its inverse.
HADAMARD = Derivative(
    _remember_transform,
    lambda ctx, grad: (
        hadamard(grad, ctx.size, ctx.seed, ctx.axis, not ctx.inverse).to(ctx.dtype),
        *[None] * 4,
    ),
    lambda ctx, tangent, *_: hadamard(tangent, ctx.size, ctx.seed, ctx.axis, ctx.inverse),
)


@operator(
    "(Tensor x, int size, SymInt? seed, int axis, bool inverse) -> Tensor",
    vmap=along_an_axis,
    derivative=HADAMARD,
)
def hadamard(x: Tensor, size: int, seed: int | None, axis: int, inverse: bool) -> Work:
    check_float(x)
    if type(size) is not int or size < 1 or size & size - 1:
        raise ValueError(f"hadamard takes a size that is a power of two; got {size!r}")
    if axis is None:
        raise TypeError("hadamard needs an axis; got None")
    axis = check_axis(axis, x if x.dim() else x.view(1))

    def fill(out: Tensor) -> None:
        if not x.numel():
            return
        shape = x.shape or (1,)
        middle = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        source = quantize.compute(x, "fp32") if x.dtype is torch.float64 else as_source(x)
        if size <= shape[axis]:
            transform = function("hadamard", Format.BACKENDS, _device(x))
            transform(source.view(middle), size, seed, inverse, out.view(middle))
        else:  # no whole block
            scale_pow2.compute(source, 0, out=out)

    return [(x.shape, torch.float32)], x, fill


# ---- codes


@operator("(Tensor x, str fmt, int? axis=None) -> Tensor[]", vmap=all_at_once)
def encode(x: Tensor, fmt: Fmt, axis: int | None = None) -> Work:
    """Codes, and behind them scales if the format has them."""
    check_float(x)
    fmt = read(fmt)
    along = _along(axis, fmt, x)
    shapes = [(x.shape, code_dtype(fmt)), *scale_shapes(fmt, x.shape, **along)]
    return shapes, x, lambda *out: _on(x, fmt, "encode")(as_source(x), fmt, *out, **along)


@operator("(Tensor[] encoded, str fmt, int? axis=None) -> Tensor", vmap=all_at_once)
def decode(encoded: Sequence[Tensor], fmt: Fmt, axis: int | None = None) -> Work:
    fmt = read(fmt)
    codes = encoded[0]
    along = _along(axis, fmt, codes) if isinstance(codes, Tensor) else {}
    check_codes(encoded, fmt, **along)
    return (
        [(codes.shape, torch.float32)],
        codes,
        lambda out: _on(codes, fmt, "decode")(*map(dense, encoded), fmt, out, **along),
    )


@operator(
    "(Tensor x, str fmt, SymInt shift, str rounding, str overflow, SymInt? seed, SymInt offset, int? axis=None)"
    " -> Tensor",
    vmap=one_at_a_time,
    draws=True,
)
def pack(
    x: Tensor,
    fmt: Fmt,
    shift: int,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    axis: int | None = None,
) -> Work:
    check_float(x)
    fmt = read(fmt)
    rule, along = _rule(fmt, (rounding, overflow, seed, offset), shift), _along(axis, fmt, x)
    return (
        [((fmt.packed_size(x.shape, **along),), torch.uint8)],
        x,
        lambda out: _on(x, fmt, "pack")(as_source(x), fmt, int(shift), _drawn(rule), out, **along),
    )


@operator(
    "(Tensor data, str fmt, SymInt[] shape, SymInt shift, int? axis=None) -> Tensor", vmap=one_at_a_time
)
def unpack(data: Tensor, fmt: Fmt, shape: Sequence[int], shift: int, axis: int | None = None) -> Work:
    fmt = read(fmt)
    along = _along(axis, fmt, shape)
    check_bytes("unpack", data, shape, fmt, **along)
    _rule(fmt, (), shift)
    return (
        [(shape, torch.float32)],
        data,
        lambda out: _on(data, fmt, "unpack")(dense(data), fmt, int(shift), out, **along),
    )


# ---- sums


@operator(
    "(Tensor[] tensors, str fmt, bool kahan, str rounding, str overflow, SymInt? seed, SymInt offset, "
    "str order='sequential', int? width=None) -> Tensor",
    vmap=all_at_once,
    draws=True,
)
def accumulate(
    tensors: Sequence[Tensor],
    fmt: Fmt,
    kahan: bool,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    order: str = at_once.SEQUENTIAL,
    width: int | None = None,
) -> Work:
    for tensor in tensors:
        check_float(tensor)
    check_terms("accumulate", tensors)
    at_once.check_order(order, width, kahan, len(tensors))
    if order != at_once.SEQUENTIAL:
        at_once.check_narrow(tensors)
    first, fmt = tensors[0], read(fmt)
    check_knows("accumulate", fmt)
    rule = _rule(fmt, (rounding, overflow, seed, offset))

    def fill(out: Tensor) -> None:
        terms = [*map(as_source, tensors)]
        if order == at_once.SEQUENTIAL:
            _on(first, fmt, "accumulate")(terms, fmt, kahan, _drawn(rule), out)
        else:
            at_once.accumulate(terms, fmt, width, _drawn(rule), out)

    return [(first.shape, torch.float32)], first, fill


@operator(
    "(Tensor[] payloads, str fmt, SymInt n, bool kahan, str rounding, str overflow, SymInt? seed, SymInt offset, "
    "str order='sequential', int? width=None) -> Tensor",
    vmap=one_at_a_time,
    draws=True,
)
def accumulate_packed(
    payloads: Sequence[Tensor],
    fmt: Fmt,
    n: int,
    kahan: bool,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    order: str = at_once.SEQUENTIAL,
    width: int | None = None,
) -> Work:
    fmt = read(fmt)
    check_knows("accumulate_packed", fmt)
    rule = _rule(fmt, (rounding, overflow, seed, offset))
    for payload in payloads:
        check_bytes("accumulate_packed", payload, n, fmt)
    check_terms("accumulate_packed", payloads)
    at_once.check_order(order, width, kahan, len(payloads))
    first = payloads[0]

    def fill(out: Tensor) -> None:
        terms = [*map(dense, payloads)]
        if order == at_once.SEQUENTIAL:
            _on(first, fmt, "accumulate_packed")(terms, fmt, n, kahan, _drawn(rule), out)
        else:
            at_once.accumulate_packed(terms, fmt, n, width, _drawn(rule), out)

    return [(first.shape, torch.uint8)], first, fill


# ---- products


def _remember_factors(ctx, inputs, output) -> None:
    a, b, _, ctx.kahan, ctx.backward, *ctx.seed = inputs
    ctx.save_for_backward(a, b)


def _gradients_of_factors(ctx, grad: Tensor):
    a, b = ctx.saved_tensors
    rest = ctx.backward, ctx.kahan, ctx.backward, *ctx.seed
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = matmul(grad, b.mT, *rest).sum_to_size(a.shape).to(a.dtype)
    if ctx.needs_input_grad[1]:
        grad_b = matmul(a.mT, grad, *rest).sum_to_size(b.shape).to(b.dtype)
    return grad_a, grad_b, None, None, None, *(None for _ in ctx.seed)


@operator(
    "(Tensor a, Tensor b, str accumulator, bool kahan, str backward, SymInt? seed=None) -> Tensor",
    vmap=matrices,
    derivative=Derivative(_remember_factors, _gradients_of_factors),
    draws=True,
)
def matmul(
    a: Tensor,
    b: Tensor,
    accumulator: Accumulator | Fmt,
    kahan: bool,
    backward: Accumulator | Fmt,
    seed: int | None = None,
) -> Work:
    """Matrices or batches of them; leading dimensions broadcast."""
    how, carries = read_accumulator(accumulator, kahan)
    for each in (how, read_accumulator(backward, kahan)[0]):
        check_knows("matmul", each)
    check_matrices(a, b)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])

    def fill(out: Tensor) -> None:
        out_BxMxN = out.view(math.prod(batch), *shape[-2:])
        summed = _drawn(replace(how.rule, seed=seed)) if isinstance(how, Accumulator) else carries
        _on(a, how, "matmul")(_as_batch(a, batch), _as_batch(b, batch), how, summed, out_BxMxN)

    return [(shape, torch.float32)], a, fill


def _as_batch(x: Tensor, batch: torch.Size) -> Tensor:
    """(B or 1) x rows x columns, dense; 1 where all of the batch shares one matrix."""
    if math.prod(x.shape[:-2]) == 1:
        return as_source(x).view(1, *x.shape[-2:])
    return as_source(x.expand(*batch, *x.shape[-2:])).view(math.prod(batch), *x.shape[-2:])
