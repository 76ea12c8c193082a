"""The rules of a recipe, which specify what is rounded. For each tensor, the first rule that matches it is used.

A rule in a recipe has these keys:

    modules   One glob pattern, or a list of patterns, for the names or classes of layers: blocks.*, Linear. If the last
              part of a pattern is only a wildcard, as in * or blocks.*, the pattern selects the products of Linear and
              Conv layers. Other layers must be named: Embedding, MultiheadAttention, scaled_dot_product_attention, or
              the name of the layer itself. scaled_dot_product_attention selects both products of any attention.
              NAME.scores and NAME.values select a single one, as in *.scores. A normalization layer is selected by its
              own name or class, as in *.norm1 or LayerNorm. A pattern that ends in () selects operations that modules
              call in their own forward, such as matmul() in the whole model, or blocks.*.matmul(). layers.py lists the
              layers and operations. Three patterns select parts of the model (model_parts.py): output_head selects the
              layers that compute the model's outputs, router selects the layers that choose experts, and
              attention_output selects the layers that follow attention. router.linear() selects the calls to F.linear
              in routers.
    first, last   Use only this many of the selected layers, from the start or the end of the model, in the order of its
              modules. A number below 1 is a share of the layers, rounded up: last: 2, last: 0.15. 0 selects no layer.
              If the rule also matches layers, operations such as matmul() are neither selected nor counted.
    role      One role or a list of roles. Some roles are parts of products (custom_fp.layers.products). input, weight
              and output_gradient are the operands, and result is the result. accumulator rounds every product of two
              values and every partial sum. Other roles apply to any layer. activation is the layer's input and output,
              and error is the gradient of its output. parameter is its weights and running statistics, as they are
              stored between steps.
    product   forward, input_gradient or weight_gradient, or a list of products. null means all products in which the
              role is used.
    steps     [first, end]: the rule applies from step `first`, counted from 0, to the step before `end`. If `end` is
              null, the rule applies until the run ends. The test set is evaluated with the rules of the step before it.
    format    Any format of custom_fp. fp32 rounds nothing. An ingredient that is null removes the rule. For operands,
              the blocks of a format with scales run along the dimension that the product sums over. For other tensors,
              they follow the order of the elements in memory.
    rounding  Any rounding mode of custom_fp. The default is nearest_even. Accumulators and parameters allow no other.
              An accumulator has its rounding in its name (fp16-toward_zero), and that of parameters is update_rounding.
              In training, stochastic rounding draws from torch's default generator, which a run seeds with its seed,
              the step and the worker. The result therefore depends neither on nproc nor on restarts. In evaluation,
              stochastic modes are replaced by rounding to nearest.
    hadamard  The size of the random Hadamard transform along the dimension that the product sums over, a power of two.
              Both operands of a product must be transformed. All transforms use the same signs, the first 16 of which
              are TransformerEngine's. A dimension that is not a multiple of the size is padded with zeros.
    history   Delayed scaling: the number of previous steps whose largest magnitude determines the scale
              (delayed_scaling.py). The format must have a single scale for the whole tensor, such as fp8_tensor. A
              run needs emulation=exact and no gossip, and its checkpoints contain the histories.
    cached    The format in which the input is stored for the weight gradient. Its blocks run along the dimension that
              the forward product sums over. The weight gradient rounds the stored values again, to `format`. null
              stores the unrounded input.
    aps       true: shift each tensor by a power of two so that it fills its format (tensor_aps.py).
    kahan     true: use Kahan summation in an accumulator.
    optional  true: do not report an error if the rule never applies. Recipes for many models need this.

No tensor is rounded by two rules. It is an error if a rule would never apply, because it matches no layer, because
earlier rules match everything that it matches, or because the run ends before the rule begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from custom_fp.layers.modules import LAYERS
from custom_fp.layers.products import OPERANDS
from custom_fp.layers.rounded_weight import RoundedWeight
from custom_fp.recipe.layers import CALL, ROLES, Layer, ends_in_name
from custom_fp.recipe.quantization_spec import QuantizationSpec

STORED = {"input": "activation", "weight": "parameter", "output_gradient": "error"}
"""The role of the tensor that an operand is read from."""


@dataclass(frozen=True)
class Rule:
    """One rule of a recipe.

    Attributes:
        typed: The name of the rule for error messages, such as "recipe.rules[0]".
        modules: Patterns of the names or classes of layers.
        roles: The roles that are rounded.
        rounding: How tensors with these roles are rounded, or None to leave the tensors unchanged.
        products: The products in which the tensors are rounded. Empty means all products.
        first: The first step in which the rule applies.
        end: The first step in which the rule no longer applies, or None if it applies until the run ends.
        first_layers: How many of the matching layers are selected from the start. A number below 1 is a share.
        last_layers: How many of the matching layers are selected from the end. If `first_layers` and `last_layers` are
            None, all matching layers are selected.
        optional: Whether it is allowed that the rule never applies.
    """

    typed: str
    modules: tuple[str, ...]
    roles: tuple[str, ...]
    rounding: QuantizationSpec | None
    products: tuple[str, ...] = ()
    first: int = 0
    end: int | None = None
    first_layers: float | None = None
    last_layers: float | None = None
    optional: bool = False

    def matches(self, layer: Layer, role: str) -> bool:
        """Return whether a pattern matches the layer, regardless of `first_layers` and `last_layers`."""
        names = (*layer.names, layer.kind, *layer.part_names)
        patterns: Sequence[str] = self.modules
        if layer.is_call:
            patterns = [pattern for pattern in self.modules if pattern.endswith(CALL)]
        elif layer.must_be_named and ROLES[role]:
            patterns = list(filter(ends_in_name, self.modules))
            if layer.rounding_class is RoundedWeight and layer.part is None:
                patterns = [pattern for pattern in patterns if _names_module(pattern, layer)]
        return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)

    def matches_any_role(self, layer: Layer) -> bool:
        """Return whether the rule matches the layer in at least one role."""
        return any(layer.takes(role) and self.matches(layer, role) for role in self.roles)

    def applies(self, role: str, product: str | None, step: int) -> bool:
        """Return whether the rule applies to this role in this product at this step."""
        in_time = self.first <= step and (self.end is None or step < self.end)
        of_product = not self.products or product in self.products
        return role in self.roles and of_product and in_time

    @property
    def selects_no_layer(self) -> bool:
        """Whether the recipe explicitly selects no layer, by first: 0 or last: 0."""
        counts = self.first_layers, self.last_layers
        return counts != (None, None) and not any(counts)

    def select(self, layers: Sequence[Layer]) -> set[Layer] | None:
        """Return the matching layers that `first_layers` and `last_layers` select, or None if all are selected."""
        if self.first_layers is None and self.last_layers is None:
            return None
        matching = [layer for layer in layers if self.matches_any_role(layer)]
        matching = [layer for layer in matching if not layer.is_call] or matching
        from_start, from_end = (_number(n, len(matching)) for n in (self.first_layers, self.last_layers))
        return {*matching[:from_start], *matching[len(matching) - from_end :]}


def _names_module(pattern: str, layer: Layer) -> bool:
    """Return whether the last part of a pattern matches the module's own name or the name of its class.

    Without this check, *attention* would also select attention.norm1.
    """
    names = (layer.kind, *(name.rpartition(".")[2] for name in layer.names))
    return any(fnmatchcase(name, pattern.rpartition(".")[2]) for name in names)


def _number(count: float | None, total: int) -> int:
    """Return the number of layers that a count or a share selects."""
    if count is None:
        return 0
    return min(total, int(count) if count >= 1 else math.ceil(count * total))


class Rules:
    """The rules of a run, in the order in which they are tried.

    Args:
        rules: The rules.
        layers: The layers of the model.
        steps: The number of steps of the run, or None if it is not known.

    Attributes:
        phases: The first step of each phase, in ascending order, beginning with 0. The same rules apply in all steps of
            a phase.
    """

    def __init__(self, rules: Sequence[Rule], layers: Sequence[Layer] = (), steps: int | None = None) -> None:
        self.rules, self.layers, self.steps = list(rules), layers, steps or math.inf
        starts = {0, *(r.first for r in self.rules), *(r.end for r in self.rules if r.end is not None)}
        self.phases = sorted(step for step in starts if step < self.steps)
        self._selected = {rule: rule.select(layers) for rule in self.rules}
        self._matching: dict[tuple[Layer, bool], list[Rule]] = {}

    def deciding_rule(
        self, layer: Layer, role: str, product: str | None = None, step: int = 0
    ) -> Rule | None:
        """Return the first rule that matches this role of a layer in this product at this step, or None."""
        for rule in self._rules_for(layer, role):
            if rule.applies(role, product, step):
                return rule
        return None

    def _rules_for(self, layer: Layer, role: str) -> list[Rule]:
        """Return the rules that select a layer.

        Matching patterns is slow. The result depends only on the layer and on whether the role is used in products, so
        it is cached.
        """
        key = layer, bool(ROLES[role])
        if key not in self._matching:
            self._matching[key] = [
                rule
                for rule in self.rules
                if ((selected := self._selected[rule]) is None or layer in selected)
                and rule.matches(layer, role)
            ]
        return self._matching[key]

    def rounding_for(
        self, layer: Layer, role: str, product: str | None = None, step: int = 0
    ) -> QuantizationSpec | None:
        """Return the rounding of the deciding rule, or None if the tensor is not rounded."""
        rule = self.deciding_rule(layer, role, product, step)
        return None if rule is None else rule.rounding

    def stored_rounding(self, layer: Layer, role: str, step: int = 0) -> QuantizationSpec | None:
        """Return the rounding of the activation, parameter or error that an operand of this role is read from."""
        stored = STORED[role]
        return self.rounding_for(layer, stored, None, step) if layer.takes(stored) else None

    def typed_for(self, roles: Sequence[str]) -> str:
        """Return text for an error message that names the rules by which one of these roles is rounded."""
        found = [rule for rule in self.rules if rule.rounding is not None and set(rule.roles) & set(roles)]
        return " and ".join(dict.fromkeys(rule.typed for rule in found))

    def check_transforms(self, layer: Layer, step: int) -> None:
        """Raise ValueError if only one operand of a product is transformed."""
        for product, operands in OPERANDS.items():
            roles = [role for role in operands if product in layer.products(role)]
            deciding = {role: self.deciding_rule(layer, role, product, step) for role in roles}
            sizes = {role: _transform_size(rule) for role, rule in deciding.items()}
            is_single = len(roles) == 1 and any(sizes.values())
            if len(set(sizes.values())) < 2 and not is_single:
                continue
            role, rule = next((r, rule) for r, rule in deciding.items() if rule is not None and sizes[r])
            other = next((r for r in roles if r != role), "the other operand")
            raise ValueError(
                f"{rule.typed}: hadamard={sizes[role]} transforms {role} of {product} but not {other}, in "
                f"{layer.names[0] or layer.kind}; a product keeps its value only if both operands are transformed"
            )

    def check(self) -> None:
        """Raise ValueError if a rule never applies, or if only one operand of a product is transformed.

        All roles of all layers are checked at all steps, so this can be called before the model is changed.
        """
        deciding: set[Rule | None] = set()
        for layer in self.layers:
            for role in filter(layer.takes, ROLES):
                for product in layer.products(role) or (None,):
                    deciding |= {self.deciding_rule(layer, role, product, step) for step in self.phases}
            for step in self.phases if layer.multiplies else ():
                self.check_transforms(layer, step)
        for rule in self.rules:
            if rule in deciding or rule.optional or rule.selects_no_layer:
                continue
            if matching := [layer for layer in self.layers if rule.matches_any_role(layer)]:
                why = (
                    f"the run has {self.steps} steps"
                    if rule.first >= self.steps
                    else f"earlier rules match everything that it matches ({_names(matching)})"
                )
                raise ValueError(f"{rule.typed} would never apply: {why}")
            raise ValueError(f"{rule.typed}: {self._why_no_match(rule)}")

    def _why_no_match(self, rule: Rule) -> str:
        candidates = [layer for layer in self.layers if any(map(layer.takes, rule.roles))]
        of_products = all(ROLES[role] for role in rule.roles)
        if of_products:  # list the layers that * matches first
            candidates = sorted(candidates, key=lambda layer: layer.must_be_named)
        patterns = " or ".join(map(repr, rule.modules))
        kinds = ", ".join(kind.__name__ for kind in LAYERS)
        roles = " and ".join(rule.roles)
        why = ""
        if of_products:
            why = f" (role {roles} requires layers that are exactly {kinds}"
            if others := dict.fromkeys(layer.kind for layer in candidates if layer.must_be_named):
                why += f", or layers that the pattern names: {', '.join(others)}"
            why += ")"
        return (
            f"{patterns} matches no layer{why}; the first suitable layers are {_names(candidates) or 'none'}"
        )


def _names(layers: Sequence[Layer]) -> str:
    """Return the names of the first four layers."""
    return ", ".join(layer.names[0] or layer.kind for layer in layers[:4]) + (
        ", ..." if len(layers) > 4 else ""
    )


def _transform_size(rule: Rule | None) -> int | None:
    return None if rule is None or rule.rounding is None else rule.rounding.hadamard
