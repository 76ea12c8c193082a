"""Forecasts of all candidates of an experiment, and the narrowest format that is likely good enough."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.whatif.damage import Damage, damage, shown_effects, uncovered
from cpdrun.whatif.effects import Effects
from cpdrun.whatif.failure_model import Chance, Outcome, fitted_model

LIKELY = 0.5  # a format that fails with a smaller chance is taken to be good enough


@dataclass(frozen=True)
class Subject:
    """A candidate: its name, its label, its bits per value and the config of one of its runs."""

    name: str
    label: str
    bits: float
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Forecast:
    """What is predicted for a candidate.

    Attributes:
        measured: The effects that a table shows.
        logit: The logit of the chance at the middle level; it ranks the candidates.
        uncovered: What the candidate does that its effects do not measure.
        outcome: What its own runs showed; None if it was not trained.
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
    """Forecasts of candidates that differ in their format alone, most bits first, and in each width the best first."""

    label: str
    widths: tuple[tuple[Forecast, ...], ...]

    @classmethod
    def of(cls, label: str, forecasts: Sequence[Forecast]) -> "ChainForecast":
        widths: dict[float, list[Forecast]] = {}
        for forecast in sorted(forecasts, key=lambda f: (-f.subject.bits, f.logit)):
            widths.setdefault(forecast.subject.bits, []).append(forecast)
        return cls(label, tuple(map(tuple, widths.values())))

    def narrowest(self, at: str = "mean") -> Forecast | None:
        """Return the format of the fewest bits that is likely good enough, as is one of every wider width.

        A search stops at the first width that is not good enough, so narrower ones do not count. None if the widest is
        not good enough. `at`: the field of `Chance` that decides, `mean`, `low` or `high`.
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
    """Return the forecast of every subject, by its name.

    Args:
        subjects: Candidates of one experiment; they share its level.
        effects: The effects of each, by name.
        strictness: That of the margin, from `features.strictness`.
        outcomes: What the runs of candidates that were trained showed, by name. They set the level.
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
    """Return all forecasts, the least likely to fail first. Of equal ones, the one of fewer bits comes first."""
    return sorted((f for chain in chains for f in chain), key=lambda f: (f.logit, f.subject.bits))
