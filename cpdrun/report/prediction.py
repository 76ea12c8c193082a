"""Render a prediction as sentences, a table and a JSON document.

A ladder consists of the candidates of one facet that share a gradient scaling, from most bits to fewest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from cpdrun.report.render import render_lines
from cpdrun.shell.document import optional
from cpdrun.shell.terminal import plain_table
from cpdrun.whatif.damage import Damage
from cpdrun.whatif.forecast import Chance, Forecast, LadderForecast, Outcome, fitted_model, ranked

HARDLY_FAILS, SURELY_FAILS = 0.1, 0.9
PERCENT, RATIO = "%", ""
# The heading and the unit of each column, keyed as in `Forecast.measured`.
COLUMNS = {
    "underflow": ("underflow %", PERCENT),
    "saturation": ("saturation %", PERCENT),
    "snr_db": ("SNR dB", RATIO),
    "cosine": ("cosine", RATIO),
    "growth": ("growth", RATIO),
    "update_lost": ("update lost %", PERCENT),
}


@dataclass(frozen=True)
class Context:
    """What a prediction refers to: the margin as text, the baseline, and the folders of the observed runs."""

    margin: str
    baseline: str
    observed: tuple[str, ...]


def summarize(ladders: Sequence[LadderForecast], context: Context) -> list[str]:
    """Describe a prediction: the ranking, the narrowest good formats and the caveats."""
    forecasts = ranked(ladders)
    uncovered: dict[str, list[Forecast]] = {}
    for forecast in forecasts:
        for part in forecast.uncovered:
            uncovered.setdefault(part, []).append(forecast)
    return render_lines(
        "prediction.j2",
        ladders=ladders,
        context=context,
        forecasts=forecasts,
        trained=[forecast for forecast in forecasts if forecast.outcome is not None],
        undecided=min(forecasts, key=lambda forecast: abs(forecast.logit)),
        extrapolated=_extrapolated(forecasts[0].strictness),
        uncovered=uncovered,
        percent=_range,
    )


def _extrapolated(strictness: float) -> dict[str, str] | None:
    """Return the margin and the fitted range of margins as percentages of the metric.

    Return None if the margin lies within the range, because the prediction does not extrapolate then.
    """
    low, high = fitted_model().strictness
    if low - 0.05 <= strictness <= high + 0.05:
        return None
    margin, loosest, strictest = (f"{100 * 10**-each:.2g}%" for each in (strictness, low, high))
    return {"margin": margin, "loosest": loosest, "strictest": strictest}


def _range(chance: Chance) -> str:
    """Format the interval of a chance in percent: "0 to 92", or "5" if both ends agree."""
    low, high = f"{100 * chance.low:.0f}", f"{100 * chance.high:.0f}"
    return low if low == high else f"{low} to {high}"


def make_table(ladders: Sequence[LadderForecast]) -> Table:
    """Make a table of the candidates, least likely to fail first."""
    forecasts = ranked(ladders)
    has_outcomes = any(forecast.outcome is not None for forecast in forecasts)
    headings = ["bits", *(heading for heading, _ in COLUMNS.values()), "fails %"]
    table = plain_table(["candidate"], headings + (["trained"] if has_outcomes else []))
    for forecast in forecasts:
        cells = [_show(forecast.measured.get(key), unit) for key, (_, unit) in COLUMNS.items()]
        chance = Text(_range(forecast.chance), style=_style(forecast.chance))
        trained = [_show_outcome(forecast)] if has_outcomes else []
        table.add_row(forecast.subject.label, f"{forecast.subject.bits:g}", *cells, chance, *trained)
    return table


def _show(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    if unit == PERCENT:
        return f"{100 * value:.3g}"
    return f"{value:.4f}" if abs(value) <= 1 else f"{value:.1f}"


def _show_outcome(forecast: Forecast) -> str:
    found = forecast.outcome
    if found is None:
        return "-"
    gap = f"{found.gap:+.3g}" if math.isfinite(found.gap) else "diverged"
    return f"{gap} ({found.pairs} pair{'s' if found.pairs > 1 else ''})"


def _style(chance: Chance) -> str:
    return "green" if chance.high <= HARDLY_FAILS else "red" if chance.low >= SURELY_FAILS else "yellow"


@dataclass
class PredictedCandidate:
    """The prediction for one candidate. Unknown values are null.

    Attributes:
        candidate: The label of the candidate.
        run: The name that identifies the candidate in the forecast.
        bits: The bits per value.
        probability: The probability that the candidate is worse than the baseline by more than the margin. This is the
            mean over networks that tolerate different amounts of damage.
        low: The lower end of the probability's 80% credible interval.
        high: The upper end of the probability's 80% credible interval.
        underflow: The share of gradients that become zero.
        saturation: The share of gradients that exceed the format's largest value.
        snr_db: The signal-to-noise ratio of the gradients in decibels.
        bias: The relative bias of the gradients.
        cosine: The cosine between the gradients and their rounded values.
        sum_error: The relative error of the sum over workers.
        growth: The error of the sum over all workers, divided by the error of the sum of workers 0 and 1.
        update_lost: The share of updates that leave the weight unchanged.
        features: The damage from which the probability is predicted.
        not_seen: The parts of the configuration that the prediction does not cover.
        trained: The outcome of the candidate's own runs, or null if it was not trained.
    """

    candidate: str
    run: str
    bits: float
    probability: float | None
    low: float | None
    high: float | None
    underflow: float | None
    saturation: float | None
    snr_db: float | None
    bias: float | None
    cosine: float | None
    sum_error: float | None
    growth: float | None
    update_lost: float | None
    features: Damage
    not_seen: list[str]
    trained: Outcome | None


@dataclass
class PredictedLadder:
    """The predictions for a ladder: candidates that share a gradient scaling, from most bits to fewest.

    Attributes:
        chain: The label of the ladder, which names the gradient scaling.
        smallest: The narrowest format that is likely good enough.
        from_: The narrowest format at the optimistic end of the 80% credible intervals.
        to: The narrowest format at the pessimistic end of the 80% credible intervals.
        smallest_bits: The bits of `smallest`.
        from_bits: The bits of `from`.
        to_bits: The bits of `to`.
        candidates: The predictions for the candidates.
    """

    chain: str
    smallest: str | None
    from_: str | None
    to: str | None
    smallest_bits: float | None
    from_bits: float | None
    to_bits: float | None
    candidates: list[PredictedCandidate]


@dataclass
class ObservedRun:
    """A run that a prediction trains and observes.

    Attributes:
        run: The folder of the run.
        is_there: Whether the run was trained and observed already.
        serves: The names of the baselines whose candidates are predicted from the run.
    """

    run: str
    is_there: bool
    serves: list[str]


@dataclass
class PredictDocument:
    """The ranking of the candidates and their probabilities of failing.

    A dry run's document contains only the runs that would be trained.

    Attributes:
        dry_run: Whether the runs were only planned.
        notes: Additional notes for the user.
        runs: For a dry run, the runs that would be observed.
        tolerance: The margin as text.
        baseline: The name of the baseline.
        observed: The folders of the observed runs.
        chains: The predictions for each ladder.
        ranking: The labels of the candidates, least likely to fail first.
        says: The prediction in sentences.
    """

    dry_run: bool
    notes: list[str]
    runs: list[ObservedRun] | None = optional()
    tolerance: str | None = optional()
    baseline: str | None = optional()
    observed: list[str] | None = optional()
    chains: list[PredictedLadder] | None = optional()
    ranking: list[str] | None = optional()
    says: list[str] | None = optional()


def predict_document(
    ladders: Sequence[LadderForecast], context: Context, notes: list[str]
) -> PredictDocument:
    return PredictDocument(
        dry_run=False,
        notes=notes,
        tolerance=context.margin,
        baseline=context.baseline,
        observed=list(context.observed),
        chains=[_predicted_ladder(ladder) for ladder in ladders],
        ranking=[forecast.subject.label for forecast in ranked(ladders)],
        says=list(summarize(ladders, context)),
    )


def _predicted_ladder(ladder: LadderForecast) -> PredictedLadder:
    smallest, smallest_bits = _label_and_bits(ladder.narrowest())
    from_, from_bits = _label_and_bits(ladder.narrowest("low"))
    to, to_bits = _label_and_bits(ladder.narrowest("high"))
    return PredictedLadder(
        chain=ladder.label,
        smallest=smallest,
        from_=from_,
        to=to,
        smallest_bits=smallest_bits,
        from_bits=from_bits,
        to_bits=to_bits,
        candidates=[_predicted_candidate(forecast) for forecast in ladder],
    )


def _label_and_bits(forecast: Forecast | None) -> tuple[str | None, float | None]:
    return (forecast.subject.label, forecast.subject.bits) if forecast else (None, None)


def _predicted_candidate(forecast: Forecast) -> PredictedCandidate:
    return PredictedCandidate(
        candidate=forecast.subject.label,
        run=forecast.subject.name,
        bits=forecast.subject.bits,
        probability=forecast.chance.mean,
        low=forecast.chance.low,
        high=forecast.chance.high,
        **forecast.measured,
        features=forecast.damage,
        not_seen=list(forecast.uncovered),
        trained=forecast.outcome,
    )
