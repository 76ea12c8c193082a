"""The table of operators: how arguments are checked, which shapes results have, and which backend function runs.

Each function in this table checks its arguments and returns a `Plan`: the shapes and dtypes of the results, a tensor on
their device, and a function that writes them. registration.py turns it into an operator that works with PyTorch's
transforms. ops.py contains the public functions and their documentation.

Backend functions receive dense tensors of float32 or float64. The backends `native`, `cuda` and `reference` have the
same functions with the same arguments, and so do the backends of formats with scales (scaled/). To add an operator, add
it here, in ops.py and in each backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.accumulator import read as read_accumulator
from custom_fp.accumulators import fused_sum
from custom_fp.backends import check_knows, function
from custom_fp.formats.names import read
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.operators.batching import along_axis, elementwise, in_order, matrix_product, one_by_one
from custom_fp.operators.checks import (
    as_source,
    check_axis,
    check_bytes,
    check_codes,
    check_dense,
    check_float,
    check_integer,
    check_matrices,
    check_terms,
    code_dtype,
    dense,
    scale_shapes,
)
from custom_fp.operators.registration import Derivative, Plan, operator
from custom_fp.rounding import Rounding, Rule

FormatLike = NumberFormat | str  # a format, its name, or what `names.spelled` returns for it

NO_EXPONENT = -(1 << 31)  # torch.ops.custom_fp.max_exponent returns this if all finite elements are zero
_ON_CPU = torch.empty(0, device="cpu")


def _backend_function(name: str, x: Tensor, fmt: Any) -> Callable[..., None]:
    return function(name, fmt.backends, _device_type(x))


def _device_type(x: Tensor) -> str:
    return "cpu" if x.is_cpu else x.device.type  # is_cpu is faster than device.type


def _read_rule(fmt: NumberFormat, parts: Sequence[Any], shift: int = 0) -> Rule:
    """Return the rule of (rounding, overflow, seed, offset), or raise ValueError if the format does not support it."""
    check_integer("shift", shift)
    check_integer("offset", parts[3] if len(parts) > 3 else 0)
    try:
        rule = Rule.of(*parts)
    except TypeError:  # the symbolic integers of torch.compile cannot be hashed
        rule = Rule(*parts)
    if rule.rounding is not Rounding.NEAREST_EVEN and not fmt.takes_rounding:
        raise ValueError(
            f"rounding is {rule.rounding.value!r}, but {fmt} rounds to nearest only; use nearest_even"
        )
    if shift and fmt.has_scales:
        raise ValueError(f"shift is {shift}, but {fmt} has its own scales; allowed: 0")
    return rule


def _axis_kwarg(axis: int | None, fmt: NumberFormat, x: Tensor | Sequence[int]) -> dict[str, int]:
    """Return the axis as a keyword argument for a backend function, or an empty dict if it has no effect.

    Args:
        axis: The axis that the caller passed.
        fmt: The number format.
        x: The tensor, or its shape.

    Raises:
        ValueError: The tensor has no such axis, or cannot be cut into the blocks of this format.
    """
    shape = x.shape if isinstance(x, Tensor) else x
    axis = check_axis(axis, shape)
    if not fmt.has_scales:
        return {}
    if not fmt.is_flat:
        fmt.layout(shape, axis)
    return {} if axis is None else {"axis": axis}


def _with_seed(rule: Rule) -> Rule:
    """Return the rule, with a seed from torch's default generator if rounding is stochastic and no seed is set."""
    if rule.is_stochastic and rule.seed is None:
        return replace(rule, seed=int(torch.randint(-(2**63), 2**63 - 1, ()).item()))
    return rule


def _save_dtype(ctx: Any, inputs: tuple, output: Any) -> None:
    ctx.dtype, ctx.other_inputs = inputs[0].dtype, len(inputs) - 1


# The straight-through gradient of Bengio, Leonard and Courville 2013 (arXiv:1308.3432), section 4, for both reverse-
# and forward-mode differentiation.
STRAIGHT_THROUGH = Derivative(
    _save_dtype,
    lambda ctx, grad: (grad.to(ctx.dtype), *[None] * ctx.other_inputs),
    lambda ctx, tangent, *_: tangent.to(torch.float32, copy=True),
)


@operator(
    "(Tensor x, str fmt, str rounding, str overflow, SymInt? seed, SymInt offset=0, int? axis=None) -> Tensor",
    vmap=elementwise,
    derivative=STRAIGHT_THROUGH,
    draws=True,
)
def quantize(
    x: Tensor,
    fmt: FormatLike,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    axis: int | None = None,
) -> Plan:
    check_float(x)
    fmt = read(fmt)
    rule = _read_rule(fmt, (rounding, overflow, seed, offset))
    axis_kwarg = _axis_kwarg(axis, fmt, x)

    def fill(out: Tensor) -> None:
        compute = _backend_function("quantize", x, fmt)
        compute(as_source(x), fmt, _with_seed(rule), out, **axis_kwarg)

    return [(x.shape, torch.float32)], x, fill


@operator(
    "(Tensor x, Tensor(a!) magnitudes, str fmt, str rounding, bool records, SymInt? seed=None) -> Tensor",
    vmap=in_order,
    derivative=STRAIGHT_THROUGH,
    draws=True,
)
def quantize_delayed(
    x: Tensor,
    magnitudes: Tensor,
    fmt: FormatLike,
    rounding: str = "nearest_even",
    records: bool = True,
    seed: int | None = None,
) -> Plan:
    check_float(x)
    fmt = read(fmt)
    check_knows("quantize_delayed", fmt)
    rule = _read_rule(fmt, (rounding, "infinity", seed, 0))

    def fill(out: Tensor) -> None:
        if x.is_meta:
            return
        compute = _backend_function("quantize_delayed", x, fmt)
        compute(as_source(x), magnitudes, fmt, records, _with_seed(rule), out)

    return [(x.shape, torch.float32)], x, fill


@operator("(Tensor x, SymInt shift) -> Tensor", vmap=elementwise)
def scale_pow2(x: Tensor, shift: int) -> Plan:
    check_float(x)
    check_integer("shift", shift)
    scale = function("scale_pow2", Format.BACKENDS, _device_type(x))
    return [(x.shape, torch.float32)], x, lambda out: scale(as_source(x), int(shift), out)


@operator("(Tensor x) -> Tensor", vmap=one_by_one)
def max_exponent(x: Tensor) -> Plan:
    check_float(x)

    def fill(out: Tensor) -> None:
        exponent = compute_max_exponent(x)
        out.fill_(NO_EXPONENT if exponent is None else exponent)

    return [((), torch.int64)], x if x.is_meta else _ON_CPU, fill


def compute_max_exponent(x: Tensor) -> int | None:
    """Return the result of `custom_fp.max_exponent` for a tensor whose memory can be read."""
    check_float(x)
    return function("max_exponent", Format.BACKENDS, _device_type(x))(as_source(x))


# ---- Hadamard transforms


def _save_transform(ctx: Any, inputs: tuple, output: Any) -> None:
    x, ctx.size, ctx.seed, ctx.axis, ctx.inverse = inputs
    ctx.dtype = x.dtype


def _hadamard_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    # The matrix is orthonormal, so its transpose is its inverse.
    grad_x = hadamard(grad, ctx.size, ctx.seed, ctx.axis, not ctx.inverse).to(ctx.dtype)
    return grad_x, None, None, None, None


def _hadamard_jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
    return hadamard(tangent, ctx.size, ctx.seed, ctx.axis, ctx.inverse)


@operator(
    "(Tensor x, int size, SymInt? seed, int axis, bool inverse) -> Tensor",
    vmap=along_axis,
    derivative=Derivative(_save_transform, _hadamard_backward, _hadamard_jvp),
)
def hadamard(x: Tensor, size: int, seed: int | None, axis: int, inverse: bool) -> Plan:
    check_float(x)
    if type(size) is not int or size < 1 or size & size - 1:
        raise ValueError(f"the size of hadamard must be a power of two; got {size!r}")
    if axis is None:
        raise TypeError("hadamard requires an axis; got None")
    dim = check_axis(axis, x if x.dim() else x.view(1))
    assert dim is not None

    def fill(out: Tensor) -> None:
        if not x.numel():
            return
        shape = x.shape or (1,)
        rows_length_columns = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
        source = quantize.compute(x, "fp32") if x.dtype is torch.float64 else as_source(x)
        if size <= shape[dim]:
            transform = function("hadamard", Format.BACKENDS, _device_type(x))
            transform(source.view(rows_length_columns), size, seed, inverse, out.view(rows_length_columns))
        else:  # the axis is shorter than a block
            scale_pow2.compute(source, 0, out=out)

    return [(x.shape, torch.float32)], x, fill


# ---- encoding and packing


@operator("(Tensor x, str fmt, int? axis=None) -> Tensor[]", vmap=elementwise)
def encode(x: Tensor, fmt: FormatLike, axis: int | None = None) -> Plan:
    check_float(x)
    fmt = read(fmt)
    axis_kwarg = _axis_kwarg(axis, fmt, x)
    shapes = [(x.shape, code_dtype(fmt)), *scale_shapes(fmt, x.shape, **axis_kwarg)]

    def fill(*out: Tensor) -> None:
        _backend_function("encode", x, fmt)(as_source(x), fmt, *out, **axis_kwarg)

    return shapes, x, fill


@operator("(Tensor[] encoded, str fmt, int? axis=None) -> Tensor", vmap=elementwise)
def decode(encoded: Sequence[Tensor], fmt: FormatLike, axis: int | None = None) -> Plan:
    fmt = read(fmt)
    codes = encoded[0]
    for part in encoded:
        if isinstance(part, Tensor):
            check_dense(part)
    axis_kwarg = _axis_kwarg(axis, fmt, codes) if isinstance(codes, Tensor) else {}
    check_codes(encoded, fmt, **axis_kwarg)

    def fill(out: Tensor) -> None:
        _backend_function("decode", codes, fmt)(*map(dense, encoded), fmt, out, **axis_kwarg)

    return [(codes.shape, torch.float32)], codes, fill


@operator(
    "(Tensor x, str fmt, SymInt shift, str rounding, str overflow, SymInt? seed, SymInt offset, int? axis=None)"
    " -> Tensor",
    vmap=one_by_one,
    draws=True,
)
def pack(
    x: Tensor,
    fmt: FormatLike,
    shift: int,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    axis: int | None = None,
) -> Plan:
    check_float(x)
    fmt = read(fmt)
    rule = _read_rule(fmt, (rounding, overflow, seed, offset), shift)
    axis_kwarg = _axis_kwarg(axis, fmt, x)

    def fill(out: Tensor) -> None:
        compute = _backend_function("pack", x, fmt)
        compute(as_source(x), fmt, int(shift), _with_seed(rule), out, **axis_kwarg)

    return [((fmt.packed_size(x.shape, **axis_kwarg),), torch.uint8)], x, fill


@operator("(Tensor data, str fmt, SymInt[] shape, SymInt shift, int? axis=None) -> Tensor", vmap=one_by_one)
def unpack(data: Tensor, fmt: FormatLike, shape: Sequence[int], shift: int, axis: int | None = None) -> Plan:
    fmt = read(fmt)
    axis_kwarg = _axis_kwarg(axis, fmt, shape)
    check_bytes("unpack", data, shape, fmt, **axis_kwarg)
    _read_rule(fmt, (), shift)

    def fill(out: Tensor) -> None:
        _backend_function("unpack", data, fmt)(dense(data), fmt, int(shift), out, **axis_kwarg)

    return [(shape, torch.float32)], data, fill


# ---- sums


@operator(
    "(Tensor[] tensors, str fmt, bool kahan, str rounding, str overflow, SymInt? seed, SymInt offset, "
    "str order='sequential', int? width=None) -> Tensor",
    vmap=elementwise,
    draws=True,
)
def accumulate(
    tensors: Sequence[Tensor],
    fmt: FormatLike,
    kahan: bool,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    order: str = fused_sum.SEQUENTIAL,
    width: int | None = None,
) -> Plan:
    for tensor in tensors:
        check_float(tensor)
    check_terms("accumulate", tensors)
    fused_sum.check_order(order, width, kahan, len(tensors))
    if order != fused_sum.SEQUENTIAL:
        fused_sum.check_narrow(tensors)
    first, fmt = tensors[0], read(fmt)
    check_knows("accumulate", fmt)
    rule = _read_rule(fmt, (rounding, overflow, seed, offset))

    def fill(out: Tensor) -> None:
        terms = [*map(as_source, tensors)]
        if order == fused_sum.SEQUENTIAL:
            _backend_function("accumulate", first, fmt)(terms, fmt, kahan, _with_seed(rule), out)
        else:
            fused_sum.accumulate(terms, fmt, width, _with_seed(rule), out)

    return [(first.shape, torch.float32)], first, fill


@operator(
    "(Tensor[] payloads, str fmt, SymInt n, bool kahan, str rounding, str overflow, SymInt? seed, SymInt offset, "
    "str order='sequential', int? width=None) -> Tensor",
    vmap=one_by_one,
    draws=True,
)
def accumulate_packed(
    payloads: Sequence[Tensor],
    fmt: FormatLike,
    n: int,
    kahan: bool,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    order: str = fused_sum.SEQUENTIAL,
    width: int | None = None,
) -> Plan:
    fmt = read(fmt)
    check_knows("accumulate_packed", fmt)
    rule = _read_rule(fmt, (rounding, overflow, seed, offset))
    for payload in payloads:
        check_bytes("accumulate_packed", payload, n, fmt)
    check_terms("accumulate_packed", payloads)
    fused_sum.check_order(order, width, kahan, len(payloads))
    first = payloads[0]

    def fill(out: Tensor) -> None:
        terms = [*map(dense, payloads)]
        if order == fused_sum.SEQUENTIAL:
            _backend_function("accumulate_packed", first, fmt)(terms, fmt, n, kahan, _with_seed(rule), out)
        else:
            fused_sum.accumulate_packed(terms, fmt, n, width, _with_seed(rule), out)

    return [(first.shape, torch.uint8)], first, fill


# ---- matrix products


def _save_factors(ctx: Any, inputs: tuple, output: Any) -> None:
    a, b, _, ctx.kahan, ctx.backward, *ctx.seed = inputs
    ctx.save_for_backward(a, b)


def _factor_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
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
    vmap=matrix_product,
    derivative=Derivative(_save_factors, _factor_gradients),
    draws=True,
)
def matmul(
    a: Tensor,
    b: Tensor,
    accumulator: Accumulator | FormatLike,
    kahan: bool,
    backward: Accumulator | FormatLike,
    seed: int | None = None,
) -> Plan:
    how, is_kahan = read_accumulator(accumulator, kahan)
    for checked in (how, read_accumulator(backward, kahan)[0]):
        check_knows("matmul", checked)
    check_matrices(a, b)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])

    def fill(out: Tensor) -> None:
        out_BxMxN = out.view(math.prod(batch), *shape[-2:])
        rule = _with_seed(replace(how.rule, seed=seed)) if isinstance(how, Accumulator) else is_kahan
        _backend_function("matmul", a, how)(_as_batch(a, batch), _as_batch(b, batch), how, rule, out_BxMxN)

    return [(shape, torch.float32)], a, fill


def _as_batch(x: Tensor, batch: torch.Size) -> Tensor:
    """Return a dense tensor of shape (B, rows, columns), or (1, rows, columns) if all of the batch is one matrix."""
    if math.prod(x.shape[:-2]) == 1:
        return as_source(x).view(1, *x.shape[-2:])
    return as_source(x.expand(*batch, *x.shape[-2:])).view(math.prod(batch), *x.shape[-2:])
