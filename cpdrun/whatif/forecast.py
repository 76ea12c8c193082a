"""Predict which candidates fail, and the narrowest format that likely succeeds.

A candidate fails if its mean result is worse than the baseline by more than the margin. `what_if` predicts the chance
with a logistic regression that has a random intercept, the level:

    logit P(fails) = intercept + slope * score + level,    level ~ N(0, level_deviation^2)
    score = damage in the layers + damage in the forward pass + strictness of the margin

An experiment is one network and its training. The level is its sensitivity to damage, which all of its candidates
share. In a new experiment, the score ranks the candidates well, but the unknown level determines how many fail. The
outcomes of trained candidates turn the prior of the level into a posterior.

scripts/research/prediction/fit_predict.py fits the three coefficients by maximum likelihood to
results/reference/predict/data.csv, and reports the accuracy for networks that were left out of the fit.

A ladder is the list of formats, widest first, that an experiment compares under one gradient scaling.
"""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpdrun.record import RunDir, SweepDir
from cpdrun.whatif.damage import Damage, damage, shown_effects, uncovered_parts
from cpdrun.whatif.effects import Effects, compute_effects

COEFFICIENTS = "fitted.json"
RANGE = (0.1, 0.9)  # the quantiles that bound an 80% credible interval
GRID = np.linspace(-8.0, 8.0, 641)  # a grid of levels, in units of level_deviation
PRIOR_PAIRS = 2  # the weight of the usual variance of a gap, as a number of pairs
LIKELY = 0.5  # a format is likely good enough if its chance of failing is at most this

# The probability of each level in GRID, (641,).
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Chance:
    """The mean chance that a candidate fails, and the ends of an 80% credible interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trained candidate.

    Attributes:
        gap: The mean difference from the baseline in the displayed unit. Positive is better.
        pairs: The number of pairs: a candidate run and a baseline run with the same seed.
        failure_chance: The chance that the true mean gap is below -margin.
    """

    gap: float
    pairs: int
    failure_chance: float


@dataclass(frozen=True)
class Model:
    """The fitted logistic regression.

    Attributes:
        intercept: The intercept of the logit.
        slope: The slope with respect to the score.
        level_deviation: The standard deviation of the level between experiments.
        strictness: The smallest and the largest strictness in the training data.
        candidates: The number of candidates in the training data.
        experiments: The number of experiments in the training data.
    """

    intercept: float
    slope: float
    level_deviation: float
    strictness: tuple[float, float]
    candidates: int
    experiments: int

    def logit(self, damage: Damage, strictness: float) -> float:
        """Return the logit of the chance that a candidate fails if the level is 0, its mean."""
        return self.intercept + self.slope * (damage.total + strictness)

    def level_weights(self, outcomes: Iterable[tuple[float, float]] = ()) -> Weights:
        """Return the distribution of the level, given (logit, failure chance) of trained candidates.

        The likelihood of a level is c p + (1 - c) (1 - p) for a candidate with failure chance c, where p is the
        predicted chance at that level. An undecided outcome (c = 0.5) therefore leaves the distribution unchanged.
        """
        log_weights = -0.5 * GRID**2
        for logit, failed in outcomes:
            p = self._chances(logit)
            log_weights = log_weights + np.log(np.maximum(failed * p + (1 - failed) * (1 - p), 1e-300))
        weights: Weights = np.exp(log_weights - log_weights.max())
        return weights / weights.sum()

    def chance(self, logit: float, weights: Weights) -> Chance:
        """Return the chance that a candidate fails, given the distribution of the level."""
        cumulative = np.cumsum(weights) - weights / 2
        low, high = (
            expit(logit + self.level_deviation * float(np.interp(share, cumulative, GRID))) for share in RANGE
        )
        return Chance(float(self._chances(logit) @ weights), low, high)

    def _chances(self, logit: float) -> Weights:
        """Return the chance of failing at each level in GRID."""
        return 0.5 * (1 + np.tanh((logit + self.level_deviation * GRID) / 2))


@cache
def fitted_model() -> Model:
    """Return the fitted model of this release."""
    found = json.loads(files(__package__).joinpath(COEFFICIENTS).read_text(encoding="utf-8"))
    return Model(**{**found, "strictness": tuple(found["strictness"])})


def outcome(gaps: Sequence[float], spread: float, margin: float) -> Outcome:
    """Return the outcome of a trained candidate.

    `gaps` are its differences from the baseline, one per pair, and positive differences are better. `spread` is the
    typical standard deviation of a difference.
    """
    mean = math.fsum(gaps) / len(gaps)
    squares = math.fsum((gap - mean) ** 2 for gap in gaps)
    deviation = math.sqrt(squares / (len(gaps) - 1)) if len(gaps) > 1 else spread
    return Outcome(mean, len(gaps), failure_chance(mean, deviation, len(gaps), spread, margin))


def failure_chance(mean: float, deviation: float, pairs: int, spread: float, margin: float) -> float:
    """Return the chance that the true mean gap is below -margin.

    The true mean is assumed to follow a t distribution around `mean` with pairs - 1 + PRIOR_PAIRS degrees of freedom
    and the squared scale `pooled_variance` / pairs. If the scale is 0, the chance is 0 or 1. `deviation` and `spread`
    are the candidate's own and the usual standard deviation of a gap.
    """
    from scipy.special import stdtr

    variance = pooled_variance(deviation, pairs, spread)
    if variance == 0:
        return float(mean < -margin)
    return float(stdtr(pairs - 1 + PRIOR_PAIRS, (-margin - mean) / math.sqrt(variance / pairs)))


def pooled_variance(deviation: float, pairs: int, spread: float) -> float:
    """Return the candidate's variance of a gap, pooled with the usual variance.

    The usual variance counts as much as PRIOR_PAIRS pairs.
    """
    return ((pairs - 1) * deviation**2 + PRIOR_PAIRS * spread**2) / (pairs - 1 + PRIOR_PAIRS)


def expit(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)) without overflow."""
    return 0.5 * (1 + math.tanh(logit / 2))


@dataclass(frozen=True)
class Subject:
    """A candidate to forecast: a unique name, a label, the bits per value, and one run's config."""

    name: str
    label: str
    bits: float
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Forecast:
    """The forecast for one candidate.

    Attributes:
        subject: The candidate.
        effects: The effects of its config on the observed tensors (`cpdrun.whatif.effects`).
        measured: The effects that a table shows (`damage.shown_effects`).
        damage: The damage from the effects.
        strictness: The strictness of the margin.
        logit: The logit of the chance of failing at the mean level, by which candidates are ranked.
        chance: The chance of failing.
        uncovered: A phrase for each part of the config that the simulation does not cover.
        outcome: The outcome of the candidate's own runs; None if it was not trained.
    """

    subject: Subject
    effects: Effects
    measured: Mapping[str, float | None]
    damage: Damage
    strictness: float
    logit: float
    chance: Chance
    uncovered: tuple[str, ...]
    outcome: Outcome | None = None

    def figures(self, role: str) -> Mapping[str, Any]:
        """Return the statistics of a role over all layers, if it was observed."""
        return (self.effects["role"].get(role) or {}).get("all") or {}

    def layers(self, role: str) -> Mapping[str, Mapping[str, Any]]:
        """Return the statistics of a role for each layer, if it was observed."""
        return (self.effects["role"].get(role) or {}).get("layers") or {}


@dataclass(frozen=True)
class LadderForecast:
    """The forecasts for a ladder, whose candidates differ only in their format.

    Attributes:
        label: The label of the ladder.
        widths: The forecasts grouped by bit width, widest first. Within a width, the one least likely to fail comes
            first.
    """

    label: str
    widths: tuple[tuple[Forecast, ...], ...]

    @classmethod
    def of(cls, label: str, forecasts: Sequence[Forecast]) -> "LadderForecast":
        """Group forecasts, in any order, by bit width."""
        widths: dict[float, list[Forecast]] = {}
        for forecast in sorted(forecasts, key=lambda f: (-f.subject.bits, f.logit)):
            widths.setdefault(forecast.subject.bits, []).append(forecast)
        return cls(label, tuple(map(tuple, widths.values())))

    def narrowest(self, at: str = "mean") -> Forecast | None:
        """Return the narrowest format that a search is likely to accept, if any.

        A search goes from wide to narrow, and stops at the first width without an accepted format. `at` is the field of
        `Chance` that must be at most LIKELY.
        """
        found = None
        for width in self.widths:
            if getattr(width[0].chance, at) > LIKELY:
                break
            found = width[0]
        return found

    def __iter__(self) -> Iterator[Forecast]:
        return (forecast for width in self.widths for forecast in width)


def what_if(
    observed: Iterable[tuple[RunDir, Sequence[Subject]]],
    strictness: float,
    outcomes: Mapping[str, Outcome] | None = None,
    *,
    sweep: SweepDir | None = None,
    may_import: Collection[str] = (),
) -> dict[str, Forecast]:
    """Forecast every subject, keyed by its name.

    Args:
        observed: Observed runs with their subjects. All subjects must be candidates of one experiment.
        strictness: The strictness of the margin (`damage.strictness`).
        outcomes: The outcomes of trained candidates, keyed by name. They update the distribution of the level.
        sweep: The sweep that caches the effects. The default is the sweep of each run.
        may_import: As for `compute_effects`.

    Raises:
        NoEffectsError: The effects cannot be computed.
    """
    effects: dict[str, Effects] = {}
    every: list[Subject] = []
    for run, subjects in observed:
        configs = {subject.name: subject.config for subject in subjects}
        effects |= compute_effects(run, configs, sweep, may_import=may_import)
        every += subjects
    return forecast_all(every, effects, strictness, outcomes)


def forecast_all(
    subjects: Sequence[Subject],
    effects: Mapping[str, Effects],
    strictness: float,
    outcomes: Mapping[str, Outcome] | None = None,
) -> dict[str, Forecast]:
    """Forecast every subject from its effects (`what_if`)."""
    model, outcomes = fitted_model(), outcomes or {}
    damages = {subject.name: damage(effects[subject.name]) for subject in subjects}
    logits = {name: model.logit(found, strictness) for name, found in damages.items()}
    weights = model.level_weights(
        (logits[name], outcome.failure_chance) for name, outcome in outcomes.items() if name in logits
    )
    return {
        subject.name: Forecast(
            subject=subject,
            effects=effects[subject.name],
            measured=shown_effects(effects[subject.name]),
            damage=damages[subject.name],
            strictness=strictness,
            logit=logits[subject.name],
            chance=model.chance(logits[subject.name], weights),
            uncovered=tuple(uncovered_parts(effects[subject.name], subject.config)),
            outcome=outcomes.get(subject.name),
        )
        for subject in subjects
    }


def ranked(ladders: Sequence[LadderForecast]) -> list[Forecast]:
    """Return all forecasts, least likely to fail first, then narrowest first."""
    return sorted((f for ladder in ladders for f in ladder), key=lambda f: (f.logit, f.subject.bits))
