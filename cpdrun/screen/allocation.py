"""Which factors may be low: the fewest bits at a bound on what they cost together.

What all low factors together may lose is bounded by the sum of their effects, those below zero taken as none, and the
noise of that sum, which grows by the root of their number k (`cpdrun.stats.screening.Effects.bound`). For each k this
is an integer program: a group takes one of the combinations of its factors' levels, each with its cost and its effects,
at most k factors are low, and the effects sum to at most the tolerance less the noise of k; the cheapest of all k is
taken. Solved exactly (scipy.optimize.milp, HiGHS: branch and bound). Effects are taken to add up, which a search then
puts to the test.

Cost `wire`: the bits of the gradients that a worker hands over, of one step. Cost `operations`: bits times bits of the
two operands of each multiplication of the three products of a Linear or Conv layer (`custom_fp.products`), of one
sample; of a layer whose input takes no gradient two products are formed. Shares of scales count as bits do; layers of
no group are high.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from custom_fp.formats.names import parse

from cpdrun.screen.factors import Factor, Group
from cpdrun.screen.layers import Layer
from cpdrun.screen.settings import GRADIENT, WIRE, Settings
from cpdrun.stats.screening import Effects


@dataclass(frozen=True)
class Price:
    """cost: in `unit`s; mean_bits: of a value that is sent, or of an operand, each weighted by how often it is."""

    cost: float
    mean_bits: float
    unit: str


@dataclass(frozen=True)
class Allocation:
    low: tuple[int, ...]  # factors
    expected: float  # what they cost together, in the metric's unit
    bound: float  # at most, at the screen's confidence
    price: Price
    all_low: Price
    all_high: Price


@dataclass(frozen=True)
class Costs:
    """What levels of factors cost."""

    asked: Settings
    groups: Sequence[Group]
    factors: Sequence[Factor]
    layers: Sequence[Layer]

    def price(self, low: Collection[int]) -> Price:
        bits = {
            (f.group, f.role): _bits(self.asked.low[f.role]) for i, f in enumerate(self.factors) if i in low
        }
        return self._price(lambda group, role: bits.get((group, role), self._high(role)))

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

    def of_group(self, group: int, levels: Mapping[str, bool]) -> float:
        """Cost of its layers, the roles of `levels` low where True, others high."""

        def bits(role: str) -> float:
            return _bits(self.asked.low[role]) if levels.get(role) else self._high(role)

        return math.fsum(self._layer(layer, bits)[0] for layer in self.groups[group].layers)

    def _layer(self, layer: Layer, bits: Callable[[str], float]) -> tuple[float, float, float]:
        """Cost, and bits summed over values or operands with their number."""
        if self.asked.cost == WIRE:
            return layer.values * bits(GRADIENT), layer.values * bits(GRADIENT), float(layer.values)
        weight, read, error = (bits(role) for role in ("weight", "input", "output_gradient"))
        pairs = [(read, weight), (error, read), *([(error, weight)] if layer.input_gradient else [])]
        cost = layer.macs * math.fsum(one * other for one, other in pairs)
        return cost, layer.macs * math.fsum(map(sum, pairs)), 2.0 * layer.macs * len(pairs)

    def _high(self, role: str) -> float:
        return _bits(self.asked.high[role]) if role in self.asked.roles else 32.0


def allocate(costs: Costs, effects: Effects, tolerance: float, confidence: float) -> Allocation | None:
    """None where not even one factor may be low at this tolerance, in the metric's unit."""
    best: tuple[float, tuple[int, ...]] | None = None
    for count in range(1, len(costs.factors) + 1):
        left = tolerance - effects.margin(count, confidence)
        if left < 0:
            break
        if (low := _cheapest(costs, effects, count, left)) is not None:
            cost = costs.price(low).cost
            if low and (best is None or cost < best[0] * (1 - 1e-12)):
                best = cost, low
    if best is None:
        return None
    low = best[1]
    every = range(len(costs.factors))
    expected = math.fsum(effects.factors[i].mean for i in low)
    prices = costs.price(low), costs.price(every), costs.price(())
    return Allocation(low, expected, effects.bound(low, confidence), *prices)


def _cheapest(costs: Costs, effects: Effects, most: int, left: float) -> tuple[int, ...] | None:
    """The factors that are low, at most so many, whose effects sum to at most `left`."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    options = list(_options(costs))
    losses = [math.fsum(max(0.0, effects.factors[i].mean) for i in low) for _, low, _ in options]
    one_each = np.array([[float(g == group) for g, _, _ in options] for group in range(len(costs.groups))])
    rules = [
        LinearConstraint(one_each, 1, 1),
        LinearConstraint([[len(low) for _, low, _ in options]], 0, most),
        LinearConstraint([losses], -np.inf, left),
    ]
    prices = np.array([price for _, _, price in options])
    scale = prices.max() or 1.0
    found = milp(prices / scale, integrality=np.ones(len(options)), bounds=Bounds(0, 1), constraints=rules)
    if found.x is None:
        return None
    chosen = [low for x, (_, low, _) in zip(found.x, options, strict=True) if x > 0.5]
    return tuple(sorted(itertools.chain(*chosen)))


def _options(costs: Costs) -> Iterator[tuple[int, tuple[int, ...], float]]:
    """(group, its low factors, cost) of each combination. A factor that costs nothing less low stays high."""
    for group in range(len(costs.groups)):
        own = [i for i, factor in enumerate(costs.factors) if factor.group == group]
        own = [i for i in own if (costs.factors[i].role == GRADIENT) == (costs.asked.cost == WIRE)]
        for size in range(len(own) + 1):
            for low in itertools.combinations(own, size):
                levels = {costs.factors[i].role: True for i in low}
                yield group, low, costs.of_group(group, levels)


def _bits(level: Mapping[str, object]) -> float:
    return float(parse(str(level["format"])).bits)
