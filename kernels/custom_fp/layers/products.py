"""The three matrix products of a layer, with separate rounding of their operands, partial sums and results.

    forward           y = x w     operands input and weight
    input_gradient    dx = dy w   operands output_gradient and weight
    weight_gradient   dw = dy x   operands output_gradient and input

`Product` is an autograd function that computes these products with a kernel. `Linear` and `Conv` use PyTorch's
operators and sum in float32. `Matrices` multiplies batches of matrices in float32. `Sums` rounds every partial sum.

If an operand's format has scales, its blocks run along the dimension that the product sums over, so each block is a
part of one dot product. The operand is then rounded separately for each product that uses it. The same is true for an
operand that is transformed (see `has_axis` of `Round`). If the blocks do not depend on the dimension, as with one scale
for the tensor, or with tiles of a Linear layer's matrices, the operand is rounded once for both products. The products
sum over these dimensions:

    Linear    forward: the features. input_gradient: the output features. weight_gradient: the rows, where all leading
              dimensions of x are flattened into one.
    Conv      forward: the channels of a group. input_gradient: the output channels of a group. weight_gradient: the
              batch, because the positions differ for each element of the kernel. Hardware that cuts blocks from all
              windows has other blocks. Tiles of a weight span output channels and channels.
    Matrices  the last dimension, or the second to last if the product transposes the operand.
    Sums      the same dimensions of the matrices. For Conv, channels and kernel positions form one dimension, and so do
              all windows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from custom_fp.accumulator import Accumulator, is_name
from custom_fp.backends import check_knows
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.operators.registration import is_plain
from custom_fp.ops import matmul, quantize

PRODUCTS = FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = ("forward", "input_gradient", "weight_gradient")
ROLES = {  # the role of a tensor -> the products in which it is used
    "input": (FORWARD, WEIGHT_GRADIENT),
    "weight": (FORWARD, INPUT_GRADIENT),
    "output_gradient": (INPUT_GRADIENT, WEIGHT_GRADIENT),
    "result": PRODUCTS,
}
OPERANDS = {  # product -> the roles of its operands
    FORWARD: ("input", "weight"),
    INPUT_GRADIENT: ("output_gradient", "weight"),
    WEIGHT_GRADIENT: ("output_gradient", "input"),
}
FACTORS = {  # product -> the roles of its operands, in the order in which `Sums` multiplies them
    **OPERANDS,
    WEIGHT_GRADIENT: ("input", "output_gradient"),
}

observer: Callable[[Arithmetic, Any], Any] | None = None
"""If this is set, each product passes its arithmetic and its kernel to it and uses the kernel that it returns."""

Round = Callable[[Tensor], Tensor]
"""A function that rounds a tensor of any shape and passes the gradient straight through. It may have these attributes:

has_axis: If true, operands are rounded by the method `along(x, axis)`, which may pad the dimension `axis` with zeros.
has_tiles: If true, blocks are tiles of the last two dimensions, so a matrix is rounded without an axis.
cached: For the input of the weight gradient, the rounding of the values that are stored after the forward product. The
    stored values are then rounded again. None means that the unrounded values are stored.
format: The name of the format, for reports.
nearest: The function that replaces this function in evaluation. It must be the function itself if that always gives the
    same result for the same tensor.
in_place: A function that rounds a contiguous float32 tensor in place and returns it.
"""


@dataclass(frozen=True)
class Nearest:
    """A function that rounds to the nearest value of a format, with ties to even, as `custom_fp.quantize` does."""

    fmt: NumberFormat | str

    has_axis: bool = field(init=False, repr=False, compare=False)
    has_tiles: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fmt = parse(self.fmt)  # parsed here, because torch.compile cannot trace it
        object.__setattr__(self, "has_axis", fmt.has_axis)
        object.__setattr__(self, "has_tiles", fmt.has_tiles)

    def __call__(self, x: Tensor) -> Tensor:
        return quantize(x, self.fmt)

    @property
    def nearest(self) -> Nearest:
        return self

    def in_place(self, x: Tensor) -> Tensor:
        return quantize(x, self.fmt, out=x)

    def along(self, x: Tensor, axis: int) -> Tensor:
        """Round in blocks along a dimension."""
        return quantize(x, self.fmt, axis=axis)

    def __str__(self) -> str:
        return str(self.fmt)


@dataclass(frozen=True)
class Arithmetic:
    """How a layer computes its products. Whatever is not listed is computed in float32.

    Attributes:
        roundings: The rounding of each tensor, by (role, product) as in `ROLES`.
        accumulators: The name of each product's accumulator. It is either a format, to which every product of two
            values and every partial sum is rounded, or an `Accumulator` (see `custom_fp.matmul`).
        kahan: The products that use Kahan summation.
        evaluated: The arithmetic for evaluation, in which nothing is rounded stochastically.

    Raises:
        ValueError: An accumulator with scales is used for a product whose operands are not rounded to its formats.
    """

    roundings: Mapping[tuple[str, str], Round] = field(default_factory=dict)
    accumulators: Mapping[str, str] = field(default_factory=dict)
    kahan: Collection[str] = ()
    evaluated: Arithmetic = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_scaled_operands(self.accumulators, self.roundings)
        nearest = {key: getattr(rounding, "nearest", rounding) for key, rounding in self.roundings.items()}
        sums = {product: _without_randomness(name) for product, name in self.accumulators.items()}
        differs = any(nearest[key] is not rounding for key, rounding in self.roundings.items())
        differs = differs or sums != dict(self.accumulators)
        evaluated = Arithmetic(nearest, sums, self.kahan) if differs else self
        object.__setattr__(self, "evaluated", evaluated)

    @classmethod
    def of(
        cls,
        accumulator: Accumulator | Format | str | None = None,
        backward_accumulator: Accumulator | Format | str | None = None,
        kahan: bool = False,
        operands: NumberFormat | str | None = None,
        gradients: NumberFormat | str | None = None,
    ) -> Arithmetic:
        """Return the arithmetic for the keyword arguments of a `QuantLinear` (see modules.py)."""
        backward = backward_accumulator or accumulator
        sums = {FORWARD: accumulator, INPUT_GRADIENT: backward, WEIGHT_GRADIENT: backward}
        formats = {"input": operands, "weight": operands, "output_gradient": gradients}
        return cls(
            {(role, p): Nearest(parse(fmt)) for role, fmt in formats.items() if fmt for p in ROLES[role]},
            {product: _accumulator_name(how) for product, how in sums.items() if how},
            PRODUCTS if kahan else (),
        )

    def __bool__(self) -> bool:
        return bool(self.roundings or self.accumulators)

    def __str__(self) -> str:
        settings: dict[str, dict[str, Any]] = {
            role: {p: self.roundings.get((role, p)) for p in products} for role, products in ROLES.items()
        }
        settings["accumulator"] = {p: self.accumulators.get(p) for p in PRODUCTS}
        settings["kahan"] = {p: p in self.kahan for p in PRODUCTS}
        texts = []
        for role, by_product in settings.items():
            shown = {p: getattr(value, "__name__", str(value)) for p, value in by_product.items() if value}
            if len(shown) == len(by_product) and len(set(shown.values())) == 1:
                texts.append(f"{role}={next(iter(shown.values()))}")
            else:
                texts += [f"{role} of {p}={value}" for p, value in shown.items()]
        return ", ".join(texts)

    def multiply(
        self,
        kernel: Any,
        x: Tensor,
        w: Tensor,
        x_as: Callable[[Tensor], Tensor] = lambda x: x,
        w_as: Callable[[Tensor], Tensor] = lambda w: w,
        bias: Tensor | None = None,
        factor: float = 1,
    ) -> Tensor:
        """Return the product of an input and a weight, times a factor, plus a bias.

        If the result of the forward product is rounded, the bias and its gradient are rounded in the same way. The bias
        is added in float32, and the sum is then rounded. torch.autocast rounds in the same places.

        Args:
            kernel: `Linear`, `Conv`, `Matrices` or `Sums`.
            x: The input.
            w: The weight.
            x_as: A function that converts the rounded input to the layout that the kernel needs.
            w_as: A function that converts the rounded weight to the layout that the kernel needs.
            bias: A tensor that can be broadcast to the product.
            factor: The number by which the product is multiplied, such as `alpha` of torch.baddbmm.

        Returns:
            The result as float32.
        """
        if observer is not None:
            kernel = observer(self, kernel)
        x_forward, x_backward = self._operands("input", FORWARD, WEIGHT_GRADIENT, x, x_as, kernel)
        w_forward, w_backward = self._operands("weight", FORWARD, INPUT_GRADIENT, w, w_as, kernel)
        bias = None if bias is None else bias.float()
        return Product.apply(x_forward, w_forward, x_backward, w_backward, bias, kernel, self, factor)

    def round_result(self, product: str, x: Tensor) -> Tensor:
        """Round the result of a product, in place if possible. The caller must be the only user of the result."""
        rounding: Any = self.roundings.get(("result", product))
        if rounding is None:
            return x
        in_place = getattr(rounding, "in_place", None)
        return rounding(x) if in_place is None or not _can_overwrite(x) else in_place(x)

    def round_for_product(self, role: str, product: str, x: Tensor, kernel: Any) -> Tensor:
        """Return an operand, after rounding it along the dimension of the sum if its rounding depends on that."""
        rounding: Any = self.roundings.get((role, product))
        if not _depends_on_axis(rounding, x, kernel):
            return x
        cached = getattr(rounding, "cached", None)
        if cached is not None:
            # The stored operand was rounded along the dimension that the forward product sums over.
            x = kernel.along(role, FORWARD, x, partial(round_along, cached))
        return kernel.along(role, product, x, rounding.along)

    def _operands(
        self, role: str, one: str, other: str, x: Tensor, to_layout: Callable, kernel: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return an operand as rounded for the forward product `one`, and as rounded for the backward product `other`.

        Only the first tensor has a gradient. The second one is None if it equals the first, or if gradients are
        disabled.
        """
        forward_rounding, backward_rounding = (self.whole_rounding(role, p, x, kernel) for p in (one, other))
        forward = to_layout((x if forward_rounding is None else forward_rounding(x)).float())
        if forward_rounding == backward_rounding or not torch.is_grad_enabled():
            return forward, None
        x = x.detach()
        return forward, to_layout((x if backward_rounding is None else backward_rounding(x)).float())

    def whole_rounding(self, role: str, product: str, x: Tensor, kernel: Any) -> Round | None:
        """Return the rounding of an operand, or None if it depends on the dimension that the product sums over."""
        rounding = self.roundings.get((role, product))
        return None if _depends_on_axis(rounding, x, kernel) else rounding


def round_along(rounding: Any, x: Tensor, axis: int) -> Tensor:
    """Round a tensor in blocks along a dimension, or as a whole if the rounding has no blocks."""
    return rounding.along(x, axis) if getattr(rounding, "has_axis", False) else rounding(x)


def _check_scaled_operands(
    accumulators: Mapping[str, str], roundings: Mapping[tuple[str, str], Round]
) -> None:
    """Raise ValueError if an accumulator with scales has an operand that is not rounded to the accumulator's format."""
    for product, name in accumulators.items():
        how = Accumulator.parse(name) if is_name(name) else None
        if how is None or not how.scales:
            continue
        for role, fmt in zip(FACTORS[product], how.operand_formats, strict=True):
            rounding = roundings.get((role, product))
            found = getattr(rounding, "format", getattr(rounding, "fmt", None))
            if rounding is None or (found is not None and str(found) != str(fmt)):
                raise ValueError(
                    f"accumulator {name} of the {product} product requires the {role} in {fmt}, but it is in "
                    f"{found or 'float32'}; add a rule with role: {role}, product: {product}, format: {fmt}"
                )


def _accumulator_name(how: Accumulator | Format | str) -> str:
    if isinstance(how, Accumulator) or (isinstance(how, str) and is_name(how)):
        return Accumulator.parse(how).name
    fmt = parse(how)
    check_knows("matmul", fmt)
    return fmt.name


def _without_randomness(name: str) -> str:
    return Accumulator.parse(name).nearest.name if is_name(name) else name


def _depends_on_axis(rounding: Round | None, x: Tensor, kernel: Any) -> bool:
    """Return whether the rounding of x depends on the dimension that a product sums over."""
    if getattr(rounding, "has_tiles", False):
        return x.dim() != 2 or not isinstance(kernel, Linear)
    return getattr(rounding, "has_axis", False)


class Product(torch.autograd.Function):
    """The autograd function for the three products. It also adds the bias.

    The products of the backward pass use x_backward and w_backward instead of x and w, unless these are None. The
    arithmetic is the same under torch.autocast.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        w: Tensor,
        x_backward: Tensor | None,
        w_backward: Tensor | None,
        bias: Tensor | None,
        kernel: Any,
        arithmetic: Arithmetic,
        factor: float,
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = arithmetic.round_for_product("input", FORWARD, x, kernel)
            w = arithmetic.round_for_product("weight", FORWARD, w, kernel)
            result = kernel.product(x, w)
            if factor != 1:
                result = result * factor
            if bias is not None:
                rounding = arithmetic.roundings.get(("result", FORWARD))
                bias = bias if rounding is None else rounding(bias)
                result = result.add_(bias) if _can_overwrite(result) else result + bias
            return arithmetic.round_result(FORWARD, result)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, w, x_backward, w_backward, bias, ctx.kernel, ctx.arithmetic, ctx.factor = inputs
        ctx.bias_shape = None if bias is None else bias.shape
        ctx.save_for_backward(
            x if x_backward is None else x_backward, w if w_backward is None else w_backward
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        x, w = ctx.saved_tensors
        kernel, arithmetic = ctx.kernel, ctx.arithmetic
        rounding_x, rounding_w = (
            arithmetic.whole_rounding("output_gradient", p, grad, kernel) for p in ROLES["output_gradient"]
        )
        dx = dw = db = of_bias = None
        of_result: Any = arithmetic.roundings.get(("result", FORWARD))
        if ctx.needs_input_grad[4]:
            of_bias = grad if of_result is None else of_result(grad)
            db = of_bias.sum_to_size(ctx.bias_shape)
            db = db if of_result is None else of_result(db)
            if ctx.factor != 1 or getattr(of_result, "nearest", None) is not of_result:
                of_bias = None  # The products round another gradient, or may round it differently.
        if ctx.factor != 1:
            grad = grad * ctx.factor

        def rounded(rounding: Round) -> Tensor:
            return rounding(grad) if of_bias is None or rounding != of_result else of_bias

        grad_x = grad if rounding_x is None else rounded(rounding_x)
        # If both products round in the same way, round the gradient only once, so that they use the same random bits.
        other = grad if rounding_w in (None, rounding_x) else rounded(rounding_w)
        grad_w = grad_x if rounding_w == rounding_x else other
        with torch.autocast(x.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                grad_x = arithmetic.round_for_product("output_gradient", INPUT_GRADIENT, grad_x, kernel)
                factor = arithmetic.round_for_product("weight", INPUT_GRADIENT, w, kernel)
                dx = arithmetic.round_result(INPUT_GRADIENT, kernel.input_gradient(grad_x, x, factor))
            if ctx.needs_input_grad[1]:
                grad_w = arithmetic.round_for_product("output_gradient", WEIGHT_GRADIENT, grad_w, kernel)
                factor = arithmetic.round_for_product("input", WEIGHT_GRADIENT, x, kernel)
                dw = arithmetic.round_result(WEIGHT_GRADIENT, kernel.weight_gradient(grad_w, factor, w))
        return dx, dw, None, None, db, None, None, None


def _can_overwrite(x: Tensor) -> bool:
    """Return whether a new tensor can be overwritten. The caller must be its only user."""
    return observer is None and not torch.is_grad_enabled() and is_plain(x) and x.is_contiguous()


# ---- kernels
#
# A kernel computes the three products from x, w and the gradient of y, in float32. `input_gradient` uses only
# the shape of x, and `weight_gradient` only the shape of w. `along` rounds an operand of a product along the
# dimension that the product sums over.

Along = Callable[[Tensor, int], Tensor]


class Linear:
    """The products of a linear layer with x (..., K), w (M, K) and y (..., M)."""

    def along(self, role: str, product: str, x: Tensor, rounded: Along) -> Tensor:
        if product == WEIGHT_GRADIENT:
            return rounded(x.reshape(-1, x.shape[-1]), 0)
        return rounded(x, 0 if (role, product) == ("weight", INPUT_GRADIENT) else -1)

    def product(self, x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w)

    def input_gradient(self, grad: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return grad @ w

    def weight_gradient(self, grad: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return grad.reshape(-1, grad.shape[-1]).t() @ x.reshape(-1, x.shape[-1])


class Matrices:
    """The products of batches of matrices with x (..., L, K), w (..., S, K) and y = x w^T (..., L, S)."""

    def along(self, role: str, product: str, x: Tensor, rounded: Along) -> Tensor:
        transposed = (role, product) == ("weight", INPUT_GRADIENT) or product == WEIGHT_GRADIENT
        return rounded(x, -2 if transposed else -1)

    def product(self, x: Tensor, w: Tensor) -> Tensor:
        return x @ w.mT

    def input_gradient(self, grad: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return grad @ w

    def weight_gradient(self, grad: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return grad.mT @ x


@dataclass(frozen=True)
class Conv:
    """The products of a zero-padded convolution with x (B, C, ...), w (M, C / groups, ...) and y (B, M, ...)."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def along(self, role: str, product: str, x: Tensor, rounded: Along) -> Tensor:
        if product == WEIGHT_GRADIENT:
            return rounded(x, 0)
        if role != "weight":  # each group is summed separately
            return rounded(x.unflatten(1, (self.groups, -1)), 2).flatten(1, 2)
        matrices = x.unflatten(0, (self.groups, -1)).movedim((1, 2), (-2, -1))  # can be cut into tiles
        matrices = rounded(matrices, -1 if product == FORWARD else -2)
        return matrices.movedim((-2, -1), (1, 2)).flatten(0, 1)

    def product(self, x: Tensor, w: Tensor) -> Tensor:
        none = [0] * len(self.stride)
        return torch.convolution(
            x, w, None, self.stride, self.padding, self.dilation, False, none, self.groups
        )

    def input_gradient(self, grad: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return self._backward(grad, x, w, [True, False, False])[0]

    def weight_gradient(self, grad: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return self._backward(grad, x, w, [False, True, False])[1]

    def _backward(self, grad: Tensor, x: Tensor, w: Tensor, which: list[bool]) -> tuple:
        none = [0] * len(self.stride)
        return torch.ops.aten.convolution_backward(
            grad, x, w, None, self.stride, self.padding, self.dilation, False, none, self.groups, which
        )


@dataclass(frozen=True)
class Sums:
    """The products of x (..., R, K), w (..., K, M) and y (..., R, M), computed with each product's accumulator."""

    arithmetic: Arithmetic

    def along(self, role: str, product: str, x: Tensor, rounded: Along) -> Tensor:
        is_row = product == WEIGHT_GRADIENT or (role, product) == ("weight", FORWARD)
        return rounded(x, -2 if is_row else -1)

    def product(self, x: Tensor, w: Tensor) -> Tensor:
        return self._sum(x, w, FORWARD)

    def input_gradient(self, grad: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return self._sum(grad, w.mT, INPUT_GRADIENT)

    def weight_gradient(self, grad: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return self._sum(x.mT, grad, WEIGHT_GRADIENT)

    def _sum(self, a: Tensor, b: Tensor, product: str) -> Tensor:
        fmt, kahan = self.arithmetic.accumulators.get(product), product in self.arithmetic.kahan
        return a @ b if fmt is None else matmul(a, b, accumulator=fmt, kahan=kahan)


# ---- gradients between layers


def round_gradient(x: Tensor, rounding: Round) -> Tensor:
    """Return a view of x. In the backward pass, its gradient is rounded before it reaches x."""
    return (_RoundGradient if torch.compiler.is_compiling() else _RoundGradientWithJvp).apply(x, rounding)


class _RoundGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, rounding: Round) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.rounding = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return ctx.rounding(grad), None


class _RoundGradientWithJvp(_RoundGradient):
    """Adds forward-mode differentiation, an identity. torch.compile does not support it in an autograd function."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent.view_as(tangent)
