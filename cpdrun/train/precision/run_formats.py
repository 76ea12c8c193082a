"""Number formats of the computation: weights, activations, errors, accumulators, optimizer state and updates.

The emulation follows Wang et al., "Training Deep Neural Networks with 8-bit Floating Point Numbers" (arXiv 1812.08011),
figure 1; Micikevicius et al., "Mixed Precision Training" (arXiv 1710.03740), sections 3.1 (master weights) and 3.2
(loss scale); and, for training in one format throughout, Cheng et al., "Distributed Low Precision Training Without
Mixed Precision" (arXiv 1911.07384):

    weights          rounded before every step; the step updates a float32 master copy or, with master_weights=false,
                     the rounded weights (`optimizer_steps.py` describes what happens to small updates)
    activations      the input of the model and the inputs and outputs of every layer are rounded
    errors           the gradient of the output of every layer is rounded
    accumulator      every product and partial sum of Linear and Conv layers is rounded, forward and backward
    optimizer_state  the optimizer's state, such as momentum, is rounded after every step
    update           every operation of an SGD step is rounded (`rounded_sgd.py`)
    fp32_norms       normalization layers keep weights, statistics and optimizer state in float32; their inputs and
                     outputs are rounded nevertheless
    aps              each tensor of weights, activations or errors is shifted by a power of two that fills its format
                     (custom_fp.recipe.tensor_aps)

Weights, activations, errors and optimizer states may have any format of custom_fp. The scales of a format with scales
(MX, a codebook) are computed for blocks of elements that are adjacent in memory. For a Linear layer, these are elements
of one dot product, as MX 1.0 defines. For a Conv2d layer, they are adjacent in a row of the image or kernel, whereas
hardware would use channels.

Running statistics are rounded to the weights' format after every step. The defaults are fp32; nothing is then replaced
or copied. These settings are short forms of rules (custom_fp.recipe.rules). The rules in precision.rules take
precedence over them, and use blocks along the dimension that a product sums over. `optimizer_steps.py` implements the
storage of weights and the optimizer steps.

Differences from arXiv 1911.07384, which trains ResNet50 on 128 GPUs whose hardware computes in FP16: the format is
arbitrary and emulated. Inside a layer that is neither Linear nor Conv (mean and variance of a batch, softmax, addition
of a bias), the arithmetic is float32, as are the loss and clip_norm; inputs and outputs have the format. The gradients
between workers have the run's `format`. The full text of the paper was not available. The update rules are those that
other work found to work without a master copy, and may differ from the paper's.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from custom_fp.formats.names import parse
from custom_fp.layers.products import ROLES as OF_PRODUCTS
from custom_fp.recipe.layers import Layer, layers_of
from custom_fp.recipe.parsing import format_named, one_of, one_rounding, read_rules, short_form
from custom_fp.recipe.placement import Placement
from custom_fp.recipe.quantization_spec import NEAREST, QuantizationSpec
from custom_fp.recipe.rules import Rule, Rules
from torch import Tensor, nn
from torch.optim import Optimizer

from cpdrun.models.normed.norms import is_norm
from cpdrun.optim.groups import trainable
from cpdrun.optim.rounded_sgd import ORDERS
from cpdrun.train.precision.base import Parameters, Precision, storage_bytes
from cpdrun.train.precision.optimizer_steps import (
    Float32Weights,
    FormatWeights,
    MasterWeights,
    OptimizerRounding,
    round_,
)


class Formats(Precision):
    """The formats of one run. conf/precision/*.yaml lists and explains the arguments.

    The keys `rules` and `operations` may be missing in an old config.yaml.

    Raises:
        ValueError: The settings contradict each other.
    """

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
        rules: Sequence[Mapping[str, Any]] = (),
        operations: bool | Sequence[str] | None = None,
    ):
        super().__init__(loss_scale)
        formats = {
            "weights": weights,
            "activations": activations,
            "errors": errors,
            "accumulator": accumulator,
        }
        self.typed = read_rules("precision.rules", rules, operations)
        short = [short_form(f"precision.{key}", key, name, aps, kahan) for key, name in formats.items()]
        self.short = [rule for rule in short if rule is not None]
        self.optimizer_rounding = OptimizerRounding(
            format_named("precision.update", update),
            one_of("precision.update_order", update_order, ORDERS),
            format_named("precision.optimizer_state", optimizer_state, scales=True),
        )
        state = self.optimizer_rounding.state
        self.state_with_scales = state if state and parse(state).has_scales else None
        self.master_weights, self.fp32_norms = master_weights, fp32_norms
        self.update_rounding = one_rounding("precision.update_rounding", update_rounding)
        self.kahan_weights = kahan_weights
        all_rules = Rules([*self.typed, *self.short])
        self.rounds_weights = all_rules.typed_for(["parameter"])
        self.rounds_products = all_rules.typed_for([*OF_PRODUCTS, "accumulator"])
        delayed = [r.typed for r in self.typed if r.rounding is not None and r.rounding.history is not None]
        self.remembers = " and ".join(delayed)
        _check_weight_storage(all_rules, master_weights, update_rounding, kahan_weights)
        self.weights = Float32Weights()
        self.statistics: list[Tensor] = []  # the running statistics of the model
        self.statistic_roundings: list[QuantizationSpec | None] = []
        self.weight_roundings: list[QuantizationSpec | None] = []
        self.placement: Placement  # set by `prepare`

    def prepare(self, model: nn.Module) -> nn.Module:
        """Attach the rounding to the model and round its weights. A model in fp32 is returned unchanged."""
        layers, parameters = layers_of(model), list(trainable(model).values())
        norms = [layer for layer in layers if self.fp32_norms and is_norm(layer.module)]
        norm_ids = {id(p) for layer in norms for p in layer.module.parameters(recurse=False)}
        self.optimizer_rounding.in_fp32 = {i for i, p in enumerate(parameters) if id(p) in norm_ids}
        rules = self.rules(layers, norms)
        rules.check()  # Check the rules before the model is changed.
        self.placement = Placement(model, rules)
        modules = [layer for layer in layers if layer.part is None]
        owner = {id(x): layer for layer in reversed(modules) for x in _own_tensors(layer.module)}
        self.weight_roundings = [rules.rounding_for(owner[id(p)], "parameter") for p in parameters]
        self.statistics = [b for b in model.buffers() if b.is_floating_point()]
        self.statistic_roundings = [rules.rounding_for(owner[id(b)], "parameter") for b in self.statistics]
        if any(self.weight_roundings) and self.master_weights:
            self.weights = MasterWeights(parameters, self.weight_roundings)
        elif any(self.weight_roundings):
            rounding, kahan = self.update_rounding, self.kahan_weights
            self.weights = FormatWeights(parameters, self.weight_roundings, rounding, kahan, self.seed)
        round_(self.statistics, self.statistic_roundings)
        return self.placement.model

    def rules(self, layers: Sequence[Layer], norms: Sequence[Layer]) -> Rules:
        """Return the rules for a model with these layers.

        The layers in `norms` keep float32 weights unless one of `precision.rules` selects them.
        """
        return Rules([*self.typed, *_in_fp32(norms, self.short), *self.short], layers, self.steps)

    def check(self, optimizer: Optimizer) -> None:
        """Raise ValueError if this optimizer cannot take steps in these formats."""
        self.optimizer_rounding.check(optimizer)

    def check_called(self, never_called: Collection[str] = ()) -> None:
        """Raise ValueError if a call of the model has shown that a rule rounds nothing."""
        self.placement.check_called(never_called)

    def at(self, step: int) -> None:
        """Select the rules for the given step of the run."""
        self.placement.at(step)

    def phase_starts(self) -> list[int]:
        """Return the steps at which the rules change, beginning with 0."""
        return self.placement.rules.phases

    def step(self, optimizer: Optimizer, parameters: Parameters) -> None:
        """Take an optimizer step, then round weights, running statistics and the optimizer's state."""
        with torch.no_grad():
            self.weights.step(self.optimizer_rounding, optimizer, parameters, self.loss_scale.used)
            round_(self.statistics, self.statistic_roundings)
            self.optimizer_rounding.round_state(optimizer, parameters)
        self.placement.end_step()

    def skip(self) -> None:
        """Finish a step without an optimizer step.

        The forward and backward passes have changed the running statistics, which are rounded, and have added to the
        histories of delayed scales.
        """
        self.placement.end_step()
        round_(self.statistics, self.statistic_roundings)

    def memory(self, optimizer: Optimizer, parameters: Parameters) -> dict[str, int]:
        """Return the sizes of the model and of the optimizer in bytes, each value in its number format.

        With aps, each tensor has one byte for its shift. "optimizer_bytes" includes float32 copies and compensations.
        """
        stored = zip(
            [*parameters, *self.statistics], [*self.weight_roundings, *self.statistic_roundings], strict=True
        )
        return {
            "model_bytes": sum(
                storage_bytes(x, r.format) + int(r.aps) if r else storage_bytes(x, None) for x, r in stored
            ),
            "optimizer_bytes": self.weights.extra_bytes()
            + self.optimizer_rounding.state_bytes(optimizer, parameters),
        }

    def state_bytes(self, optimizer: Optimizer, parameters: Parameters) -> int:
        """Return the bytes of the optimizer's state."""
        return self.optimizer_rounding.state_bytes(optimizer, parameters)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        histories = {"histories": found} if (found := self.placement.state_dict()) else {}
        return super().state_dict() | self.weights.state_dict() | histories

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        super().load_state_dict(state)
        self.weights.load_state_dict(state)
        self.placement.load_state_dict(state.get("histories", {}))


def _in_fp32(norms: Sequence[Layer], short: Sequence[Rule]) -> list[Rule]:
    """Return precision.fp32_norms as a rule, if precision.weights would round the weights of these layers."""
    affected = [layer for layer in norms if layer.takes("parameter")]
    if not affected or not any("parameter" in rule.roles for rule in short):
        return []
    return [
        Rule("precision.fp32_norms=true", tuple(layer.names[0] for layer in affected), ("parameter",), None)
    ]


def _own_tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _check_weight_storage(rules: Rules, master_weights: bool, update_rounding: str, kahan: bool) -> None:
    weight_rules = [
        (r.typed, r.rounding) for r in rules.rules if "parameter" in r.roles and r.rounding is not None
    ]
    if (update_rounding != NEAREST or kahan) and (master_weights or not weight_rules):
        word = "stochastic" if update_rounding == NEAREST else update_rounding
        raise ValueError(
            f"precision.update_rounding={word} and precision.kahan_weights=true apply to weights in a format "
            "without a float32 copy. Set precision.weights and precision.master_weights=false"
        )
    for typed, rounding in weight_rules if not master_weights else ():
        if parse(rounding.format).has_scales:
            raise ValueError(
                f"{typed} has scales, which every update would change. Set precision.master_weights=true"
            )
        if rounding.aps:
            raise ValueError(
                "precision.aps=true scales every weight tensor by a power of two, which every update would "
                "change. Set precision.master_weights=true"
            )
