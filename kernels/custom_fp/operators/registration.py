"""An operator of the table (table.py) as torch.library's torch.ops.custom_fp.NAME, and the way of a call to it.

A row says what its results are like and what computes them; from that one function come the operator on real tensors,
its fake kernel, and with what stands beside it in the table its vmap rule and its derivative. torch.library takes no
format, so an operator gets a text, `names.spelled`.

Operators that may draw a seed are tagged nondeterministic_seeded, for a compiler would make one of two equal calls.
They are registered without `custom_op`, whose Python costs a small tensor more than all else.
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
from custom_fp.operators.checks import check_out, deliver, destination

Shapes = Sequence[tuple[Sequence[int], torch.dtype]]
Work = tuple[Shapes, Tensor, Callable[..., None]]
"""Of a call: shape and dtype of each result, a tensor on whose device they are, and what fills them."""

_FORMATS = ("fmt",)
_ACCUMULATORS = ("accumulator", "backward")
_PLAIN = (Tensor, Parameter)

_is_compiling = torch.compiler.is_compiling
_interpreter = torch._C._functorch.peek_interpreter_stack  # of torch.func
_grad_enabled = torch.is_grad_enabled
_modes = torch._C._len_torch_dispatch_stack

_library = Library("custom_fp", "FRAGMENT")


@dataclass(frozen=True)
class Derivative:
    """The static methods of a torch.autograd.Function; without `jvp` there are no forward-mode gradients."""

    setup_context: Callable[..., None]
    backward: Callable[..., Any]
    jvp: Callable[..., Any] | None = None


class Operator:
    """A call runs at once where nothing stands between it and the memory; else torch's dispatcher sees it."""

    def __init__(
        self,
        define: Callable[..., Work],
        schema: str,
        vmap: Callable[..., Any],
        derivative: Derivative | None = None,
        draws: bool = False,
    ) -> None:
        """schema: arguments, tensors first, and result as torch writes them; vmap: see batching.py."""
        self.name, self.define = define.__name__, define
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
        register_fake(f"custom_fp::{self.name}", self.shapes, lib=_library)
        register_vmap(f"custom_fp::{self.name}", partial(vmap, self), lib=_library)
        self.function = None
        if derivative is not None:
            self.function = _function(self, derivative, partial(vmap, self), self._unless_plain)
            self.function_below = _function(self, derivative, None, self._below)
            _library.impl(self.name, self._autograd, "Autograd")

    def __call__(self, *arguments: Any, out: Tensor | None = None) -> Any:
        tensors = arguments[0] if self.takes_list else arguments[: self.tensors]
        if not _is_compiling():
            interpreter = _interpreter()
            if self.function is not None and out is None and _is_watched(tensors, interpreter):
                return self.function.apply(*self._for_op(arguments))
            if interpreter is None and not _modes() and _are_plain(tensors, out):
                return self.compute(*arguments, out=out)
        if not all(isinstance(x, Tensor) for x in tensors):
            return self.compute(*arguments, out=out)  # which says what is wrong
        if out is None:
            return self.op(*self._for_op(arguments, cut=self.function is None))
        results = self.op(*self._for_op(arguments, cut=True))
        (result,) = self._one(results) if self.gives_list else (results,)
        check_out(out, result.shape, result.dtype, result.device)
        with torch.no_grad():  # a compiler makes of that what it likes
            out.copy_(result)
        return [out] if self.gives_list else out

    def compute(self, *arguments: Any, out: Tensor | None = None) -> Any:
        """On real tensors."""
        shapes, like, fill = self.define(*arguments)
        if out is not None:
            ((shape, dtype),) = self._one(shapes)
            result = destination(out, shape, dtype, like.device, self._tensors(arguments))
            fill(result)
            result = deliver(result, out)
            return [result] if self.gives_list else result
        if self.gives_list:
            results = [_new(shape, dtype, like) for shape, dtype in shapes]
            fill(*results)
            return results
        shape, dtype = shapes[0]
        result = _new(shape, dtype, like)
        fill(result)
        return result

    def shapes(self, *arguments: Any) -> Any:
        """On fake tensors: the same checks, and results without values."""
        shapes, like, _ = self.define(*arguments)
        results = [torch.empty(shape, dtype=dtype, device=like.device) for shape, dtype in shapes]
        return results if self.gives_list else results[0]

    def _tensors(self, arguments: Sequence[Any]) -> Sequence[Tensor]:
        return arguments[0] if self.takes_list else arguments[: self.tensors]

    def _one(self, results: Sequence[Any]) -> Sequence[Any]:
        if len(results) > 1:
            raise ValueError(f"{self.name} gives codes and scales here: it takes no out")
        return results

    def _for_op(self, arguments: Sequence[Any], cut: bool = False) -> list[Any]:
        """Formats become texts; cut: tensors leave autograd's graph."""
        made = list(arguments)
        for i in self.formats:
            made[i] = _text(made[i])
        for i in self.accumulators:
            made[i] = _text_of_sums(made[i])
        if cut:
            cut_off = [x.detach() for x in self._tensors(arguments)]
            made[: self.tensors] = [cut_off] if self.takes_list else cut_off
        return made

    # with a derivative

    def _unless_plain(self, *arguments: Any) -> Any:
        return (self.compute if is_plain(*self._tensors(arguments)) else self.op)(*arguments)

    def _below(self, *arguments: Any) -> Any:
        """The op, past its autograd kernel."""
        with torch._C._AutoDispatchBelowAutograd():
            return self.op(*arguments)

    def _autograd(self, *arguments: Any) -> Any:
        """The autograd kernel, which every call of the op meets: runs it at once where nothing is to be recorded."""
        tensors = arguments[: self.tensors]
        if forward_level() >= 0 or _is_recorded(tensors):
            return self.function_below.apply(*arguments)
        return (self.compute if _are_plain(tensors) and is_plain() else self._below)(*arguments)


def operator(schema: str, **how: Any) -> Callable[[Callable[..., Work]], Operator]:
    """Makes a row of the table an Operator."""
    return lambda define: Operator(define, schema, **how)


def _function(
    operator: Operator, derivative: Derivative, vmap: Callable | None, forward: Callable
) -> type[torch.autograd.Function]:
    """What autograd and torch.func record: torch.func.grad does not see the autograd of operators."""
    methods = {"forward": forward, "vmap": vmap, **vars(derivative)}
    made = {name: staticmethod(method) for name, method in methods.items() if method is not None}
    return type(operator.name.capitalize(), (torch.autograd.Function,), made)


def _new(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    if like.dtype is dtype and like.shape == shape and like.is_contiguous():
        return torch.empty_like(like)  # a third of the cost of naming shape, dtype and device
    return torch.empty(shape, dtype=dtype, device=like.device)


def _text(fmt: NumberFormat | str) -> str:
    return spelled(read(fmt))


def _text_of_sums(how: Accumulator | NumberFormat | str) -> str:
    return accumulator.spelled(how)


# For a compiler a constant: what torch.compiler.assume_constant_result does, which imports all of it (a second).
_text._dynamo_marked_constant = _text_of_sums._dynamo_marked_constant = True


def is_plain(*tensors: object) -> bool:
    """Whether nothing stands between the caller and the memory: no compiler, dispatch mode, torch.func, subclass. The
    dispatcher costs more than a small tensor's arithmetic."""
    return not _is_compiling() and _interpreter() is None and not _modes() and _are_plain(tensors)


def _are_plain(tensors: Sequence[object], out: object = None) -> bool:
    for tensor in tensors:  # a generator would cost a small tensor more than the rest
        if type(tensor) not in _PLAIN:
            return False
    return out is None or type(out) in _PLAIN


def _is_watched(tensors: Sequence[object], interpreter: Any) -> bool:
    """Whether autograd, forwards or backwards, or torch.func looks on, outside a compiler."""
    if interpreter is not None:
        return interpreter.key() != torch._C._functorch.TransformType.Functionalize
    return forward_level() >= 0 or _is_recorded(tensors)


def _is_recorded(tensors: Sequence[object]) -> bool:
    if _grad_enabled():
        for x in tensors:
            if isinstance(x, Tensor) and x.requires_grad:
                return True
    return False


def forward_level() -> int:
    """The depth of torch.autograd.forward_ad's dual levels, from 0; -1 outside."""
    return forward_ad._current_level
