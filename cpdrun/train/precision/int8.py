"""Training with 8-bit tensors, in which each tensor has 2^bits levels between its smallest and its largest value.

The method is that of Banner, Hubara, Hoffer and Soudry, "Scalable Methods for 8-bit Training of Neural Networks" (arXiv
1805.11046), as Aketi, Kodge and Roy (arXiv 2111.09389, section 3) use it for decentralized training. In Linear and Conv
layers, for the gradient e of the output,

    y = Q(x) * Q(w) + b                               activation_bits, weight_bits; rounded to the nearest level
    e8 = Q(e)                                         error_bits, error_rounding
    dx = e8 * Q(w);  dw = Q(e * Q(x))                 gradient_bits, stochastic; with e8 instead of e if
                                                      float_errors_for_weights is false ("gradient bifurcation")

The inputs of normalization layers and of sums of branches (`models.norms.Sum`), and the gradients of their outputs, are
rounded in the same way. Products and sums, biases, the stored weights, the optimizer's state and all other layers are
float32.

The authors' code (github.com/aparna-aketi/Low_Precision_DL, quantized_training/quantize.py) uses, for activations, the
mean over samples of each sample's smallest and largest value as the range, and clips values outside it
(activation_range: samples). It rounds activations stochastically, since `num_chunks=16` is passed in the position of
`stochastic` (activation_rounding: stochastic). The differences from that code are that evaluation uses the range of the
current batch instead of an average over steps and rounds to nearest, and that biases and the weights of normalization
layers stay float32.

The levels start at the smallest value, so zero is not necessarily a level. Therefore they differ from those of
custom_fp's `int8_affine`, whose zero point is a whole number of steps.

If a tensor contains inf or NaN, all its values become NaN, so that divergence stays visible. A tensor of equal values
is unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from custom_fp.layers.attachment import add_hooks_
from custom_fp.layers.modules import LAYERS
from custom_fp.layers.products import ROLES, Arithmetic, round_gradient
from custom_fp.rounding import is_stochastic
from torch import Tensor, nn

from cpdrun.comm.compressors.base import check_rounding, of_bits
from cpdrun.comm.compressors.bitpack import packed_bytes
from cpdrun.models.normed.norms import Sum, is_norm
from cpdrun.train.precision.base import Parameters, Precision, optimizer_state, storage_bytes


def min_max_quantize(
    x: Tensor, bits: int | None, rounding: str = "nearest_even", by_sample: bool = False
) -> Tensor:
    """Round a tensor of any shape to 2^bits levels between its smallest and its largest value.

    Args:
        x: The tensor.
        bits: Number of bits, or None to return `x` itself.
        rounding: The rounding to levels. Stochastic rounding uses torch's global generator; stochastic_N uses N random
            bits.
        by_sample: Use the range from the mean of the samples' smallest values to the mean of their largest values, and
            clip values outside it. Samples are the slices along the first dimension.
    """
    if bits is None:
        return x
    low, high = x.amin(), x.amax()
    if by_sample:
        low, high = x.flatten(1).amin(dim=1).mean(), x.flatten(1).amax(dim=1).mean()
    step = (high - low) / (2**bits - 1)
    step = torch.where(step == 0, 1.0, step)
    level = (x - low) / step
    draws = is_stochastic(rounding)
    level = torch.floor(level + of_bits(torch.rand_like(x), rounding)) if draws else level.round()
    return level.clamp(0, 2**bits - 1) * step + low


@dataclass(frozen=True)
class _Rounding:
    """A rounding function with the number of its bits, or None if it rounds nothing."""

    function: Callable[[Tensor], Tensor]
    bits: int | None

    @property
    def format(self) -> str:
        """The name of the format, for reports."""
        return "fp32" if self.bits is None else f"int{self.bits}"

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)


class _RoundForward(torch.autograd.Function):
    """Rounds in the forward pass. The backward pass returns the gradient unchanged."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bits: int | None, rounding: str, by_sample: bool) -> Tensor:
        return x.clone() if bits is None else min_max_quantize(x, bits, rounding, by_sample)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return grad, None, None, None


RANGES = ("tensor", "samples")
REPLACED = (nn.Linear, nn.Conv2d)


class Int8(Precision):
    """Rounding of the tensors of layers to a given number of bits each, by default 8.

    Tensors whose number of bits is None stay in float32, and so does everything outside of these layers.

    Raises:
        ValueError: A number of bits is not between 1 and 16, or a rounding mode or activation range is unknown.
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
        super().__init__(loss_scale)
        check_rounding("precision.error_rounding", error_rounding)
        check_rounding("precision.activation_rounding", activation_rounding)
        if activation_range not in RANGES:
            raise ValueError(
                f"precision.activation_range must be one of {', '.join(RANGES)}, not {activation_range}"
            )
        self.bits = {
            "weight": weight_bits,
            "activation": activation_bits,
            "error": error_bits,
            "gradient": gradient_bits,
        }
        for name, bits in self.bits.items():
            if bits is not None and not 1 <= bits <= 16:
                raise ValueError(f"precision.{name}_bits must be between 1 and 16, or null, not {bits}")
        self.error_rounding, self.activation_rounding = error_rounding, activation_rounding
        self.clipped_activations = activation_range == "samples"
        self.float_errors_for_weights = float_errors_for_weights
        self.activation_bits = activation_bits
        self.rounded_weights: list[Tensor] = []
        self.statistics: list[Tensor] = []

    def prepare(self, model: nn.Module) -> nn.Module:
        """Attach the rounding to the model's Linear and Conv2d layers, normalization layers and sums.

        Raises:
            ValueError: A convolution pads with values other than zero.
        """
        chosen = {name: module for name, module in model.named_modules() if type(module) in REPLACED}
        for name, module in model.named_modules():
            if getattr(module, "padding_mode", "zeros") != "zeros":
                raise ValueError(
                    f"precision: {name} has padding_mode={module.padding_mode}; int8 supports only padding_mode=zeros"
                )
        for layer in chosen.values():
            LAYERS[type(layer)].attach_to(layer, self._arithmetic(layer))
            self.rounded_weights.append(layer.weight)
        for module in model.modules():
            if is_norm(module) or isinstance(module, Sum):
                add_hooks_(module, before=self._round_inputs, after=self._round_error)
        self.statistics = [b for b in model.buffers() if b.is_floating_point()]
        return model

    def memory(self, optimizer: torch.optim.Optimizer, parameters: Parameters) -> dict[str, int]:
        """Return the sizes of the model and of the optimizer in bytes.

        "model_bytes" counts each rounded tensor in its bits plus the two float32 limits of its range. "optimizer_bytes"
        includes the float32 weights that are updated.
        """
        model = sum(storage_bytes(x, None) for x in (*parameters, *self.statistics))
        state = sum(storage_bytes(v, None) for p in parameters for v in optimizer_state(optimizer, p))
        if (bits := self.bits["weight"]) is None:
            return {"model_bytes": model, "optimizer_bytes": state}
        full = sum(w.nbytes for w in self.rounded_weights)
        rounded = sum(packed_bytes(w.numel(), bits) + 8 for w in self.rounded_weights)
        updated = sum(w.nbytes for w in self.rounded_weights if w.requires_grad)
        return {"model_bytes": model - full + rounded, "optimizer_bytes": state + updated}

    def _arithmetic(self, layer: nn.Module) -> Arithmetic:
        def activation(x: Tensor) -> Tensor:
            return self._activation(x, layer.training)

        errors = ROLES["output_gradient"][:1] if self.float_errors_for_weights else ROLES["output_gradient"]
        of_activation = _Rounding(activation, self.bits["activation"])
        of_weight = _Rounding(self._weight, self.bits["weight"])
        of_error = _Rounding(self._error, self.bits["error"])
        return Arithmetic(
            {
                **{("input", p): of_activation for p in ROLES["input"]},
                **{("weight", p): of_weight for p in ROLES["weight"]},
                **{("output_gradient", p): of_error for p in errors},
                ("result", "weight_gradient"): self._gradient,
            }
        )

    def _activation(self, x: Tensor, training: bool) -> Tensor:
        """Round an input of a layer. In the backward pass, its gradient is unchanged."""
        rounding = self.activation_rounding if training else "nearest_even"
        return _RoundForward.apply(x, self.activation_bits, rounding, self.clipped_activations)

    def _weight(self, w: Tensor) -> Tensor:
        return _RoundForward.apply(w, self.bits["weight"], "nearest_even", False)

    def _gradient(self, dw: Tensor) -> Tensor:
        return min_max_quantize(dw, self.bits["gradient"], "stochastic")

    def _error(self, error: Tensor) -> Tensor:
        return min_max_quantize(error, self.bits["error"], self.error_rounding)

    def _round_inputs(self, module: nn.Module, inputs: tuple) -> tuple:
        return tuple(self._activation(x, module.training) for x in inputs)

    def _round_error(self, _module: nn.Module, _inputs: tuple, output: Tensor) -> Tensor:
        # Clone the output, because an in-place ReLU must not change a view.
        return round_gradient(output, self._error).clone()
