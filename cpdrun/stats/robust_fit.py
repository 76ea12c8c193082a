"""Least squares that single runs do not rule, from many starts, and how sure what it finds is.

The Huber loss (P. J. Huber, Annals of Mathematical Statistics 35, 1964) of residuals of the logarithm, least from many
starts: as Hoffmann et al., arXiv 2203.15556, section 3.3 fit theirs, with Huber's delta of 1e-3; scipy's trust region
takes the place of their L-BFGS. Intervals are percentiles of a bootstrap (B. Efron and R. Tibshirani, An introduction
to the bootstrap, 1993, chapters 8, 9 and 13) of one of two kinds:

    of groups of rows, drawn with replacement within strata. It needs many groups in each: of three, a draw has lost one
        with probability 7/9, and the squared spread of a mean comes out at 2/3 of what it is
    of what is left over, on the same rows (noise.py): for designs of few groups, each of which the fit needs

Legend: R rows, P parameters, B draws of the bootstrap. All arrays are float64; neither NaN nor inf is allowed in them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpdrun.stats.noise import Noise

Array = NDArray[np.float64]
# theta (P,), rows (R,) of indices -> predictions (R,) and their derivatives (R, P)
Model = Callable[[Array, NDArray[np.intp]], tuple[Array, Array]]

HUBER = 1e-3
DRAWS = 200
NEAR, COARSE = 0.1, 1e-6  # where a draw starts, and how finely it is followed: far below what draws differ by
_NULL = 1e-7  # a direction whose singular value is below so much of the largest changes nothing
_LEANS = 0.1  # a parameter is in such a direction with a share of at least this


@dataclass(frozen=True)
class Space:
    """Where parameters are looked for: `low` to `high`, starts from `start_low` to `start_high`; each (P,)."""

    names: tuple[str, ...]
    low: Array
    high: Array
    start_low: Array
    start_high: Array

    @property
    def scale(self) -> Array:
        """How far apart starts are (P,); of a parameter that is held, next to nothing."""
        return np.maximum(self.start_high - self.start_low, 1e-7)

    def starts(self, number: int, seed: int) -> Array:
        """(number, P), the same for the same seed."""
        share = np.random.default_rng(seed).random((number, len(self.names)))
        return self.start_low + share * (self.start_high - self.start_low)


@dataclass(frozen=True)
class Fit:
    """`theta` (P,), of the draws `drawn` (B, P), what is left over (R,), and which parameters the rows do not determine
    (P,) bool: those that may move along a direction in which no prediction moves."""

    space: Space
    theta: Array
    drawn: Array
    left_over: Array
    undetermined: NDArray[np.bool_]

    def all(self) -> Array:
        """(B + 1, P): the fit, then its draws."""
        return np.vstack([self.theta[None], self.drawn])

    def bounded(self, i: int, ci: float) -> tuple[bool, bool]:
        """Whether parameter i has a lower and an upper end: not where the tail of its draws lies on the bound of the
        search, nor where the rows do not determine it."""
        if self.undetermined[i] or not len(self.drawn):
            return False, False
        width = 1e-3 * (self.space.high[i] - self.space.low[i])
        tail = (100 - ci) / 200
        on_low = np.mean(self.drawn[:, i] <= self.space.low[i] + width) > tail
        on_high = np.mean(self.drawn[:, i] >= self.space.high[i] - width) > tail
        return not on_low, not on_high


def least(
    model: Model,
    target: Array,
    rows: NDArray[np.intp],
    space: Space,
    starts: Array,
    *,
    huber: float = HUBER,
    best: int = 3,
) -> tuple[Array, float]:
    """The parameters of least Huber loss over `rows` from the best of `starts` (S, P), and that loss.

    Each start is first followed with squares, which have no kinks, then the `best` of them with Huber's loss, which
    turns from squares to magnitudes at `huber`.
    """
    by_squares = sorted(
        (_followed(model, target, rows, space, start, huber=None) for start in starts),
        key=lambda pair: pair[1],
    )
    return min(
        (_followed(model, target, rows, space, theta, huber=huber) for theta, _ in by_squares[:best]),
        key=lambda pair: pair[1],
    )


def _followed(
    model: Model,
    target: Array,
    rows: NDArray[np.intp],
    space: Space,
    start: Array,
    *,
    huber: float | None,
    tolerance: float = 1e-8,
) -> tuple[Array, float]:
    """Where a start leads, and its loss: squares where `huber` is None."""
    from scipy.optimize import least_squares  # 0.2 s

    found = least_squares(
        lambda theta: model(theta, rows)[0] - target[rows],
        np.clip(start, space.low + 1e-9, space.high - 1e-9),
        jac=lambda theta: model(theta, rows)[1],
        bounds=(space.low, space.high),
        loss="linear" if huber is None else "huber",
        f_scale=1.0 if huber is None else huber,
        x_scale=space.scale,
        ftol=tolerance,
        xtol=tolerance,
        max_nfev=100,
    )
    return found.x, float(found.cost)


def fit(
    model: Model,
    target: Array,
    space: Space,
    *,
    groups: Sequence[object],
    strata: Sequence[object] | None = None,
    starts: int = 12,
    draws: int = DRAWS,
    seed: int = 0,
    huber: float = HUBER,
) -> Fit:
    """Fit `model` to `target` (R,). `groups` (R,): rows that have something in common. With `strata` (R,) a draw takes
    groups of each stratum; without, it keeps the rows and draws what is left over. It starts near the fit, a tenth of
    the range of starts off."""
    rows = np.arange(len(target))
    theta, _ = least(model, target, rows, space, space.starts(starts, seed), huber=huber)
    value, slope = model(theta, rows)
    places = _places(groups, strata) if strata is not None else None
    noise = Noise.of(target - value, slope * space.scale, groups) if strata is None else None
    rng, drawn = np.random.default_rng(seed + 1), []
    for _ in range(draws):
        chosen = rows if places is None else _draw(places, rng)
        made = target if noise is None else value + noise.draw(rng)
        near = theta + NEAR * space.scale * rng.uniform(-1, 1, size=len(theta))
        drawn.append(_followed(model, made, chosen, space, near, huber=huber, tolerance=COARSE)[0])
    return Fit(
        space,
        theta,
        np.array(drawn).reshape(-1, len(theta)),
        target - value,
        undetermined(slope * (space.start_high - space.start_low)),
    )


def undetermined(slope: Array) -> NDArray[np.bool_]:
    """Of derivatives (R, P): the parameters (P,) that share a direction in which nothing moves."""
    _, sizes, directions = np.linalg.svd(slope, full_matrices=True)
    sizes = np.concatenate([sizes, np.zeros(slope.shape[1] - len(sizes))])
    null = directions[sizes <= _NULL * max(sizes.max(initial=0.0), 1e-300)]
    return np.any(np.abs(null) > _LEANS, axis=0) if len(null) else np.zeros(slope.shape[1], bool)


def percentiles(values: Array, ci: float) -> tuple[float, float]:
    """Ends of the `ci` per cent interval of draws (B,); NaN where there are fewer than 20."""
    if len(values) < 20:
        return math.nan, math.nan
    low, high = np.percentile(values, [50 - ci / 2, 50 + ci / 2])
    return float(low), float(high)


def ends(values: Array, fitted: float, ci: float) -> tuple[float, float]:
    """The further at each end of the percentile interval of draws (B,) and of its mirror image about what was fitted
    (Efron and Tibshirani, section 13.4, and A. Davison and D. Hinkley, Bootstrap methods, 1997, section 5.2): where
    draws lean to one side, as near a bound of the search, neither alone holds what it says. NaN where there are fewer
    than 20 draws."""
    low, high = percentiles(values, ci)
    return min(low, 2 * fitted - high), max(high, 2 * fitted - low)


def _places(groups: Sequence[object], strata: Sequence[object]) -> list[list[NDArray[np.intp]]]:
    """The rows of each group, by stratum."""
    found: dict[object, dict[object, list[int]]] = {}
    for row, (group, stratum) in enumerate(zip(groups, strata, strict=True)):
        found.setdefault(stratum, {}).setdefault(group, []).append(row)
    return [[np.array(rows) for rows in one.values()] for one in found.values()]


def _draw(places: list[list[NDArray[np.intp]]], rng: np.random.Generator) -> NDArray[np.intp]:
    """As many groups of each stratum as it has, with replacement."""
    chosen = [one[i] for one in places for i in rng.integers(len(one), size=len(one))]
    return np.concatenate(chosen)
