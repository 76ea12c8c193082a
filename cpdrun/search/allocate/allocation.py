"""Which factors may be low, and how low: the fewest bits at a bound on what they cost together.

A step takes factors one level down, and a screen measured what that costs each (`Effects`). What all steps together
may lose is bounded by the sum of their effects, those below zero taken as none, and the noise of that sum
(`cpdrun.stats.screening.joint_margin`), which follows from how many factors take each step. For each of these numbers
it is an integer program: a group takes one of the combinations of its factors' levels, each with its cost and effects;
just so many factors take each step, and the effects sum to at most the tolerance less the noise; the cheapest of all is
taken. Solved exactly (scipy.optimize.milp, HiGHS: branch and bound). Effects are taken to add up, which a search then
puts to the test.

Cost `wire`: the bits of the gradients that a worker hands over, of one step. Cost `operations`: bits times bits of the
two operands of each multiplication of the three products of a Linear or Conv layer (custom_fp.layers.products), of
one sample; of a layer whose input takes no gradient two products are formed. Shares of scales count as bits do;
layers of no group are high.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from custom_fp.formats.names import parse

from cpdrun.search.allocate.cases import Levels
from cpdrun.search.allocate.factors import Factor, LayerGroup
from cpdrun.search.allocate.layers import Layer
from cpdrun.search.allocate.settings import GRADIENT, WIRE, Level, ScreenSettings
from cpdrun.stats.screening import Effect, Effects, joint_margin

MOST_PROGRAMS = (
    400  # of more values of the noise so many are asked, evenly: at worst a little noise too much is counted
)


@dataclass(frozen=True)
class Step:
    """What it costs each of these factors to go one level down: from high at first, from the level that the step before
    took it to after that. effects: in the order of `factors`."""

    factors: tuple[int, ...]
    effects: Effects

    def of(self, factor: int) -> Effect:
        return self.effects.factors[self.factors.index(factor)]


@dataclass(frozen=True)
class Price:
    """cost: in `unit`s; mean_bits: of a value that is sent, or of an operand, each weighted by how often it is."""

    cost: float
    mean_bits: float
    unit: str


@dataclass(frozen=True)
class Allocation:
    levels: dict[int, int]  # of factors; those that are not there are high
    expected: float  # what they cost together, in the metric's unit
    bound: float  # at most, at the screen's confidence
    price: Price
    all_low: Price  # as low as asked
    all_high: Price

    @property
    def low(self) -> tuple[int, ...]:
        return tuple(sorted(self.levels))


@dataclass(frozen=True)
class Costs:
    """What levels of factors cost."""

    asked: ScreenSettings
    groups: Sequence[LayerGroup]
    factors: Sequence[Factor]
    layers: Sequence[Layer]

    def price(self, levels: Levels) -> Price:
        at = {(self.factors[i].group, self.factors[i].role): level for i, level in levels.items()}
        return self._price(lambda group, role: self._bits(role, at.get((group, role), 0)))

    def lowest(self) -> dict[int, int]:
        """The last level of every factor that is of this cost."""
        return {i: len(self.asked.low[f.role]) for i, f in enumerate(self.factors) if self.counts(i)}

    def counts(self, factor: int) -> bool:
        """Whether its bits are of this cost."""
        return (self.factors[factor].role == GRADIENT) == (self.asked.cost == WIRE)

    def uniform(self, bits: float) -> Price:
        return self._price(lambda _, role: bits if role in self.asked.roles else 32.0)

    def _price(self, of: Callable[[int, str], float]) -> Price:
        """`of`: the bits of a role in the layers of a group, -1 for those of none."""
        home = {layer.name: i for i, group in enumerate(self.groups) for layer in group.layers}
        spent = [self._layer(layer, partial(of, home.get(layer.name, -1))) for layer in self.layers]
        cost, bits, weight = (math.fsum(each[i] for each in spent) for i in range(3))
        is_wire = self.asked.cost == WIRE
        return Price(
            cost, bits / weight, "bits a worker sends" if is_wire else "bit operations of one sample"
        )

    def of_group(self, group: int, levels: Mapping[str, int]) -> float:
        """Cost of its layers with these levels by role, others high."""

        def bits(role: str) -> float:
            return self._bits(role, levels.get(role, 0))

        return math.fsum(self._layer(layer, bits)[0] for layer in self.groups[group].layers)

    def _layer(self, layer: Layer, bits: Callable[[str], float]) -> tuple[float, float, float]:
        """Cost, and bits summed over values or operands with their number."""
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
    """What a group may be: the levels of its low factors, what it costs, and what it loses by the estimates."""

    group: int
    levels: dict[int, int]
    cost: float
    loss: float

    def taking(self, step: int) -> int:
        """How many of its factors go this step down."""
        return sum(level > step for level in self.levels.values())


def allocate(costs: Costs, steps: Sequence[Step], tolerance: float, confidence: float) -> Allocation | None:
    """None where not even one factor may be low at this tolerance, in the metric's unit."""
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
    counts = [sum(level > n for level in levels.values()) for n in range(len(steps))]
    bound = _loss(steps, levels) + _margin(steps, counts, confidence)
    prices = costs.price(levels), costs.price(costs.lowest()), costs.price({})
    return Allocation(levels, expected, bound, *prices)


def _margin(steps: Sequence[Step], counts: Sequence[int], confidence: float) -> float:
    return joint_margin([(step.effects, n) for step, n in zip(steps, counts, strict=True)], confidence)


def _cheapest(
    options: Sequence[_Option], groups: int, counts: Sequence[int], left: float
) -> dict[int, int] | None:
    """The levels of low factors of which just so many take each step, and whose effects sum to at most `left`."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    one_each = np.array([[float(each.group == group) for each in options] for group in range(groups)])
    taking = np.array([[float(each.taking(n)) for each in options] for n in range(len(counts))])
    loss = max(each.loss for each in options) or 1.0  # HiGHS allows itself 1e-6 of a row: all are about 1
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
    """Each combination of levels that were measured. A factor that costs nothing less low stays high."""
    for group in range(len(costs.groups)):
        own = [i for i, f in enumerate(costs.factors) if f.group == group and costs.counts(i)]
        depths = [sum(i in step.factors for step in steps) for i in own]
        for numbers in itertools.product(*(range(depth + 1) for depth in depths)):
            levels = {i: number for i, number in zip(own, numbers, strict=True) if number}
            by_role = {costs.factors[i].role: number for i, number in levels.items()}
            yield _Option(group, levels, costs.of_group(group, by_role), _loss(steps, levels))


def _taken(steps: Sequence[Step], levels: Levels) -> list[tuple[int, Step]]:
    return [(i, step) for i, level in sorted(levels.items()) for step in steps[:level]]


def _loss(steps: Sequence[Step], levels: Levels) -> float:
    """What these levels cost by the screens' estimates."""
    return math.fsum(max(0.0, step.of(i).mean) for i, step in _taken(steps, levels))


def _counts(costs: Costs, steps: Sequence[Step]) -> list[tuple[int, ...]]:
    """How many factors may take each step: one or more the first, as many or fewer each one behind it."""
    most = [sum(map(costs.counts, step.factors)) for step in steps]
    found = [
        of
        for of in itertools.product(*(range(count + 1) for count in most))
        if of[0] and all(more >= fewer for more, fewer in itertools.pairwise(of))
    ]
    return found[:: -max(1, math.ceil(len(found) / MOST_PROGRAMS))]


def _bits(level: Level) -> float:
    return float(parse(str(level["format"])).bits)
