"""Training in 8-bit tensors: each tensor is one of 2^bits levels between its smallest and its largest value.

After Banner, Hubara, Hoffer and Soudry, "Scalable Methods for 8-bit Training of Neural Networks" (arXiv 1805.11046),
as Aketi, Kodge and Roy (arXiv 2111.09389, section 3) train decentralised networks. In Linear and Conv layers

    y = Q(x) * Q(w) + b                               activation_bits, weight_bits: to the nearest level
    e = the error that arrives; e8 = Q(e)             error_bits, error_rounding
    dx = e8 * Q(w);  dw = Q(e * Q(x))                 gradient_bits, stochastic; with e8 for e where
                                                      float_errors_for_weights is off ("gradient bifurcation")

and what enters a normalisation layer or a sum of branches (`models.norms.Sum`), and the error that leaves it, is
rounded the same way. Products and sums, biases, the weights' own copy, optimizer state and all other layers are
float32.

The authors' code (github.com/aparna-aketi/Low_Precision_DL, quantized_training/quantize.py) gives activations the mean
over samples of each one's smallest and largest value for a range and clips what lies beyond (activation_range:
samples), and rounds them stochastically, since `num_chunks=16` reaches the place of `stochastic` (activation_rounding:
stochastic). What differs from it: evaluation takes the range of the batch at hand, not an average over steps, and
rounds to nearest; biases and the weights of norms stay float32.

inf and NaN make their whole tensor NaN: a diverged run stays visible. A tensor of equal values is kept as it is.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpdrun.comm.compressors.base import check_rounding
from cpdrun.comm.compressors.bitpack import packed_bytes
from cpdrun.models.normed.norms import Sum, is_norm
from cpdrun.train.precision.rules import Precision


def min_max_quantize(
    x: Tensor, bits: int | None, stochastic: bool = False, by_sample: bool = False
) -> Tensor:
    """x rounded to 2^bits levels between its smallest and largest value; None: x itself. Any shape; draws come from
    torch's global generator. by_sample: between the mean of the samples' smallest values and that of their largest,
    what lies beyond clipped; the first dimension counts them."""
    if bits is None:
        return x
    low, high = x.amin(), x.amax()
    if by_sample:
        low, high = x.flatten(1).amin(dim=1).mean(), x.flatten(1).amax(dim=1).mean()
    step = (high - low) / (2**bits - 1)
    step = torch.where(step == 0, 1.0, step)
    level = (x - low) / step
    level = torch.floor(level + torch.rand_like(x)) if stochastic else level.round()
    return level.clamp(0, 2**bits - 1) * step + low


@dataclass(frozen=True)
class Bits:
    """The settings of one run, as conf/precision/int8.yaml spells them."""

    weights: int | None
    activations: int | None
    errors: int | None
    gradients: int | None
    stochastic_errors: bool
    stochastic_activations: bool
    clipped_activations: bool
    float_errors_for_weights: bool

    def activation(self, x: Tensor, training: bool) -> Tensor:
        """x as a layer reads it; straight through for the gradient."""
        stochastic = self.stochastic_activations and training
        return _RoundForward.apply(x, self.activations, stochastic, self.clipped_activations)


class _RoundForward(torch.autograd.Function):
    """Rounded to a level forward; the gradient passes straight through."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bits: int | None, stochastic: bool, by_sample: bool) -> Tensor:
        return x.clone() if bits is None else min_max_quantize(x, bits, stochastic, by_sample)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return grad, None, None, None


class _RoundBackward(torch.autograd.Function):
    """Identity forward; the gradient is rounded."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bits: Bits) -> Tensor:
        return x.clone()  # a view could not be changed in place, as a ReLU may do

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.bits = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return min_max_quantize(grad, ctx.bits.errors, ctx.bits.stochastic_errors), None


class _Product(torch.autograd.Function):
    """x * w, where the backward pass rounds the error for x, and perhaps for w, and then w's gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, layer: nn.Module) -> Tensor:
        return layer.product(x, w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, w, ctx.layer = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple:
        x, w = ctx.saved_tensors
        bits = ctx.layer.bits
        rounded = min_max_quantize(error, bits.errors, bits.stochastic_errors)
        dx = ctx.layer.input_gradient(rounded, x, w)
        dw = ctx.layer.weight_gradient(error if bits.float_errors_for_weights else rounded, x, w)
        return dx, min_max_quantize(dw, bits.gradients, stochastic=True), None


class _Layer:
    """What both layers share: how they take over a layer of torch.nn, and the order of their steps."""

    bits: Bits

    @classmethod
    def of(cls, module: nn.Module, bits: Bits) -> nn.Module:
        """A layer with the same parameters (the same objects), hooks and settings."""
        layer = cls.__new__(cls)
        layer.__dict__.update(module.__dict__)
        layer.bits = bits
        return layer

    def multiply(self, x: Tensor) -> Tensor:
        x8 = self.bits.activation(x, self.training)
        w8 = _RoundForward.apply(self.weight, self.bits.weights, False, False)
        return _Product.apply(x8, w8, self)


class Int8Linear(_Layer, nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = self.multiply(x)
        return y if self.bias is None else y + self.bias

    def product(self, x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w)

    def input_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return error @ w

    def weight_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return error.reshape(-1, error.shape[-1]).t() @ x.reshape(-1, x.shape[-1])


class Int8Conv2d(_Layer, nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        y = self.multiply(x)
        return y if self.bias is None else y + self.bias[:, None, None]

    def product(self, x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, None, *self._settings())

    def input_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return self._backward(error, x, w, [True, False, False])[0]

    def weight_gradient(self, error: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return self._backward(error, x, w, [False, True, False])[1]

    def _settings(self) -> tuple:
        return self.stride, self.padding, self.dilation, self.groups

    def _backward(self, error: Tensor, x: Tensor, w: Tensor, which: list[bool]) -> tuple:
        stride, padding, dilation, groups = self._settings()
        return torch.ops.aten.convolution_backward(
            error, x, w, None, stride, padding, dilation, False, [0, 0], groups, which
        )


RANGES = ("tensor", "samples")
KINDS = {nn.Linear: Int8Linear, nn.Conv2d: Int8Conv2d}


class Int8(Precision):
    """Layers that compute in 8-bit tensors; all else is float32. Bits of null leave a tensor alone.

    Raises ValueError for bits out of 1..16, an unknown rounding or range, and a convolution that pads with anything but
    zeros.
    """

    def __init__(
        self,
        weight_bits: int | None,
        activation_bits: int | None,
        error_bits: int | None,
        gradient_bits: int | None,
        activation_rounding: str,
        activation_range: str,
        error_rounding: str,
        float_errors_for_weights: bool,
        loss_scale: float | str,
    ):
        super().__init__(
            **dict.fromkeys(
                ("weights", "activations", "errors", "accumulator", "optimizer_state", "update"), "fp32"
            ),
            kahan=False,
            master_weights=True,
            loss_scale=loss_scale,
            update_order="unscale_first",
            update_rounding="nearest_even",
            kahan_weights=False,
            fp32_norms=False,
            aps=False,
        )
        check_rounding("precision.error_rounding", error_rounding)
        check_rounding("precision.activation_rounding", activation_rounding)
        if activation_range not in RANGES:
            raise ValueError(
                f"precision.activation_range must be one of {', '.join(RANGES)}, not {activation_range}"
            )
        given = {
            "weight": weight_bits,
            "activation": activation_bits,
            "error": error_bits,
            "gradient": gradient_bits,
        }
        for name, bits in given.items():
            if bits is not None and not 1 <= bits <= 16:
                raise ValueError(f"precision.{name}_bits must lie between 1 and 16, or be null, not {bits}")
        self.bits = Bits(
            *given.values(),
            stochastic_errors=error_rounding == "stochastic",
            stochastic_activations=activation_rounding == "stochastic",
            clipped_activations=activation_range == "samples",
            float_errors_for_weights=float_errors_for_weights,
        )
        self.activation_bits = activation_bits
        self.rounded_weights: list[int] = []  # how many values each has

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model with its Linear and Conv2d layers replaced and its norms watched; its parameters stay."""
        model = super().prepare(model)
        for parent_name, parent in list(model.named_modules()):
            for name, child in list(parent.named_children()):
                if getattr(child, "padding_mode", "zeros") != "zeros":
                    raise ValueError(
                        f"precision: {parent_name}.{name} pads with {child.padding_mode}; 8 bits take zeros"
                    )
                if type(child) in KINDS:
                    setattr(parent, name, KINDS[type(child)].of(child, self.bits))
                    self.rounded_weights.append(child.weight.numel())
                elif is_norm(child) or isinstance(child, Sum):
                    child.register_forward_pre_hook(self._round_inputs)
                    child.register_forward_hook(self._round_error)
        return model

    def memory(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> dict[str, int]:
        """As `Precision.memory`, with the rounded weights in their bits and two float32 ends of their range each in
        model_bytes, and the float32 weights that are updated, of which they are made, in optimizer_bytes."""
        kept = super().memory(optimizer, parameters)
        if self.bits.weights is None:
            return kept
        full = sum(4 * n for n in self.rounded_weights)
        few = sum(packed_bytes(n, self.bits.weights) + 8 for n in self.rounded_weights)
        return {
            "model_bytes": kept["model_bytes"] - full + few,
            "optimizer_bytes": kept["optimizer_bytes"] + full,
        }

    def _round_inputs(self, module: nn.Module, inputs: tuple) -> tuple:
        return tuple(self.bits.activation(x, module.training) for x in inputs)

    def _round_error(self, _module: nn.Module, _inputs: tuple, output: Tensor) -> Tensor:
        return _RoundBackward.apply(output, self.bits)
