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

The levels start at the smallest value, wherever that lies: zero need not be one of them. So they are not those of
custom_fp's `int8_affine`, whose zero point is a whole number of steps.

inf and NaN make their whole tensor NaN: a diverged run stays visible. A tensor of equal values is kept as it is.
"""

from typing import Any

import torch
from custom_fp.layers.attachment import add_hooks_
from custom_fp.layers.modules import LAYERS
from custom_fp.layers.products import OPERANDS, ROLES, WEIGHT_GRADIENT, Arithmetic, round_gradient
from custom_fp.rounding import is_stochastic
from torch import Tensor, nn

from cpdrun.comm.compressors.base import check_rounding, of_bits
from cpdrun.comm.compressors.bitpack import packed_bytes
from cpdrun.models.normed.norms import Sum, is_norm
from cpdrun.train.precision.base import Operands, Precision, kept_bytes, state_of


def min_max_quantize(
    x: Tensor, bits: int | None, rounding: str = "nearest_even", by_sample: bool = False
) -> Tensor:
    """x rounded to 2^bits levels between its smallest and largest value; None: x itself. Any shape; draws come from
    torch's global generator; stochastic_N takes N bits of them. by_sample: between the mean of the samples' smallest
    values and that of their largest, what lies beyond clipped; the first dimension counts them."""
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


class _RoundForward(torch.autograd.Function):
    """Rounded to a level forward; the gradient passes straight through."""

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
        super().__init__(loss_scale)
        check_rounding("precision.error_rounding", error_rounding)
        check_rounding("precision.activation_rounding", activation_rounding)
        if activation_range not in RANGES:
            raise ValueError(
                f"precision.activation_range must be one of {', '.join(RANGES)}, not {activation_range}"
            )
        given = (weight_bits, activation_bits, error_bits, gradient_bits)
        self.bits = dict(zip(("weight", "activation", "error", "gradient"), given, strict=True))
        for name, bits in self.bits.items():
            if bits is not None and not 1 <= bits <= 16:
                raise ValueError(f"precision.{name}_bits must lie between 1 and 16, or be null, not {bits}")
        self.error_rounding, self.activation_rounding = error_rounding, activation_rounding
        self.clipped_activations = activation_range == "samples"
        self.float_errors_for_weights = float_errors_for_weights
        self.activation_bits = activation_bits
        self.rounded_weights: list[Tensor] = []
        self.replaced: set[str] = set()  # names of the layers that compute so
        self.statistics: list[Tensor] = []

    def prepare(self, model: nn.Module) -> nn.Module:
        """Attach the rounding to the model's Linear and Conv2d layers, norms and sums, and return the model."""
        chosen = {name: module for name, module in model.named_modules() if type(module) in REPLACED}
        for name, module in model.named_modules():
            if getattr(module, "padding_mode", "zeros") != "zeros":
                raise ValueError(f"precision: {name} pads with {module.padding_mode}; 8 bits take zeros")
        self.replaced = set(chosen)
        for layer in chosen.values():
            LAYERS[type(layer)].attach_to(layer, self._arithmetic(layer))
            self.rounded_weights.append(layer.weight)
        for module in model.modules():
            if is_norm(module) or isinstance(module, Sum):
                add_hooks_(module, before=self._round_inputs, after=self._round_error)
        self.statistics = [b for b in model.buffers() if b.is_floating_point()]
        return model

    def operands(self, name: str, part: str | None, product: str, step: int) -> Operands:
        """Sums are float32, as they are emulated."""
        if name not in self.replaced or part is not None:
            return Operands()
        roles = {"input": "activation", "weight": "weight", "output_gradient": "error"}
        bits = [self.bits[roles[role]] for role in OPERANDS[product]]
        if product == WEIGHT_GRADIENT and self.float_errors_for_weights:
            bits[0] = None
        return Operands(*("fp32" if k is None else f"int{k}" for k in bits))

    def memory(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> dict[str, int]:
        """The rounded weights count in their bits, with two float32 ends of their range each, in model_bytes, and the
        float32 weights that are updated, of which they are made, in optimizer_bytes."""
        model = sum(kept_bytes(x, None) for x in (*parameters, *self.statistics))
        state = sum(kept_bytes(v, None) for p in parameters for v in state_of(optimizer, p))
        if (bits := self.bits["weight"]) is None:
            return {"model_bytes": model, "optimizer_bytes": state}
        full = sum(w.nbytes for w in self.rounded_weights)
        few = sum(packed_bytes(w.numel(), bits) + 8 for w in self.rounded_weights)
        updated = sum(w.nbytes for w in self.rounded_weights if w.requires_grad)
        return {"model_bytes": model - full + few, "optimizer_bytes": state + updated}

    def _arithmetic(self, layer: nn.Module) -> Arithmetic:
        def activation(x: Tensor) -> Tensor:
            return self._activation(x, layer.training)

        errors = ROLES["output_gradient"][:1] if self.float_errors_for_weights else ROLES["output_gradient"]
        return Arithmetic(
            {
                **{("input", p): activation for p in ROLES["input"]},
                **{("weight", p): self._weight for p in ROLES["weight"]},
                **{("output_gradient", p): self._error for p in errors},
                ("result", "weight_gradient"): self._gradient,
            }
        )

    def _activation(self, x: Tensor, training: bool) -> Tensor:
        """x as a layer reads it; straight through for the gradient."""
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
        # a view could not be changed in place, as a ReLU may do
        return round_gradient(output, self._error).clone()
