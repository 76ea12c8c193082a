"""What is rounded where: rules, of which the first that matches wins.

    modules   glob patterns, one or a list, of the names or classes of layers: blocks.*, Linear. One whose last part is
              a wildcard alone, * or blocks.*, means the products of Linear and Conv layers; of others one that names
              them: Embedding, MultiheadAttention, scaled_dot_product_attention (both products of any attention; of one
              NAME.scores or NAME.values, as in *.scores), or the layer's own name (`layers.py` says what each has)
    first, last   of the layers that match, in the order of the model's modules, so many from the start or the end, or,
              below 1, that share of them, rounded up: last: 2, last: 0.15; 0: of none
    role      one or a list. Of products (custom_fp.layers.products): input, weight, output_gradient, what a product
              reads; result, what it gives; accumulator, every product of two values and every partial sum
              of any layer: activation, what it reads and gives; error, the gradient that arrives at its output;
              parameter, its weights and running statistics, as they are kept from step to step
    product   forward, input_gradient or weight_gradient, one or a list; null: all in which the role takes part
    steps     [first, end]: steps of the run from `first`, counted from 0, to the one before `end`; null: to the last.
              The test set is read by the rules of the step before it
    format    any of custom_fp; fp32: left alone. One with scales has blocks along the dimension that a product sums
              over, for what a product reads; for all else in the order of the elements in memory
    rounding  any of custom_fp.rounding, nearest_even unless it is said, the only one of accumulators and parameters.
              stochastic: drawn from torch's default generator, which a run seeds by its seed, the step and the worker,
              in training; evaluated, to nearest
    hadamard  size of the random Hadamard transform, a power of two, along the dimension that the product sums over,
              with the same signs everywhere: of both operands of a product, or of none
    history   steps whose largest values give a tensor its scale, in place of its own (`delayed.py`), of formats with
              one scale for the tensor, such as fp8_tensor
    aps       true: each tensor is shifted by a power of two that fills its format (`tensor_aps.py`)
    kahan     true: additions of an accumulator carry their error along
    optional  true: the rule may never apply, as in recipes that are written for many models

Nothing is rounded twice by two rules, and a rule that would never apply is an error: it matches no layer, earlier
rules match everything that it matches, or the run ends before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from custom_fp.layers.attention import SDPA
from custom_fp.layers.modules import LAYERS
from custom_fp.layers.products import OPERANDS
from custom_fp.recipe.layers import OTHERS, ROLES, Layer, names_something
from custom_fp.recipe.rounding import Rounding


@dataclass(frozen=True)
class Rule:
    """One rule; `typed` is what an error calls it. rounding: None leaves things alone. products: none for all.
    of_first, of_last: how many of the layers that match, a share below 1; where both are None, all."""

    typed: str
    modules: tuple[str, ...]
    roles: tuple[str, ...]
    rounding: Rounding | None
    products: tuple[str, ...] = ()
    first: int = 0
    end: int | None = None
    of_first: float | None = None
    of_last: float | None = None
    optional: bool = False

    def matches(self, layer: Layer, role: str) -> bool:
        """Whether it means the layer, be it one of the first or the last or not."""
        called = (*layer.names, layer.kind)
        by_name = layer.must_be_named and bool(ROLES[role])
        patterns = list(filter(names_something, self.modules)) if by_name else self.modules
        return any(fnmatchcase(name, pattern) for pattern in patterns for name in called)

    def means(self, layer: Layer) -> bool:
        return any(layer.takes(role) and self.matches(layer, role) for role in self.roles)

    def holds(self, role: str, product: str | None, step: int) -> bool:
        in_time = self.first <= step and (self.end is None or step < self.end)
        of_product = not self.products or product in self.products
        return role in self.roles and of_product and in_time

    @property
    def means_none(self) -> bool:
        """Whether it is told to: first: 0, last: 0."""
        return not (self.of_first is self.of_last is None or self.of_first or self.of_last)

    def chosen(self, layers: Sequence[Layer]) -> set[Layer] | None:
        """Of these the first and the last that it means; None: all."""
        if self.of_first is None and self.of_last is None:
            return None
        meant = [layer for layer in layers if self.means(layer)]
        from_start, from_end = (_of(count, len(meant)) for count in (self.of_first, self.of_last))
        return {*meant[:from_start], *meant[len(meant) - from_end :]}


def _of(count: float | None, all_of_them: int) -> int:
    if count is None:
        return 0
    return min(all_of_them, count if count >= 1 else math.ceil(count * all_of_them))


class Rules:
    """In the order in which they are asked, of a model with these layers, in a run of so many steps (None: of any
    number)."""

    def __init__(self, rules: Sequence[Rule], layers: Sequence[Layer] = (), steps: int | None = None):
        self.rules, self.layers, self.steps = list(rules), layers, steps or math.inf
        turns = {0, *(r.first for r in self.rules), *(r.end for r in self.rules if r.end is not None)}
        self.turns = sorted(t for t in turns if t < self.steps)  # steps from which other rules hold
        self._chosen = {rule: rule.chosen(layers) for rule in self.rules}
        self._won: set[Rule] = set()

    def first_for(self, layer: Layer, role: str, product: str | None = None, step: int = 0) -> Rule | None:
        """The one that decides."""
        for rule in self.rules:
            chosen = self._chosen[rule]
            is_among = chosen is None or layer in chosen
            if rule.holds(role, product, step) and is_among and rule.matches(layer, role):
                self._won.add(rule)
                return rule
        return None

    def of(self, layer: Layer, role: str, product: str | None = None, step: int = 0) -> Rounding | None:
        rule = self.first_for(layer, role, product, step)
        return None if rule is None else rule.rounding

    def check_transforms(self, layer: Layer, step: int) -> None:
        """ValueError where one operand of a product is transformed and the other is not."""
        for product, roles in OPERANDS.items():
            if not all(product in layer.products(role) for role in roles):
                roles = [role for role in roles if product in layer.products(role)]
            deciding = {role: self.first_for(layer, role, product, step) for role in roles}
            sizes = {role: _transform(rule) for role, rule in deciding.items()}
            alone = len(roles) == 1 and any(sizes.values())
            if len(set(sizes.values())) < 2 and not alone:
                continue
            role = next(role for role, size in sizes.items() if size)
            other = next((r for r in roles if r != role), "what it multiplies")
            raise ValueError(
                f"{deciding[role].typed}: hadamard={sizes[role]} transforms {role} of {product} and not {other}, in "
                f"{layer.names[0] or layer.kind}; the product stays what it is where both are transformed alike"
            )

    def ask_all(self) -> None:
        """All that a model with these layers will ask in any step, so that `check` knows before anything is changed;
        ValueError as `check_transforms`."""
        for layer in self.layers:
            for role in filter(layer.takes, ROLES):
                for product in layer.products(role) or (None,):
                    for step in self.turns:
                        self.first_for(layer, role, product, step)
            for step in self.turns if layer.multiplies else ():
                self.check_transforms(layer, step)

    def of_any(self, roles: Sequence[str]) -> str:
        """Those of these roles as they are typed, in words."""
        among = [rule for rule in self.rules if rule.rounding is not None and set(rule.roles) & set(roles)]
        return " and ".join(dict.fromkeys(rule.typed for rule in among))

    def check(self) -> None:
        """Once all has been asked: ValueError for a rule that never was the first to match."""
        for rule in self.rules:
            if rule in self._won or rule.optional or rule.means_none:
                continue
            if matched := [layer for layer in self.layers if rule.means(layer)]:
                why = (
                    f"the run has {self.steps} steps"
                    if rule.first >= self.steps
                    else f"earlier rules match everything that it matches, which is {_names(matched)}"
                )
                raise ValueError(f"{rule.typed} would never apply: {why}")
            raise ValueError(f"{rule.typed}: {self._why_none(rule)}")

    def _why_none(self, rule: Rule) -> str:
        means = [layer for layer in self.layers if any(map(layer.takes, rule.roles))]
        of_products = all(ROLES[role] for role in rule.roles)
        if of_products:  # what * means, first
            means = sorted(means, key=lambda layer: layer.must_be_named)
        patterns = " or ".join(map(repr, rule.modules))
        kinds = ", ".join(kind.__name__ for kind in LAYERS)
        roles = " and ".join(rule.roles)
        why = f" ({roles} is of layers that are exactly {kinds}" if of_products else ""
        if of_products and any(layer.must_be_named for layer in means):
            others = ", ".join(kind.__name__ for kind in OTHERS)
            why += f", or that are named: {others}, {SDPA}"
        why += ")" if why else ""
        return f"{patterns} matches no layer{why}; the first ones are {_names(means) or 'none'}"


def _names(layers: Sequence[Layer]) -> str:
    """Return the names of the first layers."""
    return ", ".join(layer.names[0] or layer.kind for layer in layers[:4]) + (
        ", ..." if len(layers) > 4 else ""
    )


def _transform(rule: Rule | None) -> int | None:
    return None if rule is None or rule.rounding is None else rule.rounding.hadamard
