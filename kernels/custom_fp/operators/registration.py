"""Registration of the operators in table.py with torch.library, as torch.ops.custom_fp.NAME.

Each function of the table describes one operator: the shapes and dtypes of its results, and how to compute them. From
this description, `Operator` makes the kernel for real tensors, the fake kernel, the vmap rule and the autograd kernel.
torch.library has no type for number formats, so formats are passed as text (`names.spelled`).

Operators that may draw a random seed are tagged nondeterministic_seeded, because a compiler would merge two equal calls
otherwise. `torch.library.custom_op` is not used, because its overhead in Python exceeds the rest of a small call.
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
from custom_fp.operators.checks import can_be_written, check_out

Shapes = Sequence[tuple[Sequence[int], torch.dtype]]
Plan = tuple[Shapes, Tensor, Callable[..., None]]
"""The shape and dtype of each result, a tensor on the device of the results, and a function that fills the results."""

_FORMATS = ("fmt",)
_ACCUMULATORS = ("accumulator", "backward")
_PLAIN_TYPES = (Tensor, Parameter)

_is_compiling = torch.compiler.is_compiling
_interpreter = torch._C._functorch.peek_interpreter_stack  # torch.func's current transform, or None
_is_grad_enabled = torch.is_grad_enabled
_count_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack

_library = Library("custom_fp", "FRAGMENT")


@dataclass(frozen=True)
class Derivative:
    """The static methods of a torch.autograd.Function. Without `jvp`, there are no forward-mode gradients."""

    setup_context: Callable[..., None]
    backward: Callable[..., Any]
    jvp: Callable[..., Any] | None = None


class Operator:
    """An operator of the table. A call computes directly if it can, and otherwise goes through torch's dispatcher.

    Args:
        plan: The function of the table. It checks the arguments and returns a `Plan`.
        schema: The arguments (tensors first) and the result, in torch's notation.
        vmap: The vmap rule, from batching.py.
        derivative: The gradient. If None, results are detached.
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
            return self.compute(*arguments, out=out)  # raises the error of the operator's own checks
        if out is None:
            return self.op(*self._for_op(arguments, detach=not self.has_derivative))
        results = self.op(*self._for_op(arguments, detach=True))
        (result,) = self._one(results) if self.gives_list else (results,)
        check_out(out, result.shape, result.dtype, result.device)
        with torch.no_grad():  # a compiler turns this into a write to `out`
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
        """Run the same checks on fake tensors, and return results without values."""
        shapes, like, _ = self.plan(*arguments)
        results = [torch.empty(shape, dtype=dtype, device=like.device) for shape, dtype in shapes]
        return results if self.gives_list else results[0]

    def _tensors(self, arguments: Sequence[Any]) -> Sequence[Tensor]:
        return arguments[0] if self.takes_list else arguments[: self.tensors]

    def _one(self, results: Sequence[Any]) -> Sequence[Any]:
        if len(results) > 1:
            raise ValueError(f"{self.name} returns codes and scales for this format, so it takes no out")
        return results

    def _for_op(self, arguments: Sequence[Any], detach: bool = False) -> list[Any]:
        """Return the arguments for torch.ops: formats as text, and tensors detached if `detach` is set."""
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
        return (self.compute if is_plain(*self._tensors(arguments)) else self.op)(*arguments)

    def _dispatch_below_autograd(self, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return self.op(*arguments)

    def _autograd(self, *arguments: Any) -> Any:
        """Run as the autograd kernel of torch.ops.custom_fp.NAME. If no gradient is needed, compute directly."""
        tensors = arguments[: self.tensors]
        if forward_level() >= 0 or _need_gradient(tensors):
            return self.function_below.apply(*arguments)
        return (self.compute if is_plain(*tensors) else self._dispatch_below_autograd)(*arguments)


def operator(schema: str, **options: Any) -> Callable[[Callable[..., Plan]], Operator]:
    """Decorate a function of the table, which becomes an `Operator` with this schema."""
    return lambda plan: Operator(plan, schema, **options)


def _function(
    operator: Operator, derivative: Derivative, vmap: Callable | None, forward: Callable
) -> type[torch.autograd.Function]:
    """Return the autograd function of an operator. torch.func.grad does not see an operator's autograd kernel."""
    methods = {"forward": forward, "vmap": vmap, **vars(derivative)}
    defined = {name: staticmethod(method) for name, method in methods.items() if method is not None}
    return type(operator.name.capitalize(), (torch.autograd.Function,), defined)


def _new(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    if like.dtype is dtype and like.shape == shape and like.is_contiguous():
        return torch.empty_like(like)  # costs a third of passing shape, dtype and device
    return torch.empty(shape, dtype=dtype, device=like.device)


def _format_text(fmt: NumberFormat | str) -> str:
    return spelled(read(fmt))


def _accumulator_text(how: Accumulator | NumberFormat | str) -> str:
    return accumulator.spelled(how)


# For a compiler, these texts are constants. torch.compiler.assume_constant_result sets the same attribute, but it first
# imports all of torch's compiler, which takes a second.
_format_text._dynamo_marked_constant = True  # type: ignore[attr-defined]
_accumulator_text._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_plain(*tensors: object) -> bool:
    """Return whether a call on these tensors may compute directly, without torch's dispatcher.

    It may not within a compiler, a dispatch mode or a torch.func transform, or for tensor subclasses. Computing
    directly matters for small tensors, because the dispatcher costs more than their arithmetic.
    """
    return not _is_compiling() and _interpreter() is None and not _count_modes() and _are_plain(tensors)


def _are_plain(tensors: Sequence[object], out: object = None) -> bool:
    for tensor in tensors:  # a loop, because a generator expression would cost more than the rest of the call
        if type(tensor) not in _PLAIN_TYPES:
            return False
    return out is None or type(out) in _PLAIN_TYPES


def _is_differentiated(tensors: Sequence[object], interpreter: Any) -> bool:
    """Return whether autograd (forward or backward) or a torch.func transform follows a call on these tensors."""
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
    """Return the depth of torch.autograd.forward_ad's dual levels, counted from 0, or -1 outside of them."""
    return forward_ad._current_level
