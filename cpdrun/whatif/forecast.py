"""Predict the chance that each candidate fails, and the narrowest format that is likely good enough.

`what_if` returns the forecasts for the candidates of an experiment, given observed runs and configurations. A candidate
fails if its mean result is worse than the baseline by more than the margin. The chance of failing is predicted by a
logistic regression with a random intercept, the level:

    logit P(fails) = intercept + slope * score + level,    level ~ N(0, level_deviation^2)
    score = damage in the layers + damage in the forward pass + strictness of the margin

An experiment is one network and its training. The level describes how sensitive the experiment is to damage, so it is
the same for all candidates of the experiment. For a new network, the score ranks the candidates well, but it does not
determine how many of them fail, because the level is unknown. If some candidates of the experiment were trained, their
outcomes turn the prior distribution of the level into a posterior distribution.

scripts/fit_predict.py fits the three coefficients by maximum likelihood to results/reference/predict/data.csv. It also
reports the accuracy of predictions for networks that were left out of the fit.

A ladder consists of the candidates of one facet that share a gradient scaling, from most bits to fewest.
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
RANGE = (0.1, 0.9)  # the quantiles of the level that bound the 80% credible interval of a chance
GRID = np.linspace(-8.0, 8.0, 641)  # a grid of levels, in units of level_deviation
PRIOR_PAIRS = 2  # the usual spread weighs as much as this number of pairs

# A distribution of the level: the probability of each level in GRID, (641,). The probabilities sum to 1.
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Chance:
    """The chance that a candidate fails.

    Attributes:
        mean: The mean chance over the distribution of the level.
        low: The lower end of the 80% credible interval.
        high: The upper end of the 80% credible interval.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """The outcome of a candidate that was trained.

    Attributes:
        gap: The mean difference from the baseline, in the unit in which the metric is shown. Positive is better.
        pairs: The number of pairs of runs with the same seed: one run of the candidate and one of the baseline.
        failure_chance: The chance that the true mean gap is below -margin, which means that the candidate fails.
    """

    gap: float
    pairs: int
    failure_chance: float


@dataclass(frozen=True)
class Model:
    """The fitted logistic regression, with a description of the data to which it was fitted.

    Attributes:
        intercept: The intercept of the logit.
        slope: The slope of the logit with respect to the score.
        level_deviation: The standard deviation of the level between experiments.
        strictness: The smallest and the largest strictness of a margin in the data.
        candidates: The number of candidates in the data.
        experiments: The number of experiments in the data.
    """

    intercept: float
    slope: float
    level_deviation: float
    strictness: tuple[float, float]
    candidates: int
    experiments: int

    def logit(self, damage: Damage, strictness: float) -> float:
        """Return the logit of the chance of failing at level 0, which is the mean level."""
        return self.intercept + self.slope * (damage.total + strictness)

    def level_weights(self, outcomes: Iterable[tuple[float, float]] = ()) -> Weights:
        """Return the distribution of the level, given the outcomes of trained candidates.

        For a candidate with the failure chance c, the likelihood of a level is c p + (1 - c) (1 - p), where p is the
        chance that the model predicts at that level. If the runs leave the outcome undecided (c = 0.5), the likelihood
        is the same for all levels, so the distribution does not change.

        Args:
            outcomes: Pairs of the logit and the failure chance, one for each trained candidate.
        """
        log_weights = -0.5 * GRID**2
        for logit, failed in outcomes:
            p = self._chances(logit)
            log_weights = log_weights + np.log(np.maximum(failed * p + (1 - failed) * (1 - p), 1e-300))
        weights: Weights = np.exp(log_weights - log_weights.max())
        return weights / weights.sum()

    def chance(self, logit: float, weights: Weights) -> Chance:
        """Return the chance that a candidate fails, given its logit and the distribution of the level."""
        cumulative = np.cumsum(weights) - weights / 2
        low, high = (
            expit(logit + self.level_deviation * float(np.interp(share, cumulative, GRID))) for share in RANGE
        )
        return Chance(float(self._chances(logit) @ weights), low, high)

    def _chances(self, logit: float) -> Weights:
        """Return the chance of failing at each level in GRID, (641,)."""
        return 0.5 * (1 + np.tanh((logit + self.level_deviation * GRID) / 2))


@cache
def fitted_model() -> Model:
    """Return the fitted model that is part of this release."""
    found = json.loads(files(__package__).joinpath(COEFFICIENTS).read_text(encoding="utf-8"))
    return Model(**{**found, "strictness": tuple(found["strictness"])})


def outcome(gaps: Sequence[float], spread: float, margin: float) -> Outcome:
    """Return the outcome of a trained candidate.

    Args:
        gaps: The difference from the baseline for each pair of runs. Positive is better.
        spread: The usual standard deviation of these differences.
        margin: The margin, in the unit of the gaps.
    """
    mean = math.fsum(gaps) / len(gaps)
    squares = math.fsum((gap - mean) ** 2 for gap in gaps)
    deviation = math.sqrt(squares / (len(gaps) - 1)) if len(gaps) > 1 else spread
    return Outcome(mean, len(gaps), failure_chance(mean, deviation, len(gaps), spread, margin))


def failure_chance(mean: float, deviation: float, pairs: int, spread: float, margin: float) -> float:
    """Return the chance that the true mean gap is below -margin.

    The true mean gap is assumed to follow a t distribution around `mean` with pairs - 1 + PRIOR_PAIRS degrees of
    freedom. The square of its scale is `pooled_variance` divided by `pairs`. If the scale is 0, the chance is 0 or 1.

    Args:
        mean: The mean of the candidate's gaps.
        deviation: The standard deviation of the candidate's gaps.
        pairs: The number of gaps, one for each pair of runs.
        spread: The usual standard deviation of a gap.
        margin: The margin, in the unit of the gaps.
    """
    from scipy.special import stdtr

    variance = pooled_variance(deviation, pairs, spread)
    if variance == 0:
        return float(mean < -margin)
    return float(stdtr(pairs - 1 + PRIOR_PAIRS, (-margin - mean) / math.sqrt(variance / pairs)))


def pooled_variance(deviation: float, pairs: int, spread: float) -> float:
    """Return the variance of a gap: the candidate's own variance, pooled with the usual variance.

    The usual variance weighs as much as PRIOR_PAIRS pairs.
    """
    return ((pairs - 1) * deviation**2 + PRIOR_PAIRS * spread**2) / (pairs - 1 + PRIOR_PAIRS)


def expit(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)) without overflow."""
    return 0.5 * (1 + math.tanh(logit / 2))


LIKELY = 0.5  # a format is likely good enough if its chance of failing is at most this


@dataclass(frozen=True)
class Subject:
    """A candidate to forecast.

    Attributes:
        name: The name that identifies the candidate.
        label: The label that is shown to the user.
        bits: The bits per value.
        config: The configuration of one of its runs.
    """

    name: str
    label: str
    bits: float
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Forecast:
    """The forecast for one candidate.

    Attributes:
        subject: The candidate.
        effects: The effects of the candidate's config on observed tensors.
        measured: The statistics of the effects that a table shows, from `damage.shown_effects`.
        damage: The damage that the effects describe.
        strictness: The strictness of the margin.
        logit: The logit of the chance of failing at the mean level. Candidates are ranked by it.
        chance: The chance that the candidate fails.
        uncovered: A phrase for each part of the candidate's config that the effects do not cover.
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
        """Return the statistics of a role over all layers, keyed by name; empty if the role was not observed."""
        return (self.effects["role"].get(role) or {}).get("all") or {}

    def layers(self, role: str) -> Mapping[str, Mapping[str, Any]]:
        """Return the statistics of a role for each layer, keyed by layer; empty if the role was not observed."""
        return (self.effects["role"].get(role) or {}).get("layers") or {}


@dataclass(frozen=True)
class LadderForecast:
    """The forecasts for a ladder, whose candidates differ only in their format.

    Attributes:
        label: The label of the ladder.
        widths: The forecasts grouped by bit width, widest first. Within a width, the candidate that is least likely to
            fail comes first.
    """

    label: str
    widths: tuple[tuple[Forecast, ...], ...]

    @classmethod
    def of(cls, label: str, forecasts: Sequence[Forecast]) -> "LadderForecast":
        """Create a ladder from its forecasts, which may be in any order."""
        widths: dict[float, list[Forecast]] = {}
        for forecast in sorted(forecasts, key=lambda f: (-f.subject.bits, f.logit)):
            widths.setdefault(forecast.subject.bits, []).append(forecast)
        return cls(label, tuple(map(tuple, widths.values())))

    def narrowest(self, at: str = "mean") -> Forecast | None:
        """Return the narrowest format that a search is likely to accept, or None if it is likely to accept none.

        A search starts at the widest formats and stops at the first width without a format that is good enough.
        Therefore, formats below that width are not considered.

        Args:
            at: The field of `Chance` that is compared with LIKELY: `mean`, `low`, or `high`.
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
    """Return the forecast for every subject, keyed by the subject's name.

    Args:
        observed: Observed runs, each with its subjects. The effects of a subject are computed on the tensors of its
            run. All subjects must be candidates of one experiment.
        strictness: The strictness of the margin, from `damage.strictness`.
        outcomes: The outcomes of the trained candidates, keyed by name. They update the distribution of the level.
        sweep: The sweep that caches the effects; None for the sweep of each run.
        may_import: The names of formats and classes outside of cpdrun that may be imported, as for `compute_effects`.

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
    """Return the forecast for every subject, keyed by the subject's name.

    Args:
        subjects: The candidates of one experiment.
        effects: The effects of the subjects, keyed by name.
        strictness: The strictness of the margin, from `damage.strictness`.
        outcomes: The outcomes of the trained candidates, keyed by name.
    """
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
    """Return all forecasts, least likely to fail first. Of equally likely candidates, the narrowest comes first."""
    return sorted((f for ladder in ladders for f in ladder), key=lambda f: (f.logit, f.subject.bits))
