"""The three products of a layer that multiplies, each with operands, sums and a result of its own rounding.

    forward           y = x w     operands input and weight
    input_gradient    dx = dy w   operands output_gradient and weight
    weight_gradient   dw = dy x   operands output_gradient and input

`Product` is one autograd function around any kernel that knows the three: torch's own linear and convolution, whose
sums are float32, batches of matrices (`Matrices`), or matrices whose every partial sum is rounded (`Sums`).

An operand of a format with scales is rounded along the dimension that its product sums over, so that a block is a
part of one dot product; each product has an operand rounded for it alone then. So is one that is transformed
(`Round`'s `has_axis`). Where every cut is the same, of one scale for the tensor and of tiles of a Linear layer's
matrices, two products read what was rounded once. Those dimensions:

    Linear    forward: the features; input_gradient: the outputs; weight_gradient: the rows, all leading dimensions
              of x as one
    Conv      forward: the channels of a group; input_gradient: its output channels; weight_gradient: the batch, for
              it alone is summed over alike at all places of the kernel. Tiles of a weight are of output channels and
              channels
    Matrices  the last but one dimension of what is transposed for its product, else the last
    Sums      those of the matrices: of a Conv channels and places of the kernel together, and all windows
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from custom_fp.accumulator import Accumulator, is_name
from custom_fp.backends import check_knows
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.layers import scaled_operands
from custom_fp.ops import matmul, quantize

PRODUCTS = FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = ("forward", "input_gradient", "weight_gradient")
ROLES = {  # and the products that each takes part in
    "input": (FORWARD, WEIGHT_GRADIENT),
    "weight": (FORWARD, INPUT_GRADIENT),
    "output_gradient": (INPUT_GRADIENT, WEIGHT_GRADIENT),
    "result": PRODUCTS,
}


OPERANDS = {  # of each product
    FORWARD: ("input", "weight"),
    INPUT_GRADIENT: ("output_gradient", "weight"),
    WEIGHT_GRADIENT: ("output_gradient", "input"),
}
FACTORS = {**OPERANDS, WEIGHT_GRADIENT: ("input", "output_gradient")}  # as `Sums` multiplies them

Round = Callable[[Tensor], Tensor]
"""Of any shape; straight through for the gradient. It may have `has_axis`, true where it is `along(x, axis)` that an
operand is rounded by, which may fill the dimension `axis` up with zeros; `has_tiles`, true where that is so but for
matrices, whose last two dimensions are cut alike whatever the axis; and `nearest`, what it is in evaluation."""


@dataclass(frozen=True)
class Nearest:
    """Rounding to a format, nearest even; see `custom_fp.quantize`."""

    fmt: NumberFormat | str

    def __post_init__(self) -> None:
        """Sets what torch.compile could not look up."""
        fmt = parse(self.fmt)
        object.__setattr__(self, "has_axis", fmt.has_axis)
        object.__setattr__(self, "has_tiles", fmt.has_tiles)

    def __call__(self, x: Tensor) -> Tensor:
        return quantize(x, self.fmt)

    def along(self, x: Tensor, axis: int) -> Tensor:
        return quantize(x, self.fmt, axis=axis)

    def __str__(self) -> str:
        return str(self.fmt)


@dataclass(frozen=True)
class Arithmetic:
    """How the products of one layer run; what is not named is left in float32.

    roundings      by (role, product), of `ROLES`
    accumulators   by product, the name of what it is summed by: a format, of every product of two values and of every
                   partial sum, or an Accumulator (custom_fp.matmul)
    kahan          the products whose additions carry their error along
    """

    roundings: Mapping[tuple[str, str], Round] = field(default_factory=dict)
    accumulators: Mapping[str, str] = field(default_factory=dict)
    kahan: Collection[str] = ()

    def __post_init__(self) -> None:
        """Sets `evaluated`, what it is where a layer is evaluated: nothing is drawn there. ValueError where operands
        are not of the formats in which their product's accumulator finds scales."""
        scaled_operands.check(self.accumulators, self.roundings, FACTORS)
        nearest = {key: getattr(rounding, "nearest", rounding) for key, rounding in self.roundings.items()}
        sums = {product: _without_draws(name) for product, name in self.accumulators.items()}
        draws = any(nearest[key] is not rounding for key, rounding in self.roundings.items())
        draws = draws or sums != dict(self.accumulators)
        evaluated = Arithmetic(nearest, sums, self.kahan) if draws else self
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
        """The same for all operands, and for both products of the backward pass; see `modules.py`."""
        backward = backward_accumulator or accumulator
        sums = {FORWARD: accumulator, INPUT_GRADIENT: backward, WEIGHT_GRADIENT: backward}
        formats = {"input": operands, "weight": operands, "output_gradient": gradients}
        return cls(
            {(role, p): Nearest(parse(fmt)) for role, fmt in formats.items() if fmt for p in ROLES[role]},
            {product: _named(how) for product, how in sums.items() if how},
            PRODUCTS if kahan else (),
        )

    def __bool__(self) -> bool:
        return bool(self.roundings or self.accumulators)

    def __str__(self) -> str:
        known = {
            role: {p: self.roundings.get((role, p)) for p in products} for role, products in ROLES.items()
        }
        known["accumulator"] = {p: self.accumulators.get(p) for p in PRODUCTS}
        known["kahan"] = {p: p in self.kahan for p in PRODUCTS}
        texts = []
        for role, by_product in known.items():
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
    ) -> Tensor:
        """kernel's product of x and w, float32, x_as and w_as laying out what is rounded as the kernel wants it."""
        x_forward, x_backward = self._operands("input", FORWARD, WEIGHT_GRADIENT, x, x_as, kernel)
        w_forward, w_backward = self._operands("weight", FORWARD, INPUT_GRADIENT, w, w_as, kernel)
        return Product.apply(x_forward, w_forward, x_backward, w_backward, kernel, self)

    def rounded(self, role: str, product: str, x: Tensor) -> Tensor:
        rounding = self.roundings.get((role, product))
        return x if rounding is None else rounding(x)

    def read(self, role: str, product: str, x: Tensor, kernel: Any) -> Tensor:
        """An operand as its product reads it, where it is rounded along a dimension; else x, rounded before."""
        rounding = self.roundings.get((role, product))
        return kernel.along(role, product, x, rounding.along) if _for_one(rounding, x, kernel) else x

    def _operands(
        self, role: str, one: str, other: str, x: Tensor, laid_out: Callable, kernel: Any
    ) -> tuple[Tensor, Tensor | None]:
        """As the forward product gets it, through which the gradient goes, and the backward one (None: the same)."""
        for_one, for_other = (self.by_itself(role, product, x, kernel) for product in (one, other))
        forward = laid_out((x if for_one is None else for_one(x)).float())
        if for_one == for_other or not torch.is_grad_enabled():
            return forward, None
        x = x.detach()
        return forward, laid_out((x if for_other is None else for_other(x)).float())

    def by_itself(self, role: str, product: str, x: Tensor, kernel: Any) -> Round | None:
        """What rounds an operand as it is, once where two products read it."""
        rounding = self.roundings.get((role, product))
        return None if _for_one(rounding, x, kernel) else rounding


def _named(how: Accumulator | Format | str) -> str:
    if isinstance(how, Accumulator) or (isinstance(how, str) and is_name(how)):
        return Accumulator.parse(how).name
    fmt = parse(how)
    check_knows("matmul", fmt)
    return fmt.name


def _without_draws(name: str) -> str:
    return Accumulator.parse(name).nearest.name if is_name(name) else name


def _for_one(rounding: Round | None, x: Tensor, kernel: Any) -> bool:
    """Whether x is rounded for one product alone, along what that sums over."""
    if getattr(rounding, "has_tiles", False):
        return x.dim() != 2 or not isinstance(kernel, Linear)
    return getattr(rounding, "has_axis", False)


class Product(torch.autograd.Function):
    """kernel.product(x, w); the products of the backward pass read x_backward and w_backward instead, where given. They
    are what the arithmetic says, under torch.autocast too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        w: Tensor,
        x_backward: Tensor | None,
        w_backward: Tensor | None,
        kernel: Any,
        arithmetic: Arithmetic,
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = arithmetic.read("input", FORWARD, x, kernel)
            w = arithmetic.read("weight", FORWARD, w, kernel)
            return arithmetic.rounded("result", FORWARD, kernel.product(x, w))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, w, x_backward, w_backward, ctx.kernel, ctx.arithmetic = inputs
        ctx.save_for_backward(
            x if x_backward is None else x_backward, w if w_backward is None else w_backward
        )

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple:
        x, w = ctx.saved_tensors
        kernel, arithmetic = ctx.kernel, ctx.arithmetic
        for_x, for_w = (
            arithmetic.by_itself("output_gradient", p, error, kernel) for p in ROLES["output_gradient"]
        )
        error_x = error if for_x is None else for_x(error)
        error_w = (
            error_x if for_w == for_x else error if for_w is None else for_w(error)
        )  # one draw, if it draws
        dx = dw = None
        with torch.autocast(x.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                error_x = arithmetic.read("output_gradient", INPUT_GRADIENT, error_x, kernel)
                by_w = arithmetic.read("weight", INPUT_GRADIENT, w, kernel)
                dx = arithmetic.rounded("result", INPUT_GRADIENT, kernel.input_gradient(error_x, x, by_w))
            if ctx.needs_input_grad[1]:
                error_w = arithmetic.read("output_gradient", WEIGHT_GRADIENT, error_w, kernel)
                by_x = arithmetic.read("input", WEIGHT_GRADIENT, x, kernel)
                dw = arithmetic.rounded("result", WEIGHT_GRADIENT, kernel.weight_gradient(error_w, by_x, w))
        return dx, dw, None, None, None, None


# ---- kernels: x, w and the error of y in float32 -> a product; of x in input_gradient and w in weight_gradient the
# shape alone is read. `along`: an operand, rounded along what its product sums over

Along = Callable[[Tensor, int], Tensor]


class Linear:
    """x (..., K), w (M, K), y (..., M)."""

    def along(self, role: str, product: str, x: Tensor, rounded: Along) -> Tensor:
        if product == WEIGHT_GRADIENT:
            return rounded(x.reshape(-1, x.shape[-1]), 0)
        return rounded(x, 0 if (role, product) == ("weight", INPUT_GRADIENT) else -1)

    def product(self, x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w)

    def input_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return error @ w

    def weight_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return error.reshape(-1, error.shape[-1]).t() @ x.reshape(-1, x.shape[-1])


class Matrices:
    """x (..., L, K), w (..., S, K), y = x w^T (..., L, S): leading dimensions equal."""

    def along(self, role: str, product: str, x: Tensor, rounded: Along) -> Tensor:
        transposed = (role, product) == ("weight", INPUT_GRADIENT) or product == WEIGHT_GRADIENT
        return rounded(x, -2 if transposed else -1)

    def product(self, x: Tensor, w: Tensor) -> Tensor:
        return x @ w.mT

    def input_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return error @ w

    def weight_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return error.mT @ x


@dataclass(frozen=True)
class Conv:
    """x (B, C, ...), w (M, C / groups, ...), y (B, M, ...), padded by zeros."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def along(self, role: str, product: str, x: Tensor, rounded: Along) -> Tensor:
        if product == WEIGHT_GRADIENT:
            return rounded(x, 0)
        if role != "weight":  # each group is a sum of its own
            return rounded(x.unflatten(1, (self.groups, -1)), 2).flatten(1, 2)
        matrices = x.unflatten(0, (self.groups, -1)).movedim((1, 2), (-2, -1))  # of which tiles are cut
        matrices = rounded(matrices, -1 if product == FORWARD else -2)
        return matrices.movedim((-2, -1), (1, 2)).flatten(0, 1)

    def product(self, x: Tensor, w: Tensor) -> Tensor:
        none = [0] * len(self.stride)
        return torch.convolution(
            x, w, None, self.stride, self.padding, self.dilation, False, none, self.groups
        )

    def input_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return self._backward(error, x, w, [True, False, False])[0]

    def weight_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return self._backward(error, x, w, [False, True, False])[1]

    def _backward(self, error: Tensor, x: Tensor, w: Tensor, which: list[bool]) -> tuple:
        none = [0] * len(self.stride)
        return torch.ops.aten.convolution_backward(
            error, x, w, None, self.stride, self.padding, self.dilation, False, none, self.groups, which
        )


@dataclass(frozen=True)
class Sums:
    """Matrices x (..., R, K) and w (..., K, M), y (..., R, M), every partial sum of a product in its accumulator."""

    arithmetic: Arithmetic

    def along(self, role: str, product: str, x: Tensor, rounded: Along) -> Tensor:
        is_row = product == WEIGHT_GRADIENT or (role, product) == ("weight", FORWARD)
        return rounded(x, -2 if is_row else -1)

    def product(self, x: Tensor, w: Tensor) -> Tensor:
        return self._sum(x, w, FORWARD)

    def input_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return self._sum(error, w.mT, INPUT_GRADIENT)

    def weight_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return self._sum(x.mT, error, WEIGHT_GRADIENT)

    def _sum(self, a: Tensor, b: Tensor, product: str) -> Tensor:
        fmt, kahan = self.arithmetic.accumulators.get(product), product in self.arithmetic.kahan
        return a @ b if fmt is None else matmul(a, b, accumulator=fmt, kahan=kahan)


# ---- between layers


def round_gradient(x: Tensor, rounding: Round) -> Tensor:
    """A view of x, through which the gradient comes rounded."""
    return (_RoundGradient if torch.compiler.is_compiling() else _RoundGradientNotTangent).apply(x, rounding)


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


class _RoundGradientNotTangent(_RoundGradient):
    """With the identity for tangents too; apart, for torch.compile takes no Function that has them."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent.view_as(tangent)
