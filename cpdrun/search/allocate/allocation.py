"""Allocate bits: choose which factors are low, and how low, so that cost is minimal and the total loss is bounded.

A step moves factors one level down, and a screen measures the loss of each factor (`Effects`). The total loss of all
steps is bounded by the sum of the effects, where negative effects count as 0, plus the noise of that sum
(`cpdrun.stats.screening.joint_margin`). The noise depends only on how many factors take each step. For each such
combination of counts, the choice is an integer program. Each group takes one of the combinations of its factors'
levels, which has a cost and a loss. The given number of factors take each step, and the effects sum to at most the
tolerance minus the noise. The cheapest solution over all counts is taken. Each program is solved exactly
(scipy.optimize.milp, HiGHS: branch and bound). Effects are assumed to add up. The search that follows tests this.

The cost `wire` is the bits of the gradients that a worker sends in one step. The cost `operations` sums, for one
sample, the bits of one operand times the bits of the other over the multiplications of the three products of each
Linear or Conv layer (custom_fp.layers.products). A layer whose input takes no gradient has two products. The share of
a scale in each value counts as bits. Layers that are in no group are high.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from custom_fp.formats.names import parse

from cpdrun.search.allocate.factors import Factor, Layer, LayerGroup, Levels
from cpdrun.search.settings import GRADIENT, WIRE, Level, ScreenSettings
from cpdrun.stats.screening import Effect, Effects, joint_margin

# At most this many programs are solved. If there are more combinations of counts, an even sample of them is solved. At
# worst, the bound then includes slightly too much noise.
MOST_PROGRAMS = 400


@dataclass(frozen=True)
class Step:
    """The losses of factors that go one level down.

    In the first step, factors go from high to the first low level. In each later step, they go from the level of the
    step before to the next level.

    Attributes:
        factors: The indices of the factors.
        effects: The measured effects, in the order of `factors`.
    """

    factors: tuple[int, ...]
    effects: Effects

    def of(self, factor: int) -> Effect:
        """Return the effect of one factor."""
        return self.effects.factors[self.factors.index(factor)]


@dataclass(frozen=True)
class Price:
    """A cost.

    Attributes:
        cost: The cost in units of `unit`.
        mean_bits: The mean bits of the values that are sent, or of the operands, weighted by how often each is used.
        unit: The unit of the cost.
    """

    cost: float
    mean_bits: float
    unit: str


@dataclass(frozen=True)
class Allocation:
    """The chosen levels, their loss and their price.

    Attributes:
        levels: The levels of the low factors. Factors that are not listed are high.
        expected: The expected total loss, in the metric's unit.
        bound: The upper bound of the total loss, at the screen's confidence.
        price: The price of the chosen levels.
        all_low: The price if every factor is as low as the screen allows.
        all_high: The price if every factor is high.
    """

    levels: dict[int, int]
    expected: float
    bound: float
    price: Price
    all_low: Price
    all_high: Price

    @property
    def low(self) -> tuple[int, ...]:
        return tuple(sorted(self.levels))


@dataclass(frozen=True)
class Costs:
    """The cost of the levels of factors."""

    asked: ScreenSettings
    groups: Sequence[LayerGroup]
    factors: Sequence[Factor]
    layers: Sequence[Layer]

    def price(self, levels: Levels) -> Price:
        """Return the price of these levels."""
        at = {(self.factors[i].group, self.factors[i].role): level for i, level in levels.items()}
        return self._price(lambda group, role: self._bits(role, at.get((group, role), 0)))

    def lowest(self) -> dict[int, int]:
        """Return the lowest level of every factor whose bits count for this cost."""
        return {i: len(self.asked.low[f.role]) for i, f in enumerate(self.factors) if self.counts(i)}

    def counts(self, factor: int) -> bool:
        """Return whether the bits of a factor count for this cost."""
        return (self.factors[factor].role == GRADIENT) == (self.asked.cost == WIRE)

    def uniform(self, bits: float) -> Price:
        """Return the price if all screened roles have this many bits in all layers."""
        return self._price(lambda _, role: bits if role in self.asked.roles else 32.0)

    def _price(self, of: Callable[[int, str], float]) -> Price:
        """Return the price. `of` maps a group and a role to bits; the group is -1 for layers that are in no group."""
        home = {layer.name: i for i, group in enumerate(self.groups) for layer in group.layers}
        spent = [self._layer(layer, partial(of, home.get(layer.name, -1))) for layer in self.layers]
        cost, bits, weight = (math.fsum(each[i] for each in spent) for i in range(3))
        is_wire = self.asked.cost == WIRE
        return Price(
            cost, bits / weight, "bits a worker sends" if is_wire else "bit operations of one sample"
        )

    def of_group(self, group: int, levels: Mapping[str, int]) -> float:
        """Return the cost of a group's layers with these levels by role. Other roles are high."""

        def bits(role: str) -> float:
            return self._bits(role, levels.get(role, 0))

        return math.fsum(self._layer(layer, bits)[0] for layer in self.groups[group].layers)

    def _layer(self, layer: Layer, bits: Callable[[str], float]) -> tuple[float, float, float]:
        """Return a layer's cost, the sum of the bits of its values or operands, and the number of these."""
        if self.asked.cost == WIRE:
            return layer.values * bits(GRADIENT), layer.values * bits(GRADIENT), float(layer.values)
        weight, read, error = (bits(role) for role in ("weight", "input", "output_gradient"))
        pairs = [(read, weight), (error, read), *([(error, weight)] if layer.input_gradient else [])]
        cost = layer.macs * math.fsum(one * other for one, other in pairs)
        return cost, layer.macs * math.fsum(map(sum, pairs)), 2.0 * layer.macs * len(pairs)

    def _bits(self, role: str, level: int) -> float:
        return _bits(self.asked.level(role, level)) if role in self.asked.roles else 32.0


@dataclass(frozen=True)
class _Option:
    """One combination of levels of a group.

    Attributes:
        group: The index of the group.
        levels: The levels of the group's low factors.
        cost: The cost of the group.
        loss: The estimated loss of the group.
    """

    group: int
    levels: dict[int, int]
    cost: float
    loss: float

    def taking(self, step: int) -> int:
        """Return how many factors of the group take this step."""
        return sum(level > step for level in self.levels.values())


def allocate(costs: Costs, steps: Sequence[Step], tolerance: float, confidence: float) -> Allocation | None:
    """Return the cheapest allocation whose loss is within the tolerance, or None if not a single factor may be low.

    Args:
        costs: The cost of levels.
        steps: The measured steps, from the first.
        tolerance: The largest total loss, in the metric's unit.
        confidence: The confidence of the bound, in percent.
    """
    options = list(_options(costs, steps))
    best: tuple[float, dict[int, int]] | None = None
    for counts in _counts(costs, steps):
        left = tolerance - _margin(steps, counts, confidence)
        if left >= 0 and (levels := _cheapest(options, len(costs.groups), counts, left)):
            cost = costs.price(levels).cost
            if best is None or cost < best[0] * (1 - 1e-12):
                best = cost, levels
    if best is None:
        return None
    levels = best[1]
    expected = math.fsum(step.of(i).mean for i, step in _taken(steps, levels))
    taken = [sum(level > n for level in levels.values()) for n in range(len(steps))]
    bound = _loss(steps, levels) + _margin(steps, taken, confidence)
    prices = costs.price(levels), costs.price(costs.lowest()), costs.price({})
    return Allocation(levels, expected, bound, *prices)


def _margin(steps: Sequence[Step], counts: Sequence[int], confidence: float) -> float:
    return joint_margin([(step.effects, n) for step, n in zip(steps, counts, strict=True)], confidence)


def _cheapest(
    options: Sequence[_Option], groups: int, counts: Sequence[int], left: float
) -> dict[int, int] | None:
    """Return the levels of the low factors in the cheapest solution, or None if there is no solution.

    Exactly `counts[n]` factors take step n, and the effects sum to at most `left`.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    one_each = np.array([[float(each.group == group) for each in options] for group in range(groups)])
    taking = np.array([[float(each.taking(n)) for each in options] for n in range(len(counts))])
    # The tolerance of HiGHS is 1e-6 in every row, so all rows are scaled to about 1.
    loss = max(each.loss for each in options) or 1.0
    rules = [
        LinearConstraint(one_each, 1, 1),
        LinearConstraint(taking, counts, counts),
        LinearConstraint([[each.loss / loss for each in options]], -np.inf, left / loss),
    ]
    prices = np.array([each.cost for each in options])
    scale = prices.max() or 1.0
    found = milp(prices / scale, integrality=np.ones(len(options)), bounds=Bounds(0, 1), constraints=rules)
    if found.x is None:
        return None
    chosen = [each.levels for x, each in zip(found.x, options, strict=True) if x > 0.5]
    return {factor: level for levels in chosen for factor, level in sorted(levels.items())}


def _options(costs: Costs, steps: Sequence[Step]) -> Iterator[_Option]:
    """Yield each combination of measured levels of each group. A factor whose bits do not count stays high."""
    for group in range(len(costs.groups)):
        own = [i for i, f in enumerate(costs.factors) if f.group == group and costs.counts(i)]
        depths = [sum(i in step.factors for step in steps) for i in own]
        for numbers in itertools.product(*(range(depth + 1) for depth in depths)):
            levels = {i: number for i, number in zip(own, numbers, strict=True) if number}
            by_role = {costs.factors[i].role: number for i, number in levels.items()}
            yield _Option(group, levels, costs.of_group(group, by_role), _loss(steps, levels))


def _taken(steps: Sequence[Step], levels: Levels) -> list[tuple[int, Step]]:
    """Return the factors that take each step, with the step."""
    return [(i, step) for i, level in sorted(levels.items()) for step in steps[:level]]


def _loss(steps: Sequence[Step], levels: Levels) -> float:
    """Return the loss of these levels as the screens estimate it. Negative effects count as 0."""
    return math.fsum(max(0.0, step.of(i).mean) for i, step in _taken(steps, levels))


def _counts(costs: Costs, steps: Sequence[Step]) -> list[tuple[int, ...]]:
    """Return the combinations of how many factors take each step.

    At least one factor takes the first step, and no later step is taken by more factors than the step before.
    """
    most = [sum(map(costs.counts, step.factors)) for step in steps]
    found = [
        of
        for of in itertools.product(*(range(count + 1) for count in most))
        if of[0] and all(more >= fewer for more, fewer in itertools.pairwise(of))
    ]
    return found[:: -max(1, math.ceil(len(found) / MOST_PROGRAMS))]


def _bits(level: Level) -> float:
    return float(parse(str(level["format"])).bits)
