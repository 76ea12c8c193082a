"""Number formats of the computation itself: weights, activations, errors, accumulators, optimizer state, update.

What is emulated follows Wang et al., "Training Deep Neural Networks with 8-bit Floating Point Numbers" (arXiv
1812.08011), figure 1, Micikevicius et al., "Mixed Precision Training" (arXiv 1710.03740), sections 3.1 (master
weights) and 3.2 (loss scale), and, for training in one format throughout, Cheng et al., "Distributed Low Precision
Training Without Mixed Precision" (arXiv 1911.07384):

    weights          rounded before every step; the step itself updates a float32 master copy, or with
                     master_weights=false the rounded weights (`weight_update.py` says what becomes of small updates)
    activations      the input of the model, and what every layer reads and gives, is rounded
    errors           the gradient that arrives at the output of every layer is rounded
    accumulator      every product and partial sum of Linear and Conv layers, forward and backward
    optimizer_state  momentum and the like, rounded after every step
    update           every operation of SGD's step (`rounded_sgd.py`)
    fp32_norms       normalisation layers keep float32 weights, statistics and optimizer state; what they read and give
                     is rounded all the same
    aps              each tensor of weights, activations or errors is shifted by a power of two that fills its format
                     (`tensor_aps.py`)

Weights, activations and errors may be in any format of custom_fp; one with scales (MX, a codebook) takes them from each
tensor, in blocks of elements that are neighbours in memory: for a Linear layer those of one dot product, as MX 1.0
has it; for a Conv2d neighbours in a row of the image or the kernel, where hardware would take channels.

Running statistics are rounded to the weights' format after every step. All of it is fp32 by default, and then
nothing is swapped in and nothing is copied.

Differences from arXiv 1911.07384, which trains ResNet50 on 128 GPUs whose hardware computes FP16: the format is any,
and emulated, so inside one layer that is no Linear or Conv (the mean and variance of a batch, a softmax, a bias
added) the arithmetic is float32, and so are the loss and clip_norm; what goes in and comes out is of the format. The
gradients between workers have the run's `format`. The paper's full text was not at hand: the rules of the update are
those that other work found to do without a master copy, and may not be its own.
"""

import copy
from itertools import pairwise
from typing import Any

import custom_fp
import torch
from custom_fp.formats.names import as_scaled, is_scaled, parse
from custom_fp.formats.scalar import Format
from custom_fp.modules import Quantizer, quantize_model_
from torch import Tensor, nn

from cpdrun.models.normed.norms import norms_of
from cpdrun.optim.groups import trainable
from cpdrun.optim.rounded_sgd import ORDERS, rounding_to, sgd_update
from cpdrun.train.precision.tensor_aps import ApsQuantizer, aps_quantize
from cpdrun.train.precision.weight_update import ROUNDINGS, WeightUpdate

FP32 = Format.parse("fp32")
FIRST_DYNAMIC_SCALE = 2.0**16
GOOD_STEPS_TO_DOUBLE = 2000


class LossScale:
    """A factor on the loss, divided out of the summed gradient: fixed, or as large as stays finite.

    Dynamic (arXiv 1710.03740, section 3.2): a step whose gradient is not finite is skipped and halves the scale,
    2,000 good steps in a row double it. Powers of two, so that dividing is exact.
    """

    def __init__(self, setting: float | str):
        self.dynamic = setting == "dynamic"
        if not self.dynamic and not (isinstance(setting, int | float) and setting > 0):
            raise ValueError(f"precision.loss_scale must be a number above 0 or dynamic, not {setting}")
        self.value = FIRST_DYNAMIC_SCALE if self.dynamic else float(setting)
        self.good_steps = 0
        self.used = self.value  # of the step accepted last

    def accept(self, nonfinite: int) -> bool:
        """Whether to take the step whose gradient has so many elements that are not finite."""
        self.used = self.value
        if not self.dynamic:
            return True
        if nonfinite:
            self.value, self.good_steps = self.value / 2, 0
            return False
        self.good_steps += 1
        if self.good_steps == GOOD_STEPS_TO_DOUBLE:
            self.value, self.good_steps = self.value * 2, 0
        return True


class Precision:
    """The formats of one run; conf/precision/*.yaml gives the arguments and says what each does.

    `seed`, set by whoever builds the run, keys stochastic rounding.
    """

    seed: int = 0
    activation_bits: int | None = None

    def __init__(
        self,
        weights: str,
        activations: str,
        errors: str,
        accumulator: str,
        kahan: bool,
        optimizer_state: str,
        master_weights: bool,
        loss_scale: float | str,
        update: str,
        update_order: str,
        update_rounding: str,
        kahan_weights: bool,
        fp32_norms: bool,
        aps: bool,
    ):
        self.weights, self.activations, self.errors, self.accumulator, self.optimizer_state, self.update = (
            _named(key, name, scales)
            for key, name, scales in (
                ("weights", weights, True),
                ("activations", activations, True),
                ("errors", errors, True),
                ("accumulator", accumulator, False),
                ("optimizer_state", optimizer_state, False),
                ("update", update, False),
            )
        )
        _one_of("update_order", update_order, ORDERS)
        _one_of("update_rounding", update_rounding, ROUNDINGS)
        if (update_rounding == "stochastic" or kahan_weights) and (master_weights or not self.weights):
            raise ValueError(
                "precision.update_rounding=stochastic and precision.kahan_weights=true are for weights of a format "
                "without a float32 copy: set precision.weights and precision.master_weights=false"
            )
        if self.weights and is_scaled(self.weights) and not master_weights:
            raise ValueError(
                f"precision.weights={weights} has scales, which every update would change: it takes "
                "precision.master_weights=true"
            )
        if aps:
            _check_aps(self.weights, self.activations, self.errors, master_weights)
        self.aps = aps
        self.kahan, self.master_weights, self.fp32_norms = kahan, master_weights, fp32_norms
        self.update_order, self.update_rounding, self.kahan_weights = (
            update_order,
            update_rounding,
            kahan_weights,
        )
        self.loss_scale = LossScale(loss_scale)
        self.masters: list[Tensor] = []
        self.weight_update: WeightUpdate | None = None
        self.in_fp32: set[int] = (
            set()
        )  # parameters of normalisation layers, by their place in the model's list
        self.statistics: list[
            Tensor
        ] = []  # running statistics, those that are rounded as the weights are ...
        self.fp32_statistics: list[Tensor] = []  # ... and those that are not

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model with rounding layers in place and its weights rounded; the same model where all is fp32."""
        if self.fp32_norms:
            own = [id(p) for module in norms_of(model) for p in module.parameters(recurse=False)]
            self.in_fp32 = {i for i, p in enumerate(trainable(model).values()) if id(p) in own}
        if self.accumulator:
            model = quantize_model_(model, accumulator=self.accumulator, kahan=self.kahan)
        if self.activations or self.errors:
            self._round_between_layers(model)
        kept = norms_of(model) if self.fp32_norms else []
        of_norms = {id(b) for module in kept for b in module.buffers(recurse=False)}
        for buffer in (b for b in model.buffers() if b.is_floating_point()):
            rounded = self.weights and id(buffer) not in of_norms
            (self.statistics if rounded else self.fp32_statistics).append(buffer)
        if self.weights:
            parameters = list(trainable(model).values())
            self.masters = [p.detach().clone() for p in parameters] if self.master_weights else []
            if not self.master_weights:
                self.weight_update = WeightUpdate(
                    self.weights, self.update_rounding, self.kahan_weights, self.seed
                )
            self._round_weights(parameters)
            self._round_statistics()
        return model

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """ValueError where the steps of this optimizer cannot be rounded one by one."""
        if not self.update:
            return
        groups = optimizer.param_groups
        if type(optimizer) is not torch.optim.SGD or any(g["dampening"] or g["maximize"] for g in groups):
            raise ValueError(
                f"precision.update={self.update} rounds every operation of SGD (optim=sgd) and knows no other "
                "optimizer; precision.update=fp32 rounds its state and the weights after each step"
            )

    def step(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        """One optimizer step on the master weights, or on the rounded ones; then weights and state are rounded.

        Gradients are in `.grad`, divided by the loss scale.
        """
        if not (self.weights or self.optimizer_state or self.update):
            optimizer.step()
            return
        with torch.no_grad():
            for i, master in enumerate(self.masters):
                parameters[i].copy_(master)
            changes = self._rounded_changes(optimizer, parameters) if self.update else None
            if self.weight_update is None:
                self._move_freely(optimizer, parameters, changes)
            else:
                self._move_in_format(optimizer, parameters, changes)
            for i, master in enumerate(self.masters):
                master.copy_(parameters[i])
            if self.weights and self.weight_update is None:
                self._round_weights(parameters)
            self._round_statistics()
            if self.optimizer_state:
                self._round_state(optimizer, parameters)

    def skip(self) -> None:
        """Instead of a step: the running statistics alone have changed."""
        with torch.no_grad():
            self._round_statistics()

    def memory(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> dict[str, int]:
        """Bytes that a machine with these formats would keep from step to step.

        model_bytes: weights and running statistics, each in its format, and with aps a byte a tensor for its shift.
        optimizer_bytes: the optimizer's state, the float32 copies of weights and the compensations of Kahan's weights.
        """
        of_state = self.update or self.optimizer_state
        if self.update and self.optimizer_state:
            of_state = min(self.update, self.optimizer_state, key=lambda name: Format.parse(name).bits)
        model = sum(_bytes(p, None if i in self.in_fp32 else self.weights) for i, p in enumerate(parameters))
        model += sum(_bytes(b, self.weights) for b in self.statistics)
        model += sum(_bytes(b, None) for b in self.fp32_statistics)
        if self.aps and self.weights:
            model += len(parameters) - len(self.in_fp32) + len(self.statistics)
        kept = sum(_bytes(master, None) for master in self.masters)
        if self.weight_update is not None:
            kept += sum(_bytes(c, self.weights) for c in self.weight_update.compensations)
        for i, parameter in enumerate(parameters):
            for value in optimizer.state.get(parameter, {}).values():
                if _is_state(value):
                    kept += _bytes(value, None if i in self.in_fp32 else of_state)
        return {"model_bytes": model, "optimizer_bytes": kept}

    @property
    def rounds_weights(self) -> str:
        """What rounds the weights between steps, as it is typed; empty where they are float32."""
        return f"precision.weights={self.weights}" if self.weights else ""

    def of_worker(self) -> "Precision":
        """The same for a worker of its own."""
        return copy.deepcopy(self)

    def state_dict(self) -> dict[str, Any]:
        state = {
            "loss_scale": self.loss_scale.value,
            "good_steps": self.loss_scale.good_steps,
            "masters": self.masters,
        }
        if self.weight_update is not None:
            state["updates"] = self.weight_update.updates
            state["compensations"] = self.weight_update.compensations
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss_scale.value, self.loss_scale.good_steps = state["loss_scale"], state["good_steps"]
        self.masters = state["masters"]
        if self.weight_update is not None:
            self.weight_update.updates = state["updates"]
            self.weight_update.compensations = state["compensations"]

    def _round_between_layers(self, model: nn.Module) -> None:
        """What functional operations between layers (a residual added) make of rounded values is rounded where the
        next layer reads it."""
        kind = ApsQuantizer if self.aps else Quantizer
        rounding = kind(forward=self.activations, backward=self.errors)
        reading = kind(forward=self.activations)

        def read(_module: nn.Module, inputs: tuple) -> tuple:
            return tuple(reading(x) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)

        rounded_before = _directly_after_a_layer(model)
        for module in list(model.modules()):
            if not list(module.children()):
                if self.activations and module not in rounded_before:
                    module.register_forward_pre_hook(read)
                module.register_forward_hook(lambda _module, _inputs, output: rounding(output))

    def _rounded_changes(
        self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]
    ) -> list[Tensor]:
        """-u of every parameter, float64."""
        settings = {p: group for group in optimizer.param_groups for p in group["params"]}
        in_format, in_fp32 = rounding_to(self.update), rounding_to(None)
        return [
            -sgd_update(
                p,
                p.grad,
                optimizer.state[p],
                settings[p],
                scale=self.loss_scale.used,
                order=self.update_order,
                rounded=in_fp32 if i in self.in_fp32 else in_format,
            ).double()
            for i, p in enumerate(parameters)
        ]

    def _move_freely(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[nn.Parameter],
        changes: list[Tensor] | None,
    ) -> None:
        """Float32 weights take a float32 step, or one by rounded changes."""
        if changes is None:
            optimizer.step()
            return
        for p, change in zip(parameters, changes, strict=True):
            p.copy_(p.double() + change)

    def _move_in_format(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[nn.Parameter],
        changes: list[Tensor] | None,
    ) -> None:
        """Weights of a format take a step without ever being anything else, but for normalisation layers in fp32."""
        if changes is None:
            before = [p.detach().clone() for p in parameters]
            optimizer.step()
            changes = [p.double() - old.double() for p, old in zip(parameters, before, strict=True)]
            torch._foreach_copy_(list(parameters), before)
        mine = [i for i in range(len(parameters)) if i not in self.in_fp32]
        self.weight_update.apply_([parameters[i] for i in mine], [changes[i] for i in mine])
        for i in self.in_fp32:
            parameters[i].copy_(parameters[i].double() + changes[i])

    def _round_weights(self, parameters: list[nn.Parameter]) -> None:
        with torch.no_grad():
            for i, parameter in enumerate(parameters):
                if i not in self.in_fp32:
                    parameter.copy_(self._as_weights(parameter.detach()))

    def _round_statistics(self) -> None:
        for buffer in self.statistics:
            buffer.copy_(self._as_weights(buffer))

    def _as_weights(self, x: Tensor) -> Tensor:
        return aps_quantize(x, self.weights) if self.aps else custom_fp.quantize(x, self.weights)

    def _round_state(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        for i, parameter in enumerate(parameters):
            for value in optimizer.state.get(parameter, {}).values() if i not in self.in_fp32 else ():
                if _is_state(value):
                    custom_fp.quantize(value, self.optimizer_state, out=value)


def _directly_after_a_layer(model: nn.Module) -> set[nn.Module]:
    """Layers of a Sequential that read the very output of the layer before: it is rounded already."""
    chains = [list(module) for module in model.modules() if type(module) is nn.Sequential]
    return {layer for chain in chains for before, layer in pairwise(chain) if not list(before.children())}


def _is_state(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0


def _bytes(tensor: Tensor, fmt: str | None) -> int:
    """Of the tensor in a format, None: float32."""
    if fmt is None:
        return 4 * tensor.numel()
    if scaled := as_scaled(fmt):
        return scaled.packed_size(tensor.numel())
    return -(-tensor.numel() * Format.parse(fmt).bits // 8)


def _check_aps(
    weights: str | None, activations: str | None, errors: str | None, master_weights: bool
) -> None:
    for key, name in (("weights", weights), ("activations", activations), ("errors", errors)):
        if name and is_scaled(name):
            raise ValueError(f"precision.{key}={name} has scales of its own: it takes precision.aps=false")
    if weights and not master_weights:
        raise ValueError(
            "precision.aps=true gives every weight tensor a shift, which an update would change: it takes "
            "precision.master_weights=true"
        )


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"precision.{key}={value}: choose one of {', '.join(allowed)}")


def _named(key: str, name: str, scales: bool) -> str | None:
    """The format's name, or None for fp32: rounding to it changes nothing. scales: whether it may have any."""
    try:
        parsed = parse(name)
        if not scales and not isinstance(parsed, Format):
            raise ValueError(
                "a format with scales can stand for weights, activations and errors; here take eXmY"
            )
    except ValueError as error:
        raise ValueError(f"precision.{key}={name}: {error}") from None
    if parsed == FP32:
        return None
    return parsed.name if isinstance(parsed, Format) else name
