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
                     (custom_fp.recipe.tensor_aps)

Weights, activations and errors may be in any format of custom_fp; one with scales (MX, a codebook) takes them from each
tensor, in blocks of elements that are neighbours in memory: for a Linear layer those of one dot product, as MX 1.0
has it; for a Conv2d neighbours in a row of the image or the kernel, where hardware would take channels.

Running statistics are rounded to the weights' format after every step. All of it is fp32 by default, and then
nothing is swapped in and nothing is copied. These are short forms of rules (custom_fp.recipe.rules), which
precision.rules takes directly; those are asked first, and what products read is in blocks along the dimension that they
sum over. Weights are kept as `keeping.py` has it, steps are taken as `stepping.py` has it.

Differences from arXiv 1911.07384, which trains ResNet50 on 128 GPUs whose hardware computes FP16: the format is any,
and emulated, so inside one layer that is no Linear or Conv (the mean and variance of a batch, a softmax, a bias
added) the arithmetic is float32, and so are the loss and clip_norm; what goes in and comes out is of the format. The
gradients between workers have the run's `format`. The paper's full text was not at hand: the rules of the update are
those that other work found to do without a master copy, and may not be its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from custom_fp.formats.names import parse
from custom_fp.layers.products import OPERANDS
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
from cpdrun.train.precision.base import Operands, Parameters, Precision, kept_bytes
from cpdrun.train.precision.keeping import Float32Weights, FormatWeights, MasterWeights, round_
from cpdrun.train.precision.stepping import Stepping

AT_ENDS = {
    "input": "activation",
    "weight": "parameter",
    "output_gradient": "error",
}  # of operands without a rule


class Formats(Precision):
    """The formats of one run; conf/precision/*.yaml gives the arguments and says what each does. `rules` has none in a
    config.yaml that is older than the key. Raises ValueError where they do not fit together."""

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
    ):
        super().__init__(loss_scale)
        given = {"weights": weights, "activations": activations, "errors": errors, "accumulator": accumulator}
        self.typed = read_rules("precision.rules", rules)
        short = [short_form(f"precision.{key}", key, name, aps, kahan) for key, name in given.items()]
        self.short = [rule for rule in short if rule is not None]
        self.stepping = Stepping(
            format_named("precision.update", update),
            one_of("precision.update_order", update_order, ORDERS),
            format_named("precision.optimizer_state", optimizer_state),
        )
        state = self.stepping.state
        self.state_with_scales = state if state and parse(state).has_scales else None
        self.master_weights, self.fp32_norms = master_weights, fp32_norms
        self.update_rounding = one_rounding("precision.update_rounding", update_rounding)
        self.kahan_weights = kahan_weights
        all_rules = Rules([*self.typed, *self.short])
        self.rounds_weights = all_rules.typed_for(["parameter"])
        self.rounds_products = all_rules.typed_for([*OF_PRODUCTS, "accumulator"])
        delayed = [r.typed for r in self.typed if r.rounding is not None and r.rounding.history is not None]
        self.remembers = " and ".join(delayed)
        _check_keeping(all_rules, master_weights, update_rounding, kahan_weights)
        self.weights = Float32Weights()
        self.statistics: list[Tensor] = []  # running statistics, and how each is rounded
        self.of_statistics: list[QuantizationSpec | None] = []
        self.of_weights: list[QuantizationSpec | None] = []
        self.placement: Placement | None = None
        self.layers: dict[tuple[str, str | None], Layer] = {}  # by module and part

    def prepare(self, model: nn.Module) -> nn.Module:
        """With rounding layers in place and its weights rounded; the same model where all is fp32."""
        layers, parameters = layers_of(model), list(trainable(model).values())
        norms = [layer for layer in layers if self.fp32_norms and is_norm(layer.module)]
        of_norms = {id(p) for layer in norms for p in layer.module.parameters(recurse=False)}
        self.stepping.in_fp32 = {i for i, p in enumerate(parameters) if id(p) in of_norms}
        rules = self.rules(layers, norms)
        self.layers = {(layer.path, layer.part): layer for layer in layers}
        rules.check()  # while the model is as it was
        self.placement = Placement(model, rules)
        modules = [layer for layer in layers if layer.part is None]
        holder = {id(x): layer for layer in reversed(modules) for x in _held(layer.module)}
        self.of_weights = [rules.rounding_for(holder[id(p)], "parameter") for p in parameters]
        self.statistics = [b for b in model.buffers() if b.is_floating_point()]
        self.of_statistics = [rules.rounding_for(holder[id(b)], "parameter") for b in self.statistics]
        if any(self.of_weights) and self.master_weights:
            self.weights = MasterWeights(parameters, self.of_weights)
        elif any(self.of_weights):
            rounding, kahan = self.update_rounding, self.kahan_weights
            self.weights = FormatWeights(parameters, self.of_weights, rounding, kahan, self.seed)
        round_(self.statistics, self.of_statistics)
        return self.placement.model

    def rules(self, layers: Sequence[Layer], norms: Sequence[Layer]) -> Rules:
        """Those of a model with these layers, of which `norms` keep float32 where the rules do not say otherwise."""
        return Rules([*self.typed, *_in_fp32(norms, self.short), *self.short], layers, self.steps)

    def check(self, optimizer: Optimizer) -> None:
        self.stepping.check(optimizer)

    def check_called(self) -> None:
        self.placement.check_called()

    def at(self, step: int) -> None:
        self.placement.at(step)

    def turns(self) -> list[int]:
        return self.placement.rules.phases

    def operands(self, name: str, part: str | None, product: str, step: int) -> Operands:
        """As the product's own rules say; where none does, as what the layer reads, keeps and is given is rounded."""
        layer = self.layers.get((name, part))
        if layer is None:
            return Operands()

        def of(role: str) -> str:
            ends = None if role == "accumulator" else self._rounding(layer, AT_ENDS[role], None, step)
            found = self._rounding(layer, role, product, step) or ends
            return "fp32" if found is None else found.format

        return Operands(*map(of, OPERANDS[product]), of("accumulator"))

    def _rounding(self, layer: Layer, role: str, product: str | None, step: int) -> QuantizationSpec | None:
        takes = layer.takes(role) and (product is None or product in layer.products(role))
        return self.placement.rules.rounding_for(layer, role, product, step) if takes else None

    def step(self, optimizer: Optimizer, parameters: Parameters) -> None:
        """On the masters, or on the weights of a format; then weights, statistics and state are rounded."""
        with torch.no_grad():
            self.weights.step(self.stepping, optimizer, parameters, self.loss_scale.used)
            round_(self.statistics, self.of_statistics)
            self.stepping.round_state(optimizer, parameters)
        self.placement.end_step()

    def skip(self) -> None:
        """The running statistics alone have changed, and what delayed scales have seen."""
        self.placement.end_step()
        round_(self.statistics, self.of_statistics)

    def memory(self, optimizer: Optimizer, parameters: Parameters) -> dict[str, int]:
        """With aps a byte a tensor for its shift; in optimizer_bytes float32 copies and Kahan's compensations too."""
        kept = zip([*parameters, *self.statistics], [*self.of_weights, *self.of_statistics], strict=True)
        return {
            "model_bytes": sum(kept_bytes(x, r and r.format) + bool(r and r.aps) for x, r in kept),
            "optimizer_bytes": self.weights.extra_bytes() + self.stepping.state_bytes(optimizer, parameters),
        }

    def state_bytes(self, optimizer: Optimizer, parameters: Parameters) -> int:
        return self.stepping.state_bytes(optimizer, parameters)

    def state_dict(self) -> dict[str, Any]:
        histories = {"histories": found} if (found := self.placement.state_dict()) else {}
        return super().state_dict() | self.weights.state_dict() | histories

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.weights.load_state_dict(state)
        self.placement.load_state_dict(state.get("histories", {}))


def _in_fp32(norms: Sequence[Layer], short: Sequence[Rule]) -> list[Rule]:
    """precision.fp32_norms as a rule, where precision.weights would round what these layers keep."""
    kept = [layer for layer in norms if layer.takes("parameter")]
    if not kept or not any("parameter" in rule.roles for rule in short):
        return []
    return [Rule("precision.fp32_norms=true", tuple(layer.names[0] for layer in kept), ("parameter",), None)]


def _held(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _check_keeping(rules: Rules, master_weights: bool, update_rounding: str, kahan: bool) -> None:
    of_weights = [r for r in rules.rules if "parameter" in r.roles and r.rounding is not None]
    if (update_rounding != NEAREST or kahan) and (master_weights or not of_weights):
        word = "stochastic" if update_rounding == NEAREST else update_rounding
        raise ValueError(
            f"precision.update_rounding={word} and precision.kahan_weights=true are for weights of a format "
            "without a float32 copy: set precision.weights and precision.master_weights=false"
        )
    for rule in of_weights if not master_weights else ():
        if parse(rule.rounding.format).has_scales:
            raise ValueError(
                f"{rule.typed} has scales, which every update would change: it takes precision.master_weights=true"
            )
        if rule.rounding.aps:
            raise ValueError(
                "precision.aps=true gives every weight tensor a shift, which an update would change: it takes "
                "precision.master_weights=true"
            )
