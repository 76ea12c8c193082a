"""The probability that training in a format misses its tolerance, from a few numbers that one observed run gives.

A ridge-penalised logistic regression: p = 1 / (1 + exp(-(a + sum_i b_i (x_i - m_i) / s_i))), on the features of
features.py (`m`, `s`: their mean and deviation in the data of the fit). Every feature is a loss, so b_i >= 0 is part of
the fit: more of any loss never makes a format look better. scripts/fit_predict.py fits it on the recorded sweeps of
this repository, results/reference/predict/data.csv, and says there how well it does on experiments that were left out.

How sure it is of p: the fit is made again on experiments drawn with replacement (a bootstrap of whole experiments, for
runs of one experiment are much alike); the interval is from the 5th to the 95th of these probabilities.

Features are finite by construction. A feature outside the range that the fit has seen is named, not trusted less: the
probability is then an extrapolation, and whoever asks is told.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

FITTED = "fitted.json"
INTERVAL = (5.0, 95.0)  # per cent of the bootstrap's probabilities
SLACK, LEAST_SLACK = 0.02, 0.05  # of a feature's range, and at least: that far outside is not outside


@dataclass(frozen=True)
class Probability:
    """That the tolerance is missed: by the fit, and from where to where with nine tenths of the refits."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Model:
    """`weights`: the intercept, then one for each feature after standardising, of the fit; `draws`: of each refit."""

    features: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    weights: tuple[float, ...]
    draws: tuple[tuple[float, ...], ...]
    seen: Mapping[str, tuple[float, float]]  # the range of each feature in the data
    experiments: tuple[str, ...]

    def probability(self, features: Mapping[str, float]) -> Probability:
        """Raises KeyError for a feature that is missing."""
        value = logistic(self.score(features))
        draws = np.array(self.draws or (self.weights,))
        refitted = 1 / (1 + np.exp(-np.clip(draws @ self._row(features), -500, 500)))
        low, high = np.percentile(refitted, INTERVAL)
        return Probability(value, min(value, float(low)), max(value, float(high)))

    def score(self, features: Mapping[str, float]) -> float:
        """The logit of the probability: it ranks where probabilities are all but 0 or 1."""
        return float(np.dot(self.weights, self._row(features)))

    def outside(self, features: Mapping[str, float]) -> dict[str, tuple[float, float, float]]:
        """By name the features outside the range of the fit: the value, and the range."""
        found = {}
        for name, (low, high) in self.seen.items():
            slack = max(SLACK * (high - low), LEAST_SLACK)
            if not low - slack <= features[name] <= high + slack:
                found[name] = (features[name], low, high)
        return found

    def _row(self, features: Mapping[str, float]) -> np.ndarray:
        values = [
            (features[n] - m) / s for n, m, s in zip(self.features, self.mean, self.deviation, strict=True)
        ]
        return np.array([1.0, *values])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "Model":
        return cls(
            features=tuple(found["features"]),
            mean=tuple(found["mean"]),
            deviation=tuple(found["deviation"]),
            weights=tuple(found["weights"]),
            draws=tuple(map(tuple, found["draws"])),
            seen={name: (low, high) for name, (low, high) in found["seen"].items()},
            experiments=tuple(found["experiments"]),
        )


@cache
def fitted() -> Model:
    """The one that comes with this version."""
    return Model.read(json.loads(files(__package__).joinpath(FITTED).read_text(encoding="utf-8")))


def logistic(score: float) -> float:
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))


def fit(
    rows: Sequence[Mapping[str, float]],
    fails: Sequence[float],
    experiments: Sequence[str],
    features: Sequence[str],
    *,
    ridge: float = 1.0,
    refits: int = 200,
    seed: int = 0,
) -> Model:
    """`rows`: the features of each recorded candidate; `fails`, in [0, 1]: how likely its runs say that it misses its
    tolerance; `experiments`: where it comes from. Every experiment has the same weight, however many formats it tried.
    Minimised: the weighted cross-entropy, in nats a candidate times their number, plus `ridge` / 2 times the squares of
    all weights but the intercept. Raises ValueError where there is nothing to fit."""
    if len(rows) == 0 or not features:
        raise ValueError("nothing to fit")
    x = np.array([[float(row[name]) for name in features] for row in rows])
    y = np.array(fails, dtype=float)
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    deviation[deviation == 0] = 1.0
    design = np.column_stack([np.ones(len(x)), (x - mean) / deviation])
    names = np.array(experiments)
    each = sorted(set(experiments))
    weight = _weights(dict.fromkeys(each, 1), names)
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(refits):
        times = dict.fromkeys(each, 0)
        for name in rng.choice(each, len(each)):
            times[name] += 1
        draws.append(_solve(design, y, _weights(times, names), ridge))
    return Model(
        features=tuple(features),
        mean=tuple(mean.tolist()),
        deviation=tuple(deviation.tolist()),
        weights=tuple(_solve(design, y, weight, ridge).tolist()),
        draws=tuple(tuple(draw.tolist()) for draw in draws),
        seen={name: (float(c.min()), float(c.max())) for name, c in zip(features, x.T, strict=True)},
        experiments=tuple(each),
    )


def _weights(times: Mapping[str, int], names: np.ndarray) -> np.ndarray:
    """Of each candidate; their mean over all is 1 where every experiment is drawn once."""
    counts = {name: int((names == name).sum()) for name in times}
    return np.array([times[name] * len(names) / (len(times) * counts[name]) for name in names.tolist()])


def _solve(design: np.ndarray, fails: np.ndarray, weight: np.ndarray, ridge: float) -> np.ndarray:
    from scipy.optimize import minimize

    penalty = np.array([0.0, *[ridge] * (design.shape[1] - 1)])

    def cost(b: np.ndarray) -> tuple[float, np.ndarray]:
        score = design @ b
        loss = np.logaddexp(0, score) - fails * score
        slope = weight * (1 / (1 + np.exp(-np.clip(score, -500, 500))) - fails)
        return float(weight @ loss + 0.5 * penalty @ b**2), design.T @ slope + penalty * b

    bounds = [(None, None), *[(0.0, None)] * (design.shape[1] - 1)]
    start = np.zeros(design.shape[1])
    return minimize(cost, start, jac=True, bounds=bounds, method="L-BFGS-B").x
