"""Forecasts of all candidates of an experiment, and the narrowest format that is likely good enough."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.whatif.damage import Damage, damage, shown_effects, uncovered
from cpdrun.whatif.effects import Effects
from cpdrun.whatif.failure_model import Chance, Outcome, fitted_model

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
        measured: The effects that a table shows.
        damage: The damage of the effects.
        strictness: The strictness of the margin.
        logit: The logit of the chance of failing at the mean level. It ranks the candidates.
        chance: The chance that the candidate fails.
        uncovered: A phrase for each part of the candidate's config that its effects do not measure.
        outcome: The outcome of its own runs; None if it was not trained.
    """

    subject: Subject
    measured: Mapping[str, float | None]
    damage: Damage
    strictness: float
    logit: float
    chance: Chance
    uncovered: tuple[str, ...]
    outcome: Outcome | None = None


@dataclass(frozen=True)
class ChainForecast:
    """The forecasts of candidates that differ only in their format.

    Attributes:
        label: The label of the chain.
        widths: The forecasts of each width, with most bits first. Within a width, the best candidate comes first.
    """

    label: str
    widths: tuple[tuple[Forecast, ...], ...]

    @classmethod
    def of(cls, label: str, forecasts: Sequence[Forecast]) -> "ChainForecast":
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


def forecast_all(
    subjects: Sequence[Subject],
    effects: Mapping[str, Effects],
    strictness: float,
    outcomes: Mapping[str, Outcome] | None = None,
) -> dict[str, Forecast]:
    """Return the forecast of every subject by its name.

    Args:
        subjects: Candidates of one experiment. They share its level.
        effects: The effects of each subject, by its name.
        strictness: The strictness of the margin, from `damage.strictness`.
        outcomes: The outcomes of the candidates that were trained, by name. They determine the distribution of the
            level.
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
            measured=shown_effects(effects[subject.name]),
            damage=damages[subject.name],
            strictness=strictness,
            logit=logits[subject.name],
            chance=model.chance(logits[subject.name], weights),
            uncovered=tuple(uncovered(effects[subject.name], subject.config)),
            outcome=outcomes.get(subject.name),
        )
        for subject in subjects
    }


def ranked(chains: Sequence[ChainForecast]) -> list[Forecast]:
    """Return all forecasts, least likely to fail first. Ties are sorted by bits, fewest first."""
    return sorted((f for chain in chains for f in chain), key=lambda f: (f.logit, f.subject.bits))
