"""Allocate bits: choose the cheapest levels whose total loss is bounded.

A factor is one role, such as weight, of a group of layers (`factors.py`). Its level is high or one of several low
levels. A step lowers some factors by one level, and a screen measures the loss of each: how much worse the metric
becomes.

The bound on the total loss is the sum of the measured effects, where negative effects count as 0, plus the noise of
that sum (`cpdrun.stats.screening.joint_margin`). This assumes that effects add up; the search that follows tests it.

The noise depends only on how many factors take each step. For each combination of these counts, an integer program
finds the cheapest allocation:

- Each group takes one combination of its factors' levels, which has a cost and a loss.
- The number of factors that take each step is given.
- The losses sum to at most the margin minus the noise.

Each program is solved exactly (branch and bound, scipy.optimize.milp with HiGHS), and the cheapest solution wins.

There are two costs:

- `wire`: the bits of the gradients that a worker sends per step.
- `operations`: the bit operations of one sample, which are the sum over all multiplications of the product of both
  operands' bits. A Linear or Conv layer has three matrix products, or two if its input takes no gradient.

A scale that values share counts with its share of bits. Layers that are in no group are high.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from custom_fp.formats.names import parse

from cpdrun.search.allocate.factors import Layer, Levels, Screen
from cpdrun.search.settings import GRADIENT, WIRE, Level
from cpdrun.stats.screening import Effect, Effects, joint_margin

# If there are more integer programs, only an even sample of them is solved. The bound still holds, but a slightly
# cheaper allocation may be missed.
MOST_PROGRAMS = 400


@dataclass(frozen=True)
class Step:
    """The measured effects of lowering factors, given by their indices, by one level.

    The first step lowers factors from the high level to the first low level.
    """

    factors: tuple[int, ...]
    effects: Effects

    def of(self, factor: int) -> Effect:
        """Return the effect of a factor, given its index."""
        return self.effects.factors[self.factors.index(factor)]


@dataclass(frozen=True)
class Price:
    """The cost of an allocation, and its mean number of bits.

    Attributes:
        cost: The cost in units of `unit`.
        mean_bits: The mean bits of a sent gradient value (cost `wire`), or of an operand (cost `operations`).
        unit: The unit of the cost.
    """

    cost: float
    mean_bits: float
    unit: str


@dataclass(frozen=True)
class Allocation:
    """The chosen levels, their loss, and their price.

    Attributes:
        levels: The levels of the low factors, keyed by the factor's index.
        expected: The expected total loss, in the metric's stored unit.
        bound: The upper confidence bound of the total loss, in the same unit.
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
class Costs(Screen):
    """A screen that can compute the cost of an allocation. An allocation chooses one level for each factor."""

    def price(self, levels: Levels) -> Price:
        """Return the price of these levels."""
        at = self.by_place(levels)
        return self._price(lambda group, role: self._bits(role, at.get((group, role), 0)))

    def lowest(self) -> dict[int, int]:
        """Return the lowest levels of the factors that affect the cost."""
        return {i: len(self.settings.low[f.role]) for i, f in enumerate(self.factors) if self.counts(i)}

    def counts(self, factor: int) -> bool:
        """Return True if the bits of a factor affect the cost.

        Only gradients affect the cost `wire`, and only the other roles affect the cost `operations`.
        """
        return (self.factors[factor].role == GRADIENT) == (self.settings.cost == WIRE)

    def uniform(self, bits: float) -> Price:
        """Return the price if all layers use `bits` bits. Roles that are not screened have 32 bits."""
        return self._price(lambda _, role: bits if role in self.settings.roles else 32.0)

    def _price(self, of: Callable[[int, str], float]) -> Price:
        """Return the price for given numbers of bits.

        `of` returns the bits for the index of a group (-1 for layers in no group) and a role.
        """
        home = {layer.name: i for i, group in enumerate(self.groups) for layer in group.layers}
        spent = [self._layer(layer, partial(of, home.get(layer.name, -1))) for layer in self.layers]
        cost, bits, weight = (math.fsum(each[i] for each in spent) for i in range(3))
        is_wire = self.settings.cost == WIRE
        return Price(
            cost, bits / weight, "bits a worker sends" if is_wire else "bit operations of one sample"
        )

    def of_group(self, group: int, levels: Mapping[str, int]) -> float:
        """Return the cost of a group's layers at the given levels."""

        def bits(role: str) -> float:
            return self._bits(role, levels.get(role, 0))

        return math.fsum(self._layer(layer, bits)[0] for layer in self.groups[group].layers)

    def _layer(self, layer: Layer, bits: Callable[[str], float]) -> tuple[float, float, float]:
        """Return a layer's cost, the total bits of its items, and their number.

        Items are gradient values for the cost `wire`, and operands for the cost `operations`.
        """
        if self.settings.cost == WIRE:
            return layer.values * bits(GRADIENT), layer.values * bits(GRADIENT), float(layer.values)
        weight, read, error = (bits(role) for role in ("weight", "input", "output_gradient"))
        pairs = [(read, weight), (error, read), *([(error, weight)] if layer.input_gradient else [])]
        cost = layer.macs * math.fsum(one * other for one, other in pairs)
        return cost, layer.macs * math.fsum(map(sum, pairs)), 2.0 * layer.macs * len(pairs)

    def _bits(self, role: str, level: int) -> float:
        return _bits(self.settings.level(role, level)) if role in self.settings.roles else 32.0


@dataclass(frozen=True)
class _Option:
    """One combination of levels of a group's factors, with its cost and its estimated loss."""

    group: int
    levels: dict[int, int]
    cost: float
    loss: float

    def taking(self, step: int) -> int:
        """Return how many of the group's factors take a step, given its index."""
        return sum(level > step for level in self.levels.values())


def allocate(costs: Costs, steps: Sequence[Step], tolerance: float, confidence: float) -> Allocation | None:
    """Return the cheapest allocation that probably loses at most `tolerance`.

    Its expected loss plus the margin of error at `confidence` is at most `tolerance`. The result is None if no factor
    can be low within it.

    Args:
        costs: The cost of each group of layers at each level of precision.
        steps: The measured loss of each step to a lower level.
        tolerance: The largest loss, in the metric's stored unit.
        confidence: The one-sided confidence, in percent.
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
    """Solve one integer program, and return the levels of the low factors, if there is a solution.

    `counts` are the numbers of factors that take each step, and `left` is the largest sum of losses.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    one_each = np.array([[float(each.group == group) for each in options] for group in range(groups)])
    taking = np.array([[float(each.taking(n)) for each in options] for n in range(len(counts))])
    # HiGHS tolerates errors of 1e-6 in each constraint, so the constraints are scaled to about 1.
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
    """Yield each combination of measured levels of each group."""
    for group in range(len(costs.groups)):
        own = [i for i, f in enumerate(costs.factors) if f.group == group and costs.counts(i)]
        depths = [sum(i in step.factors for step in steps) for i in own]
        for numbers in itertools.product(*(range(depth + 1) for depth in depths)):
            levels = {i: number for i, number in zip(own, numbers, strict=True) if number}
            by_role = {costs.factors[i].role: number for i, number in levels.items()}
            yield _Option(group, levels, costs.of_group(group, by_role), _loss(steps, levels))


def _taken(steps: Sequence[Step], levels: Levels) -> list[tuple[int, Step]]:
    """Return (index of the factor, step) for each step that a factor takes."""
    return [(i, step) for i, level in sorted(levels.items()) for step in steps[:level]]


def _loss(steps: Sequence[Step], levels: Levels) -> float:
    """Return the sum of the effects, where negative effects count as 0."""
    return math.fsum(max(0.0, step.of(i).mean) for i, step in _taken(steps, levels))


def _counts(costs: Costs, steps: Sequence[Step]) -> list[tuple[int, ...]]:
    """Return how many factors may take each step, at most MOST_PROGRAMS combinations.

    At least one factor takes the first step, and no step is taken by more factors than the step before.
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
