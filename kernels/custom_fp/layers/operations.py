"""Operations that a module calls in its own `forward`, such as torch.matmul, with rounded operands and results.

The operands, sums and results of these products can be rounded:

    matmul()        torch.matmul and @, mm, bmm, mv, addmm and baddbmm
    einsum()        torch.einsum with two operands
    linear()        F.linear
    conv()          F.conv1d, F.conv2d and F.conv3d
    grouped_mm()    F.grouped_mm and torch._grouped_mm
    scores, values  The two products of scaled_dot_product_attention (attention.py)

Only the results of these functions, and the gradients of the results, can be rounded:

    softmax()        F.softmax, torch.softmax and Tensor.softmax
    cross_entropy()  F.cross_entropy
    add()            + and torch.add of two floating-point tensors, such as those of a residual stream

`Operations` holds the arithmetic of these operations for one module. While the module's forward runs, a
TorchFunctionMode replaces the functions. Each call follows the `Operations` of the innermost module that is running,
even if this module rounds nothing. The backward pass of a call uses the same arithmetic as the call.

Operands of any float dtype are multiplied in float32, and the result has the dtype of the first operand. A call is left
to PyTorch if an operand is not a dense floating-point tensor, if the dtypes of the operands differ outside of
torch.autocast, or if the call has an argument `out`. A matmul() or einsum() whose summed dimension has size 1 is also
left to PyTorch, because it sums nothing. Models use such products to compute the angles of rotary embeddings.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from custom_fp.layers.attachment import OPERATIONS, attach_
from custom_fp.layers.attention import attend
from custom_fp.layers.contractions import Contraction, equation_of, multiply_groups, multiply_matrices
from custom_fp.layers.convolution import Convolution
from custom_fp.layers.modules import project
from custom_fp.layers.products import FORWARD, INPUT_GRADIENT, Arithmetic, round_gradient

SDPA = "scaled_dot_product_attention"
SCORES, VALUES = "scores", "values"
MATMUL, EINSUM, LINEAR, CONV, GROUPED_MM = "matmul()", "einsum()", "linear()", "conv()", "grouped_mm()"
SOFTMAX, CROSS_ENTROPY, ADD = "softmax()", "cross_entropy()", "add()"
PRODUCT_PARTS = SCORES, VALUES, MATMUL, EINSUM, LINEAR, CONV, GROUPED_MM
RESULT_PARTS = SOFTMAX, CROSS_ENTROPY, ADD
PARTS = PRODUCT_PARTS + RESULT_PARTS
ACTIVATION, ERROR = ("result", FORWARD), ("output_gradient", INPUT_GRADIENT)
"""The keys in `Arithmetic.roundings` for the result, and for the gradient of the result, of `RESULT_PARTS`."""


class Operations:
    """How the operations that one module calls are rounded.

    Args:
        arithmetics: A dict that maps the name of an operation to its arithmetic. Operations that are not listed are
            left to PyTorch.

    Attributes:
        called: The operations in `arithmetics` that were called at least once.
    """

    def __init__(self, arithmetics: Mapping[str, Arithmetic] | None = None) -> None:
        self.arithmetics = dict(arithmetics or {})
        self.called: dict[str, bool] = {}

    def set(self, part: str, arithmetic: Arithmetic) -> None:
        """Set the arithmetic of an operation."""
        if part == GROUPED_MM:
            _let_dynamo_replace(torch._grouped_mm)
        self.arithmetics[part] = arithmetic

    def use(self, part: str, training: bool) -> Arithmetic:
        """Record a call to an operation, and return its arithmetic. In evaluation, the arithmetic is not stochastic."""
        arithmetic = self.arithmetics.get(part)
        if arithmetic is None:
            return Arithmetic()
        self.called[part] = True
        return arithmetic if training else arithmetic.evaluated

    def calls_of(self, module: nn.Module) -> _Scope:
        """Return a context in which the operations of the module replace the functions that are called."""
        return _Scope(module, bool(self.arithmetics))


class _Scope:
    """A context in which `module` is the innermost running module. On exit, the previous module is restored."""

    def __init__(self, module: nn.Module, replaces: bool) -> None:
        self.module, self.replaces = module, replaces
        self.mode: Any = None
        self.outer: Any = None

    def __enter__(self) -> None:
        self.mode = _active_mode()
        if self.mode is not None:
            self.outer, self.mode.module = self.mode.module, self.module
        elif self.replaces:
            self.mode = _ReplaceFunctions(self.module)
            self.mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.outer is not None:
            self.mode.module = self.outer
        elif self.mode is not None:
            self.mode.__exit__(*error)


class _ReplaceFunctions(TorchFunctionMode):
    """A mode that replaces torch functions with the rounded operations of `module`, the innermost running module.

    Each thread has at most one such mode, and `module` is updated as modules are entered and left. With one mode per
    module, a call that the innermost mode does not replace would be passed on to the modes of the enclosing modules.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(func)
        if replacement is not None:
            result = replacement(self.module, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


@functools.cache
def _let_dynamo_replace(function: Any) -> None:
    """Let modes replace a private function of PyTorch. By default, torch.compile ignores modes for such a function."""
    torch.overrides.get_overridable_functions()[torch].append(function)
    dynamo = sys.modules.get("torch._dynamo.variables.torch")
    if dynamo is not None:  # Dynamo may already have cached the list
        dynamo.get_overridable_functions().add(function)


def _active_mode() -> Any:
    for i in range(torch._C._len_torch_function_stack()):
        mode = torch._C._get_function_stack_at(i)
        if isinstance(mode, _ReplaceFunctions):
            return mode
    return None


class OperationCaller:
    """The class that attachment.py mixes into modules that are no layers, but may call operations in `forward`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward."""
        return super().forward(*args, **kwargs)  # type: ignore[misc]


def replace_operations_(module: nn.Module) -> Operations:
    """Return the `Operations` of a module. If it has none, attach empty `Operations`, which round nothing."""
    if OPERATIONS not in module.__dict__:
        attachment_exists = "arithmetic" in module.__dict__
        attach_(module, None if attachment_exists else OperationCaller)
        module.__dict__[OPERATIONS] = Operations()
    return module.__dict__[OPERATIONS]


def operations_of(module: nn.Module | None) -> Operations:
    """Return the `Operations` attached to a module, or empty `Operations` if there are none."""
    attached = None if module is None else module.__dict__.get(OPERATIONS)
    return Operations() if attached is None else attached


# ---- replacements
#
# Each replacement takes the module, followed by the arguments of the replaced function. It returns NotImplemented to
# leave the call to PyTorch.


def _matmul(
    module: Any,
    input: Tensor,
    other: Any = None,
    *,
    mat2: Any = None,
    tensor2: Any = None,
    vec: Any = None,
    out: Any = None,
) -> Any:
    others = [x for x in (other, mat2, tensor2, vec) if x is not None]
    return _multiplied(module, input, *others) if out is None else NotImplemented


def _rmatmul(module: Any, input: Tensor, other: Any) -> Any:
    return _multiplied(module, other, input)


def _addmm(
    module: Any, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1, out: Any = None
) -> Any:
    return _multiplied(module, mat1, mat2, input, beta, alpha) if out is None else NotImplemented


def _baddbmm(
    module: Any, input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1, out: Any = None
) -> Any:
    return _addmm(module, input, batch1, batch2, beta=beta, alpha=alpha, out=out)


def _multiplied(module: Any, a: Any, b: Any, added: Any = None, beta: float = 1, alpha: float = 1) -> Any:
    if not _can_round(a, b, optional=added) or a.shape[-1:] == (1,):
        return NotImplemented
    arithmetic = module.attached_operations.use(MATMUL, module.training)
    if not arithmetic:
        return NotImplemented
    if beta != 1 and added is not None:
        added = None if beta == 0 else added * beta
    return multiply_matrices(arithmetic, a, b, added, alpha)


def _linear(module: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    if not _can_round(input, weight, optional=bias) or weight.dim() != 2:
        return NotImplemented
    arithmetic = module.attached_operations.use(LINEAR, module.training)
    return project(arithmetic, input, weight, bias) if arithmetic else NotImplemented


def _einsum(module: Any, *operands: Any) -> Any:
    call = equation_of(operands)
    if call is None or not _can_round(*call[1]):
        return NotImplemented
    equation, tensors = call
    contraction = Contraction.parse(equation, [x.dim() for x in tensors])
    if contraction is None or contraction.terms(*tensors) == 1:
        return NotImplemented
    arithmetic = module.attached_operations.use(EINSUM, module.training)
    return contraction(arithmetic, *tensors).to(tensors[0].dtype) if arithmetic else NotImplemented


def _conv(
    module: Any,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if not _can_round(input, weight, optional=bias):
        return NotImplemented
    arithmetic = module.attached_operations.use(CONV, module.training)
    if not arithmetic:
        return NotImplemented
    convolution = Convolution.of_call(tuple(weight.shape[2:]), stride, padding, dilation, groups)
    return convolution(arithmetic, input, weight, bias)


def _grouped_mm(
    module: Any, input: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    if not _can_round(input, mat2) or bias is not None:
        return NotImplemented
    arithmetic = module.attached_operations.use(GROUPED_MM, module.training)
    if not arithmetic:
        return NotImplemented
    result = multiply_groups(arithmetic, input, mat2, offs)
    return result if out_dtype is None else result.to(out_dtype)


def _attend(module: Any, *args: Any, **kwargs: Any) -> Any:
    operations = module.attached_operations
    scores, values = (operations.use(part, module.training) for part in (SCORES, VALUES))
    if not scores and not values:
        return NotImplemented
    return attend(*args, **kwargs, scores=scores, values=values)


def _softmax_by(function: Callable) -> Callable:
    return lambda module, *args, **kwargs: _with_rounded_result(SOFTMAX, module, function, args, kwargs)


def _cross_entropy(module: Any, *args: Any, **kwargs: Any) -> Any:
    return _with_rounded_result(CROSS_ENTROPY, module, F.cross_entropy, args, kwargs)


def _add(module: Any, input: Any, other: Any, *, alpha: float = 1, out: Any = None) -> Any:
    if not _can_round(input, other) or out is not None:
        return NotImplemented
    return _with_rounded_result(ADD, module, torch.add, (input, other), {"alpha": alpha})


def _add_(module: Any, input: Any, other: Any, *, alpha: float = 1) -> Any:
    result = _add(module, input, other, alpha=alpha)
    return result if result is NotImplemented else input.copy_(result)


def _with_rounded_result(part: str, module: Any, function: Callable, args: Any, kwargs: Any) -> Any:
    """Call a function, and round its result and the gradient of its result."""
    arithmetic = module.attached_operations.use(part, module.training)
    if not arithmetic:
        return NotImplemented
    result = function(*args, **kwargs)
    gradient_rounding, rounding = (arithmetic.roundings.get(key) for key in (ERROR, ACTIVATION))
    if gradient_rounding is not None:
        result = round_gradient(result, gradient_rounding)
    # The result is cloned, because round_gradient returns a view, which in-place operations are not allowed to change.
    return result.clone() if rounding is None else rounding(result).to(result.dtype)


def _can_round(*operands: Any, optional: Any = None) -> bool:
    """Return whether a call with these operands can be rounded. The docstring of this file lists the conditions."""
    tensors = operands if optional is None else (*operands, optional)
    for x in tensors:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.is_nested:
            return False
        # torch.compile cannot trace `x.layout` in a backward pass.
        if not torch.compiler.is_compiling() and x.layout is not torch.strided:
            return False
    same_dtype = all(x.dtype == tensors[0].dtype for x in tensors)
    return same_dtype or torch.is_autocast_enabled(tensors[0].device.type)


_REPLACEMENTS: dict[Any, Callable] = {
    F.scaled_dot_product_attention: _attend,
    F.linear: _linear,
    torch.einsum: _einsum,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _conv),
    torch._grouped_mm: _grouped_mm,  # F.grouped_mm calls this function
    **dict.fromkeys(
        (
            *(torch.matmul, torch.linalg.matmul, Tensor.matmul, Tensor.__matmul__),
            *(torch.mm, Tensor.mm, torch.bmm, Tensor.bmm, torch.mv, Tensor.mv),
        ),
        _matmul,
    ),
    Tensor.__rmatmul__: _rmatmul,
    **dict.fromkeys((torch.addmm, Tensor.addmm), _addmm),
    F.softmax: _softmax_by(F.softmax),
    torch.softmax: _softmax_by(torch.softmax),
    Tensor.softmax: _softmax_by(Tensor.softmax),
    F.cross_entropy: _cross_entropy,
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), _add),
    **dict.fromkeys((Tensor.add_, Tensor.__iadd__), _add_),
    **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), _baddbmm),
}
