"""What is said of each candidate of an experiment before it is trained, and which format is likely the smallest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.predict.effects import Effects
from cpdrun.predict.features import features, not_seen, shown
from cpdrun.predict.model import Model, Probability

LIKELY = 0.5  # a format that misses the tolerance with less is taken to be enough
# the interval of the smallest format: enough even if all goes badly, and only if all goes well
SURELY, HARDLY = 0.05, 0.95


@dataclass(frozen=True)
class Subject:
    """A candidate: what it is called, its bits a value, and the config of a run of it."""

    name: str
    label: str
    bits: float
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Forecast:
    """`measured`: what is shown of its effects; `unseen`: what of it the effects do not cover; `outside`: features
    outside what the model was fitted on, with that range."""

    subject: Subject
    measured: dict[str, float | None]
    features: dict[str, float]
    probability: Probability
    score: float
    unseen: tuple[str, ...]
    outside: dict[str, tuple[float, float, float]]


@dataclass(frozen=True)
class Line:
    """Candidates that differ in their format alone, most bits first, each width the likeliest first."""

    label: str
    widths: tuple[tuple[Forecast, ...], ...]

    def smallest(self, level: float = LIKELY) -> Forecast | None:
        """The one of fewest bits that misses the tolerance with at most `level`, and some format of every wider width
        too, for a search claims nothing below a width that is not enough. None where the widest is not."""
        found = None
        for width in self.widths:
            if width[0].probability.value > level:
                break
            found = width[0]
        return found

    def __iter__(self):
        return (forecast for width in self.widths for forecast in width)


def foretell(subject: Subject, effects: Effects, strict: float, model: Model) -> Forecast:
    """`strict`: of the tolerance that may be missed, `features.strictness`."""
    found = features(effects, strict)
    return Forecast(
        subject=subject,
        measured=shown(effects),
        features=found,
        probability=model.probability(found),
        score=model.score(found),
        unseen=tuple(not_seen(effects, subject.config)),
        outside=model.outside(found),
    )


def line(label: str, forecasts: Sequence[Forecast]) -> Line:
    widths: dict[float, list[Forecast]] = {}
    for forecast in sorted(forecasts, key=lambda f: (-f.subject.bits, f.score)):
        widths.setdefault(forecast.subject.bits, []).append(forecast)
    return Line(label, tuple(map(tuple, widths.values())))


def ranked(lines: Sequence[Line]) -> list[Forecast]:
    """All of them, the least likely to miss the tolerance first; of equals the one of fewer bits."""
    return sorted((f for each in lines for f in each), key=lambda f: (f.score, f.subject.bits))
