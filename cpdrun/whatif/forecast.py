"""From the effects of formats to the chance that each fails, and to the narrowest format that is likely good enough.

`what_if` is the one function from observed runs and configurations to forecasts. The chance follows from a logistic
regression with a random intercept:

    logit P(fails) = intercept + slope * score + level,    level ~ N(0, level_deviation^2)
    score = damage in the layers + damage in the forward pass + strictness of the margin

A candidate fails if its mean result is worse than the baseline by more than the margin. All candidates of an
experiment, which is one network and its training, share a level. Experiments differ in the damage that they tolerate.
Therefore the score ranks the formats of a new network well but does not determine how many of them fail.

scripts/fit_predict.py fits the three coefficients by maximum likelihood on results/reference/predict/data.csv. It also
reports the accuracy of the predictions for networks that were left out.

If candidates of the experiment were trained, their outcomes turn the prior of the level into a posterior.
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
RANGE = (0.1, 0.9)  # the quantiles that bound the printed 80% range
GRID = np.linspace(-8.0, 8.0, 641)  # a grid of levels, in units of level_deviation
PRIOR_PAIRS = 2  # the usual spread has the weight of this number of pairs

# The weights of the levels in GRID, (641,). The weights of a distribution sum to 1.
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Chance:
    """The chance that a candidate fails.

    Attributes:
        mean: The mean over the distribution of the level.
        low: The lower end of the 80% range.
        high: The upper end of the 80% range.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """The outcome of a candidate that was trained.

    Attributes:
        gap: The mean difference from the baseline, in the unit in which the metric is shown. Positive is better.
        pairs: The number of pairs, which is the number of seeds.
        failure_chance: The chance that the true mean gap is below -margin.
    """

    gap: float
    pairs: int
    failure_chance: float


@dataclass(frozen=True)
class Model:
    """The fitted coefficients, and a description of the data to which they were fitted.

    Attributes:
        intercept: The intercept of the logit.
        slope: The slope of the logit with respect to the score.
        level_deviation: The standard deviation of the level.
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
        """Return the logit of the chance of failing at the mean level, 0."""
        return self.intercept + self.slope * (damage.total + strictness)

    def level_weights(self, outcomes: Iterable[tuple[float, float]] = ()) -> Weights:
        """Return the distribution of the level, given the outcomes of trained candidates.

        A failure chance c contributes the likelihood c p + (1 - c) (1 - p), where p is the predicted chance. Therefore
        an outcome that the seeds do not decide (c = 0.5) changes nothing.

        Args:
            outcomes: The logit and the failure chance of each trained candidate.
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
        """Return the chance of failing at each level of GRID."""
        return 0.5 * (1 + np.tanh((logit + self.level_deviation * GRID) / 2))


@cache
def fitted_model() -> Model:
    """Return the model with which this version was released."""
    found = json.loads(files(__package__).joinpath(COEFFICIENTS).read_text(encoding="utf-8"))
    return Model(**{**found, "strictness": tuple(found["strictness"])})


def outcome(gaps: Sequence[float], spread: float, margin: float) -> Outcome:
    """Return the outcome of a trained candidate.

    Args:
        gaps: The difference from the baseline for each pair. Positive is better.
        spread: The usual standard deviation of a pair.
        margin: The margin, in the unit of the gaps.
    """
    mean = math.fsum(gaps) / len(gaps)
    squares = math.fsum((gap - mean) ** 2 for gap in gaps)
    deviation = math.sqrt(squares / (len(gaps) - 1)) if len(gaps) > 1 else spread
    return Outcome(mean, len(gaps), failure_chance(mean, deviation, len(gaps), spread, margin))


def failure_chance(mean: float, deviation: float, pairs: int, spread: float, margin: float) -> float:
    """Return the chance that the true mean gap is below -margin.

    The mean gap follows a t distribution. The variance of a pair is the candidate's own variance, pooled with the usual
    spread, which has the weight of PRIOR_PAIRS pairs. If the variance is 0, the chance is 0 or 1.

    Args:
        mean: The mean gap.
        deviation: The standard deviation of the candidate's pairs.
        pairs: The number of pairs.
        spread: The usual standard deviation of a pair.
        margin: The margin, in the unit of the gaps.
    """
    from scipy.special import stdtr

    variance = pooled_variance(deviation, pairs, spread)
    if variance == 0:
        return float(mean < -margin)
    return float(stdtr(pairs - 1 + PRIOR_PAIRS, (-margin - mean) / math.sqrt(variance / pairs)))


def pooled_variance(deviation: float, pairs: int, spread: float) -> float:
    """Return the variance of one pair: the candidate's own variance, pooled with the usual spread."""
    return ((pairs - 1) * deviation**2 + PRIOR_PAIRS * spread**2) / (pairs - 1 + PRIOR_PAIRS)


def expit(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)) without overflow."""
    return 0.5 * (1 + math.tanh(logit / 2))


LIKELY = 0.5  # a format counts as likely good enough if its chance of failing is at most this


@dataclass(frozen=True)
class Subject:
    """A candidate to forecast.

    Attributes:
        name: The name, which identifies the candidate.
        label: The label that is shown.
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
        effects: The effects of its config on observed tensors.
        measured: The effects that a table shows.
        damage: The damage of the effects.
        strictness: The strictness of the margin.
        logit: The logit of the chance of failing at the mean level. It ranks the candidates.
        chance: The chance that the candidate fails.
        uncovered: A phrase for each part of the candidate's config that its effects do not measure.
        outcome: The outcome of its own runs; None if it was not trained.
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
        """Return the figures of a role over all layers; empty if the role was not observed."""
        return (self.effects["role"].get(role) or {}).get("all") or {}

    def layers(self, role: str) -> Mapping[str, Mapping[str, Any]]:
        """Return the figures of a role by layer."""
        return (self.effects["role"].get(role) or {}).get("layers") or {}


@dataclass(frozen=True)
class LadderForecast:
    """The forecasts of candidates that differ only in their format.

    Attributes:
        label: The label of the ladder.
        widths: The forecasts of each width, with most bits first. Within a width, the best candidate comes first.
    """

    label: str
    widths: tuple[tuple[Forecast, ...], ...]

    @classmethod
    def of(cls, label: str, forecasts: Sequence[Forecast]) -> "LadderForecast":
        """Group and sort forecasts by width."""
        widths: dict[float, list[Forecast]] = {}
        for forecast in sorted(forecasts, key=lambda f: (-f.subject.bits, f.logit)):
            widths.setdefault(forecast.subject.bits, []).append(forecast)
        return cls(label, tuple(map(tuple, widths.values())))

    def narrowest(self, at: str = "mean") -> Forecast | None:
        """Return the narrowest format that a search is likely to accept; None if the widest one is not good enough.

        A search starts at the widest formats and stops at the first width at which no format is good enough. Narrower
        formats do not count after that.

        Args:
            at: The field of `Chance` that is compared with LIKELY: `mean`, `low` or `high`.
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
    """Return the forecast of every subject by its name.

    Args:
        observed: Observed runs, each with the subjects whose effects on its tensors are computed. All subjects are
            candidates of one experiment.
        strictness: The strictness of the margin, from `damage.strictness`.
        outcomes: The outcomes of the candidates that were trained, by name. They determine the distribution of the
            level.
        sweep: The sweep that caches the effects; None for the sweep of each run.
        may_import: Names of the user's own formats and classes that may be imported, as for `compute_effects`.

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
    """Return the forecast of every subject by its name, given the effects of each (see `what_if`)."""
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
    """Return all forecasts, least likely to fail first. Ties are sorted by bits, fewest first."""
    return sorted((f for ladder in ladders for f in ladder), key=lambda f: (f.logit, f.subject.bits))
