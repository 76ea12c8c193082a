"""Registration of the operators in table.py with torch.library, as torch.ops.custom_fp.NAME.

Each function in table.py describes one operator: the shapes and dtypes of its results, and how to compute them. From
this description, `Operator` creates the kernel for real tensors, the fake kernel, the vmap rule and the autograd
kernel. torch.library has no type for number formats, so formats are passed as text (`names.spelled`).

Operators that may draw a random seed are tagged nondeterministic_seeded. Otherwise, a compiler would merge two equal
calls. `torch.library.custom_op` is not used, because its Python overhead exceeds the rest of a small call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.library import Library, register_fake, register_vmap
from torch.nn import Parameter

from custom_fp import accumulator
from custom_fp.accumulator import Accumulator
from custom_fp.formats.names import read, spelled
from custom_fp.formats.protocol import NumberFormat
from custom_fp.operators.checks import can_be_written, check_dense, check_out
from custom_fp.operators.dtensors import is_sharded, shardable

Shapes = Sequence[tuple[Sequence[int], torch.dtype]]
Plan = tuple[Shapes, Tensor, Callable[..., None]]
"""The shape and dtype of each result, a tensor on the device of the results, and a function that writes the results."""

_FORMATS = ("fmt",)
_ACCUMULATORS = ("accumulator", "backward")
_PLAIN_TYPES = (Tensor, Parameter)

_is_compiling = torch.compiler.is_compiling
_interpreter = (
    torch._C._functorch.peek_interpreter_stack
)  # returns the current transform of torch.func, or None
_is_grad_enabled = torch.is_grad_enabled
_count_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack

_library = Library("custom_fp", "FRAGMENT")


@dataclass(frozen=True)
class Derivative:
    """The static methods of a torch.autograd.Function. Without `jvp`, forward-mode gradients are not available."""

    setup_context: Callable[..., None]
    backward: Callable[..., Any]
    jvp: Callable[..., Any] | None = None


class Operator:
    """An operator of the table. A call computes directly if possible, and otherwise uses PyTorch's dispatcher.

    Args:
        plan: The function in table.py. It checks the arguments and returns a `Plan`.
        schema: The arguments (tensors first) and the result, in the notation of torch.library.
        vmap: The vmap rule, from batching.py.
        derivative: The gradient, or None if results are detached.
        draws: Whether the operator may draw a random seed.
    """

    def __init__(
        self,
        plan: Callable[..., Plan],
        schema: str,
        vmap: Callable[..., Any],
        derivative: Derivative | None = None,
        draws: bool = False,
    ) -> None:
        self.name, self.plan = plan.__name__, plan
        tags = (torch.Tag.pt2_compliant_tag, *([torch.Tag.nondeterministic_seeded] if draws else []))
        _library.define(self.name + schema, tags=tags)
        self.op = getattr(torch.ops.custom_fp, self.name).default
        arguments, (result,) = self.op._schema.arguments, self.op._schema.returns
        self.formats = tuple(i for i, argument in enumerate(arguments) if argument.name in _FORMATS)
        self.accumulators = tuple(i for i, argument in enumerate(arguments) if argument.name in _ACCUMULATORS)
        self.tensors = sum("Tensor" in str(argument.type) for argument in arguments)
        self.takes_list = str(arguments[0].type) == "List[Tensor]"
        self.gives_list = str(result.type) == "List[Tensor]"
        _library.impl(self.name, self.compute, "CompositeExplicitAutograd")
        register_fake(f"custom_fp::{self.name}", self.compute_fake, lib=_library)
        register_vmap(f"custom_fp::{self.name}", partial(vmap, self), lib=_library)
        self.has_derivative = derivative is not None
        if derivative is not None:
            self.function = _function(self, derivative, partial(vmap, self), self._compute_or_dispatch)
            self.function_below = _function(self, derivative, None, self._dispatch_below_autograd)
            _library.impl(self.name, self._autograd, "Autograd")

    def __call__(self, *arguments: Any, out: Tensor | None = None) -> Any:
        tensors = arguments[0] if self.takes_list else arguments[: self.tensors]
        if not _is_compiling():
            interpreter = _interpreter()
            if self.has_derivative and out is None and _is_differentiated(tensors, interpreter):
                return self.function.apply(*self._for_op(arguments))
            if interpreter is None and not _count_modes() and _are_plain(tensors, out):
                return self.compute(*arguments, out=out)
        if not all(isinstance(x, Tensor) for x in tensors):
            return self.compute(*arguments, out=out)  # raises the operator's own error message
        if out is None:
            return self._dispatch(*self._for_op(arguments, detach=not self.has_derivative))
        results = self._dispatch(*self._for_op(arguments, detach=True))
        (result,) = self._one(results) if self.gives_list else (results,)
        check_out(out, result.shape, result.dtype, result.device)
        with torch.no_grad():  # under torch.compile, this becomes a write to `out`
            out.copy_(result)
        return [out] if self.gives_list else out

    def compute(self, *arguments: Any, out: Tensor | None = None) -> Any:
        """Compute the operator on real tensors."""
        shapes, like, fill = self.plan(*arguments)
        if out is not None:
            return self._compute_out(arguments, shapes, like, fill, out)
        if self.gives_list:
            results = [_new(shape, dtype, like) for shape, dtype in shapes]
            fill(*results)
            return results
        shape, dtype = shapes[0]
        result = _new(shape, dtype, like)
        fill(result)
        return result

    def _compute_out(
        self,
        arguments: Sequence[Any],
        shapes: Shapes,
        like: Tensor,
        fill: Callable[..., None],
        out: Tensor,
    ) -> Any:
        ((shape, dtype),) = self._one(shapes)
        check_out(out, shape, dtype, like.device)
        if can_be_written(out, self._tensors(arguments)):
            fill(out)
        else:
            result = torch.empty(shape, dtype=dtype, device=like.device)
            fill(result)
            with torch.no_grad():
                out.copy_(result)
        return [out] if self.gives_list else out

    def compute_fake(self, *arguments: Any) -> Any:
        """Check the arguments as `compute` does, and return results without values for fake tensors."""
        shapes, like, _ = self.plan(*arguments)
        results = [torch.empty(shape, dtype=dtype, device=like.device) for shape, dtype in shapes]
        return results if self.gives_list else results[0]

    def _tensors(self, arguments: Sequence[Any]) -> Sequence[Tensor]:
        return arguments[0] if self.takes_list else arguments[: self.tensors]

    def _one(self, results: Sequence[Any]) -> Sequence[Any]:
        if len(results) > 1:
            raise ValueError(
                f"out cannot be used here, because {self.name} returns codes and scales for this format"
            )
        return results

    def _for_op(self, arguments: Sequence[Any], detach: bool = False) -> list[Any]:
        """Return the arguments for torch.ops, with formats as text and, if `detach` is set, detached tensors."""
        converted = list(arguments)
        for i in self.formats:
            converted[i] = _format_text(converted[i])
        for i in self.accumulators:
            converted[i] = _accumulator_text(converted[i])
        if detach:
            detached = [x.detach() for x in self._tensors(arguments)]
            converted[: self.tensors] = [detached] if self.takes_list else detached
        return converted

    def _compute_or_dispatch(self, *arguments: Any) -> Any:
        return (self.compute if is_plain(*self._tensors(arguments)) else self._dispatch)(*arguments)

    def _dispatch(self, *arguments: Any) -> Any:
        tensors = self._tensors(arguments)
        if not _is_compiling():
            for x in tensors:
                check_dense(x)
            if any(map(is_sharded, tensors)):
                arguments = tuple(shardable(self.name, arguments))
        return self.op(*arguments)

    def _dispatch_below_autograd(self, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return self.op(*arguments)

    def _autograd(self, *arguments: Any) -> Any:
        """Implement the autograd kernel of torch.ops.custom_fp.NAME. If no gradient is needed, compute directly."""
        tensors = arguments[: self.tensors]
        if forward_level() >= 0 or _need_gradient(tensors):
            return self.function_below.apply(*arguments)
        return (self.compute if is_plain(*tensors) else self._dispatch_below_autograd)(*arguments)


def operator(schema: str, **options: Any) -> Callable[[Callable[..., Plan]], Operator]:
    """Return a decorator that turns a function of the table into an `Operator` with the given schema."""
    return lambda plan: Operator(plan, schema, **options)


def _function(
    operator: Operator, derivative: Derivative, vmap: Callable | None, forward: Callable
) -> type[torch.autograd.Function]:
    """Return the autograd function of an operator. torch.func.grad needs it, since it ignores autograd kernels."""
    methods = {"forward": forward, "vmap": vmap, **vars(derivative)}
    defined = {name: staticmethod(method) for name, method in methods.items() if method is not None}
    return type(operator.name.capitalize(), (torch.autograd.Function,), defined)


def _new(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    if like.dtype is dtype and like.shape == shape and like.is_contiguous():
        return torch.empty_like(like)  # takes a third of the time of torch.empty(shape, dtype, device)
    return torch.empty(shape, dtype=dtype, device=like.device)


def _format_text(fmt: NumberFormat | str) -> str:
    return spelled(read(fmt))


def _accumulator_text(how: Accumulator | NumberFormat | str) -> str:
    return accumulator.spelled(how)


# torch.compile treats these texts as constants. torch.compiler.assume_constant_result sets the same attribute, but it
# first imports the whole compiler, which takes a second.
_format_text._dynamo_marked_constant = True  # type: ignore[attr-defined]
_accumulator_text._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_plain(*tensors: object) -> bool:
    """Return whether a call on these tensors may compute directly, without PyTorch's dispatcher.

    The dispatcher is required for tensor subclasses and within a compiler, a dispatch mode or a torch.func transform.
    Computing directly matters for small tensors, because the dispatcher costs more than their arithmetic.
    """
    return not _is_compiling() and _interpreter() is None and not _count_modes() and _are_plain(tensors)


def _are_plain(tensors: Sequence[object], out: object = None) -> bool:
    for (
        tensor
    ) in tensors:  # a loop, because a generator expression would take longer than the rest of the call
        if type(tensor) not in _PLAIN_TYPES:
            return False
    return out is None or type(out) in _PLAIN_TYPES


def _is_differentiated(tensors: Sequence[object], interpreter: Any) -> bool:
    """Return whether a call on these tensors is differentiated or is part of another torch.func transform."""
    if interpreter is not None:
        return interpreter.key() != torch._C._functorch.TransformType.Functionalize
    return forward_level() >= 0 or _need_gradient(tensors)


def _need_gradient(tensors: Sequence[object]) -> bool:
    if _is_grad_enabled():
        for x in tensors:
            if isinstance(x, Tensor) and x.requires_grad:
                return True
    return False


def forward_level() -> int:
    """Return the nesting depth of torch.autograd.forward_ad's dual levels, counted from 0, or -1 outside of them."""
    return forward_ad._current_level
