"""What a prediction says: a sentence for each line of formats, a row for each candidate, the same for programs."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from cpdrun.predict.forecast import HARDLY, SURELY, Forecast, Line, ranked

MOST_NAMED = 3
PERCENT, RATIO = "%", ""
# key of a forecast's `measured`: heading, unit
COLUMNS = {
    "underflow": ("underflow %", PERCENT),
    "saturation": ("saturation %", PERCENT),
    "snr_db": ("SNR dB", RATIO),
    "cosine": ("cosine", RATIO),
    "growth": ("growth", RATIO),
    "update_lost": ("update lost %", PERCENT),
}


@dataclass(frozen=True)
class Said:
    """What was asked, in words: `1 point`, `fp32`; `of`: what was observed, a line each."""

    tolerance: str | None
    baseline: str
    of: tuple[str, ...]


def sentences(lines: Sequence[Line], said: Said) -> list[str]:
    """First what lies outside what the model has seen; then a line for each of `lines`, then what was not seen."""
    forecasts = [forecast for line in lines for forecast in line]
    return [
        *_outside(forecasts),
        *(_of_line(line, said) for line in lines),
        *_unseen(forecasts),
        "A prediction, from gradients of one run: cpdrun search certifies.",
    ]


def _of_line(line: Line, said: Said) -> str:
    within = (
        f"within {said.tolerance} of {said.baseline}" if said.tolerance else f"as good as {said.baseline}"
    )
    likely = line.smallest()
    if likely is None:
        first = line.widths[0][0]
        said_of = f"{_named(first)} misses it with {_chance(first)}"
        return f"{_capital(line.label)}: none is likely to be {within}; {said_of}."
    widest, narrowest = line.smallest(SURELY), line.smallest(HARDLY)
    ends = [f"{_named(end)}" for end in (narrowest, widest) if end is not None]
    span = (
        f"between {ends[0]} and {ends[1]}" if len(ends) == 2 else f"{ends[0]} at the smallest, or none at all"
    )
    if len(ends) == 2 and narrowest is widest:
        span = f"{ends[0]} at either end"
    return (
        f"{_capital(line.label)}: the smallest that is {within} is likely {_named(likely)}, which misses it with "
        f"{_chance(likely)}; with nine tenths, {span}."
    )


def _outside(forecasts: Sequence[Forecast]) -> Iterator[str]:
    """A line for all features: those of which the values are furthest outside, and of whom."""
    by_feature: dict[str, list[Forecast]] = {}
    for forecast in forecasts:
        for feature in forecast.outside:
            by_feature.setdefault(feature, []).append(forecast)
    parts = []
    for feature, found in by_feature.items():
        value, low, high = found[0].outside[feature]
        parts.append(f"{feature} of {_few(found)} ({value:.3g}; it was fitted on {low:.3g} to {high:.3g})")
    if parts:
        yield f"Outside what the model has seen, so that its probabilities are guesses there: {'; '.join(parts)}."


def _unseen(forecasts: Sequence[Forecast]) -> Iterator[str]:
    by_part: dict[str, list[Forecast]] = {}
    for forecast in forecasts:
        for part in forecast.unseen:
            by_part.setdefault(part, []).append(forecast)
    for part, found in by_part.items():
        whose = "" if len(found) == len(forecasts) else f" (of {_few(found)})"
        yield f"Not seen, and counted as no loss: {part}{whose}."


def _few(found: Sequence[Forecast]) -> str:
    names = [forecast.subject.label for forecast in found[:MOST_NAMED]]
    return ", ".join(names) + (f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else "")


def _named(forecast: Forecast) -> str:
    return f"{forecast.subject.label} ({forecast.subject.bits:g} bits)"


def _chance(forecast: Forecast) -> str:
    """`12 % [3, 30]`"""
    p = forecast.probability
    return f"{_percent(p.value)} % [{_percent(p.low)}, {_percent(p.high)}]"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def table(lines: Sequence[Line]) -> Table:
    """A row a candidate, the least likely to miss the tolerance first."""
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    found.add_column("candidate", no_wrap=True)
    for heading in ("bits", *(heading for heading, _ in COLUMNS.values()), "misses the tolerance %"):
        found.add_column(heading, justify="right", no_wrap=True)
    for forecast in ranked(lines):
        subject = forecast.subject
        cells = [_shown(forecast.measured.get(key), unit) for key, (_, unit) in COLUMNS.items()]
        chance = Text(_chance(forecast).replace(" %", ""), style=_style(forecast.probability.value))
        found.add_row(subject.label, f"{subject.bits:g}", *cells, chance)
    return found


def _shown(value: Any, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    if unit == PERCENT:
        return f"{100 * value:.3g}"
    return f"{value:.4f}" if abs(value) <= 1 else f"{value:.1f}"


def _style(share: float) -> str:
    return "green" if share <= SURELY * 2 else "yellow" if share < 1 - SURELY * 2 else "red"


def facts(
    lines: Sequence[Line], said: Said, label: Callable[[Forecast], str] | None = None
) -> dict[str, Any]:
    """For programs: the same, null where there is no number; probabilities of missing the tolerance."""
    return {
        "tolerance": said.tolerance,
        "baseline": said.baseline,
        "observed": list(said.of),
        "chains": [_line_facts(line) for line in lines],
        "ranking": [forecast.subject.label for forecast in ranked(lines)],
        "says": sentences(lines, said),
    }


def _line_facts(line: Line) -> dict[str, Any]:
    ends = {"smallest": line.smallest(), "from": line.smallest(HARDLY), "to": line.smallest(SURELY)}
    return {
        "chain": line.label,
        **{key: end.subject.label if end else None for key, end in ends.items()},
        **{f"{key}_bits": end.subject.bits if end else None for key, end in ends.items()},
        "candidates": [_candidate_facts(forecast) for forecast in line],
    }


def _candidate_facts(forecast: Forecast) -> dict[str, Any]:
    p = forecast.probability
    return {
        "candidate": forecast.subject.label,
        "run": forecast.subject.name,
        "bits": forecast.subject.bits,
        "probability": p.value,
        "low": p.low,
        "high": p.high,
        **forecast.measured,
        "features": forecast.features,
        "outside": {key: list(value) for key, value in forecast.outside.items()},
        "not_seen": list(forecast.unseen),
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
