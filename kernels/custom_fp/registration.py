"""The operators as torch.library custom ops, torch.ops.custom_fp.*: what autograd, vmap and torch.compile see.

Each op runs the eager function of its name; its fake kernel runs the same checks and knows shapes and dtypes.
Gradients: `quantize` passes them straight through, forwards and backwards (Bengio, Leonard and Courville 2013,
arXiv:1308.3432, section 4); `matmul` multiplies them with an accumulator of their own. The other operators have none.

Ops that may draw a seed are tagged nondeterministic_seeded, for a compiler would make one of two equal calls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.library import custom_op
from torch.nn import Parameter

from custom_fp import eager
from custom_fp.checks import (
    check_bytes,
    check_codes,
    check_float,
    check_matrices,
    check_rule,
    check_terms,
    code_dtype,
    packed_size,
)
from custom_fp.formats.scalar import Format


def is_plain(*tensors: Tensor) -> bool:
    """Whether nothing stands between the caller and the memory: no compiler, dispatch mode, torch.func, subclass."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(type(tensor) in _PLAIN for tensor in tensors)


_PLAIN = (Tensor, Parameter, type(None))  # None: no `out`


def forward_level() -> int:
    """The depth of torch.autograd.forward_ad's dual levels, from 0; -1 outside."""
    return torch.autograd.forward_ad._current_level


def one_at_a_time(op) -> None:
    """vmap of an op: one call for each of the batch."""

    def pick(argument, dim, i):
        if isinstance(dim, list | tuple):
            return [pick(a, d, i) for a, d in zip(argument, dim, strict=True)]
        return argument if dim is None else argument.select(dim, i)

    def rule(info, in_dims, *arguments):
        each = [
            op(*(pick(a, d, i) for a, d in zip(arguments, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        if isinstance(each[0], Tensor):
            return torch.stack(each), 0
        return tuple(torch.stack(parts) for parts in zip(*each, strict=True)), (0,) * len(each[0])

    op.register_vmap(rule)


def _all_at_once(op) -> None:
    """vmap of an op of one tensor, elementwise."""
    op.register_vmap(lambda info, in_dims, x, *rest: (op(x, *rest), in_dims[0]))


# torch removes equal calls of ops without this tag, and so would make one draw of two.
_DRAWS = (torch.Tag.nondeterministic_seeded,)


# ---- quantize --------------------------------------------------------------------------------------------------

# Registered by hand: `custom_op` wraps it in Python that costs a small tensor more than all else. The autograd kernel,
# which every call meets, runs the eager function itself where nothing is to be recorded.
vars(torch.ops).pop("custom_fp", None)  # what autoload.py put there
_library = torch.library.Library("custom_fp", "FRAGMENT")
_library.define(
    "quantize(Tensor x, str fmt, str rounding, str overflow, int? seed, int offset=0) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, *_DRAWS),
)
_library.impl("quantize", eager.quantize, "CompositeExplicitAutograd")


def _quantize_autograd(x, fmt, rounding, overflow, seed, offset=0):
    if forward_level() >= 0 or (torch.is_grad_enabled() and x.requires_grad):
        return _QuantizeBelow.apply(x, fmt, rounding, overflow, seed, offset)
    if is_plain(x):
        return eager.quantize(x, fmt, rounding, overflow, seed, offset)
    return _quantize_below(x, fmt, rounding, overflow, seed, offset)


def _quantize_below(*arguments):
    """The op, past its autograd kernel."""
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.custom_fp.quantize.default(*arguments)


_library.impl("quantize", _quantize_autograd, "Autograd")


@torch.library.register_fake("custom_fp::quantize", lib=_library)
def _(x, fmt, rounding, overflow, seed, offset=0):
    Format.parse(fmt)
    check_float(x)
    check_rule(rounding, overflow)
    return torch.empty(x.shape, dtype=torch.float32, device=x.device)


def _remember_dtype(ctx, inputs, output):
    ctx.dtype = inputs[0].dtype


def _straight_through(ctx, grad):
    return grad.to(ctx.dtype), None, None, None, None, None


def straight_tangent(ctx, tangent, *_):
    return tangent.to(torch.float32, copy=True)


def _quantize_vmap(info, in_dims, x, fmt, rounding, overflow, seed, offset=0):
    # Elementwise, so the whole batch at once. Stochastic rounding then draws by the index in the batched tensor.
    return Quantize.apply(x, fmt, rounding, overflow, seed, offset), in_dims[0]


torch.library.register_vmap("custom_fp::quantize", _quantize_vmap, lib=_library)


class _QuantizeBelow(torch.autograd.Function):
    """What the op's autograd kernel records."""

    forward = staticmethod(_quantize_below)
    setup_context = staticmethod(_remember_dtype)
    backward = staticmethod(_straight_through)
    jvp = staticmethod(straight_tangent)


class Quantize(torch.autograd.Function):
    """The op where autograd or torch.func watches: torch.func.grad does not see the autograd of custom ops."""

    @staticmethod
    def forward(x, fmt, rounding, overflow, seed, offset):
        run = eager.quantize if is_plain(x) else torch.ops.custom_fp.quantize
        return run(x, fmt, rounding, overflow, seed, offset)

    setup_context = staticmethod(_remember_dtype)
    backward = staticmethod(_straight_through)
    jvp = staticmethod(straight_tangent)
    vmap = staticmethod(_quantize_vmap)


@custom_op("custom_fp::quantize_out", mutates_args=("out",), tags=_DRAWS)
def quantize_out(
    x: Tensor, fmt: str, rounding: str, overflow: str, seed: int | None, offset: int, out: Tensor
) -> None:
    eager.quantize(x, fmt, rounding, overflow, seed, offset, out)


@quantize_out.register_fake
def _(x, fmt, rounding, overflow, seed, offset, out):
    Format.parse(fmt)
    check_float(x)
    check_rule(rounding, overflow)


@custom_op("custom_fp::scale_pow2", mutates_args=())
def scale_pow2(x: Tensor, shift: int) -> Tensor:
    return eager.scale_pow2(x, shift)


@scale_pow2.register_fake
def _(x, shift):
    check_float(x)
    return torch.empty(x.shape, dtype=torch.float32, device=x.device)


NO_EXPONENT = -(1 << 31)  # of a tensor of zeros


@custom_op("custom_fp::max_exponent", mutates_args=())
def max_exponent(x: Tensor) -> Tensor:
    exponent = eager.max_exponent(x)
    return torch.tensor(NO_EXPONENT if exponent is None else exponent)


@max_exponent.register_fake
def _(x):
    check_float(x)
    return torch.empty((), dtype=torch.int64, device="meta" if x.is_meta else "cpu")


one_at_a_time(max_exponent)


def read_integer(operator: str, x: Tensor) -> int:
    """The value of an integer tensor; RuntimeError where there is none to read."""
    try:
        return x.item()
    except RuntimeError as error:
        raise RuntimeError(
            f"{operator} returns a Python integer and needs a tensor's values here: {error}"
        ) from None


# ---- codes -----------------------------------------------------------------------------------------------------


@custom_op("custom_fp::encode", mutates_args=())
def encode(x: Tensor, fmt: str) -> Tensor:
    return eager.encode(x, fmt)


@encode.register_fake
def _(x, fmt):
    check_float(x)
    return torch.empty(x.shape, dtype=code_dtype(Format.parse(fmt)), device=x.device)


@custom_op("custom_fp::decode", mutates_args=())
def decode(codes: Tensor, fmt: str) -> Tensor:
    return eager.decode(codes, fmt)


@decode.register_fake
def _(codes, fmt):
    Format.parse(fmt)
    check_codes(codes)
    return torch.empty(codes.shape, dtype=torch.float32, device=codes.device)


@custom_op("custom_fp::pack", mutates_args=(), tags=_DRAWS)
def pack(
    x: Tensor, fmt: str, shift: int, rounding: str, overflow: str, seed: int | None, offset: int
) -> Tensor:
    return eager.pack(x, fmt, shift, rounding, overflow, seed, offset)


@pack.register_fake
def _(x, fmt, shift, rounding, overflow, seed, offset):
    check_float(x)
    check_rule(rounding, overflow)
    return torch.empty(packed_size(x.numel(), fmt), dtype=torch.uint8, device=x.device)


@custom_op("custom_fp::unpack", mutates_args=())
def unpack(data: Tensor, fmt: str, shape: Sequence[int], shift: int) -> Tensor:
    return eager.unpack(data, fmt, shape, shift)


@unpack.register_fake
def _(data, fmt, shape, shift):
    check_bytes("unpack", data, math.prod(shape), Format.parse(fmt))
    return torch.empty(shape, dtype=torch.float32, device=data.device)


# ---- sums ------------------------------------------------------------------------------------------------------


@custom_op("custom_fp::accumulate", mutates_args=(), tags=_DRAWS)
def accumulate(
    tensors: Sequence[Tensor],
    fmt: str,
    kahan: bool,
    rounding: str,
    overflow: str,
    seed: int | None,
    offset: int,
) -> Tensor:
    return eager.accumulate(tensors, fmt, kahan, rounding, overflow, seed, offset)


@accumulate.register_fake
def _(tensors, fmt, kahan, rounding, overflow, seed, offset):
    Format.parse(fmt)
    check_terms("accumulate", tensors)
    check_rule(rounding, overflow)
    return torch.empty(tensors[0].shape, dtype=torch.float32, device=tensors[0].device)


@custom_op("custom_fp::accumulate_packed", mutates_args=(), tags=_DRAWS)
def accumulate_packed(
    payloads: Sequence[Tensor],
    fmt: str,
    n: int,
    kahan: bool,
    rounding: str,
    overflow: str,
    seed: int | None,
    offset: int,
) -> Tensor:
    return eager.accumulate_packed(payloads, fmt, n, kahan, rounding, overflow, seed, offset)


@accumulate_packed.register_fake
def _(payloads, fmt, n, kahan, rounding, overflow, seed, offset):
    for payload in payloads:
        check_bytes("accumulate_packed", payload, n, Format.parse(fmt))
    check_rule(rounding, overflow)
    return torch.empty_like(payloads[0])


def _accumulate_vmap(info, in_dims, tensors, *rest):
    # Elementwise, so the whole batch at once, as in quantize.
    batched = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(tensors, in_dims[0], strict=True)
    ]
    return accumulate(batched, *rest), 0


accumulate.register_vmap(_accumulate_vmap)
for _op in (scale_pow2, encode, decode):
    _all_at_once(_op)
for _op in (pack, unpack, accumulate_packed):
    one_at_a_time(_op)


# ---- matmul ----------------------------------------------------------------------------------------------------


@custom_op("custom_fp::matmul", mutates_args=())
def matmul(a: Tensor, b: Tensor, accumulator: str, kahan: bool, backward: str) -> Tensor:
    return eager.matmul(a, b, accumulator, kahan)


@matmul.register_fake
def _(a, b, accumulator, kahan, backward):
    Format.parse(accumulator)
    Format.parse(backward)
    check_matrices(a, b)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return torch.empty((*batch, a.shape[-2], b.shape[-1]), dtype=torch.float32, device=a.device)


def _remember_factors(ctx, inputs, output):
    a, b, _, ctx.kahan, ctx.backward = inputs
    ctx.save_for_backward(a, b)


def _matmul_backward(ctx, grad):
    a, b = ctx.saved_tensors
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = Matmul.apply(grad, b.mT, ctx.backward, ctx.kahan, ctx.backward)
        grad_a = grad_a.sum_to_size(a.shape).to(a.dtype)
    if ctx.needs_input_grad[1]:
        grad_b = Matmul.apply(a.mT, grad, ctx.backward, ctx.kahan, ctx.backward)
        grad_b = grad_b.sum_to_size(b.shape).to(b.dtype)
    return grad_a, grad_b, None, None, None


def _matmul_vmap(info, in_dims, a, b, accumulator, kahan, backward):
    a, b = _batch_first(a, in_dims[0], b, in_dims[1])
    return Matmul.apply(a, b, accumulator, kahan, backward), 0


matmul.register_autograd(_matmul_backward, setup_context=_remember_factors)
matmul.register_vmap(_matmul_vmap)


class Matmul(torch.autograd.Function):
    """The op where autograd or torch.func watches, as `Quantize`."""

    @staticmethod
    def forward(a, b, accumulator, kahan, backward):
        if is_plain(a, b):
            return eager.matmul(a, b, accumulator, kahan)
        return torch.ops.custom_fp.matmul(a, b, accumulator, kahan, backward)

    setup_context = staticmethod(_remember_factors)
    backward = staticmethod(_matmul_backward)
    vmap = staticmethod(_matmul_vmap)


def _batch_first(a: Tensor, a_dim: int | None, b: Tensor, b_dim: int | None) -> tuple[Tensor, Tensor]:
    """The vmapped dimension in front of both, and ranks made equal behind it."""
    a = a.unsqueeze(0) if a_dim is None else a.movedim(a_dim, 0)
    b = b.unsqueeze(0) if b_dim is None else b.movedim(b_dim, 0)
    rank = max(a.dim(), b.dim())
    a = a.reshape(a.shape[0], *[1] * (rank - a.dim()), *a.shape[1:])
    b = b.reshape(b.shape[0], *[1] * (rank - b.dim()), *b.shape[1:])
    return a, b
