"""Forecast the cost of a search before it starts.

The noise is estimated from the recorded runs. The number of pairs, the number of runs and the time follow from it.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from cpdrun.search.results import Results
from cpdrun.search.schedule import FIRST_PAIRS, Standing
from cpdrun.stats.evidence import Verdict, pairs_needed
from cpdrun.stats.means import deviation

# Multiples of the tolerance for which the cost is shown.
TOLERANCES = (0.5, 1.0, 2.0)


def forecast(results: Results, slots: int | None) -> Iterator[str]:
    """Yield the forecast as sentences, such as `an equal format is certified at a tolerance of 1 after about 5 pairs`.

    `slots` is the number of runs that are trained at the same time, or None if it is unknown.
    """
    standings = results.standings()
    if to_choose := tuning_runs(results, standings):
        yield f"to choose the tuned values: {to_choose} runs, if each width is reached and its first format does"
    noise, source = noise_floor(results, standings)
    if noise is None:
        yield (
            "what the search is likely to cost can be said from two pairs on; a pair is one seed, run with a candidate "
            f"and with {results.question.baseline_name}"
        )
        return
    unit = results.metric.points
    needs = [
        f"{tolerance:g} {_pairs(standings, results, tolerance, noise)}" for tolerance in _tolerances(results)
    ]
    shown = noise * results.metric.scale
    yield f"noise: paired differences have sd {shown:.2g}{unit} ({source})"
    yield f"an equal format is certified at a tolerance of {', '.join(needs)}"
    runs = likely_runs(results, standings, noise)
    if runs is None:
        yield f"  so at {results.tolerance:g} it is likely to stay open: choose a larger tolerance or search.most_seeds"
        return
    a_run = fmean(results.seconds) if results.seconds else math.nan
    time = (
        ""
        if slots is None or math.isnan(a_run)
        else f", about {runs * a_run / slots / 60:.1f} minutes with {slots} at once"
    )
    further = f"{runs} further runs{', those included' if to_choose else ''}"
    yield f"likely: about {further}{time}, if each width but the last is as good as the baseline"


def noise_floor(results: Results, standings: Sequence[Standing]) -> tuple[float | None, str]:
    """Return the standard deviation of a paired difference, and its source in words.

    This is the pooled deviation over the candidates that are not refuted. If no candidate has two pairs, it is sqrt(2)
    times the deviation of a baseline's own runs, which ignores that the runs of a pair share a seed. Return None and
    "" if neither is known.
    """
    known = [
        (judgement.pairs - 1, judgement.deviation)
        for standing in standings
        for _, judgement, _ in standing
        if judgement.pairs >= 2 and judgement.verdict is not Verdict.REFUTED
    ]
    degrees = sum(n for n, _ in known)
    if degrees:
        pooled = math.sqrt(math.fsum(n * sd**2 for n, sd in known) / degrees)
        return (pooled, f"{len(known)} candidates") if pooled > 0 else (None, "")
    for name in {s.chain.baseline for s in standings}:
        values = [v for v in results.ended.values.get(name, {}).values() if math.isfinite(v)]
        if len(values) >= 2 and deviation(values) > 0:
            return deviation(values) * math.sqrt(2), f"by {len(values)} runs of the baseline"
    return None, ""


def tuning_runs(results: Results, standings: Sequence[Standing]) -> int:
    """Return how many tuning runs are still to come.

    Baselines are counted, and the first format of every width from the frontier down.
    """
    tuning, cells = results.question.tuning, set()
    for standing in standings:
        if standing.active is not None:
            goes_down = standing.frontier >= standing.chain.start
            below = standing.chain.widths[standing.frontier + 1 :] if goes_down else ()
            first = [standing.active[0], *(width[0] for width in below)]
            cells |= {name for candidate in first for name in (candidate.baseline, candidate.name)}
    return sum(len(turn) for cell in cells for turn in tuning.missing(cell, results.ended))


def likely_runs(results: Results, standings: Sequence[Standing], noise: float) -> int | None:
    """Return how many runs are still to come, or None if `search.most_seeds` pairs are likely to be too few.

    The forecast assumes that the likeliest format of every width equals the baseline, except at the last width.
    """
    rules, runs, longest = results.rules(), tuning_runs(results, standings), 0
    for standing in standings:
        if standing.active is None:
            continue
        last = len(standing.widths) - 1
        upto = last if standing.frontier >= standing.chain.start else standing.frontier
        for i, width in enumerate(standing.widths[standing.frontier : upto + 1], standing.frontier):
            certify, refute = width.judgements[0].errors
            needed = pairs_needed(
                rules.tolerance,
                noise,
                certify=certify,
                refute=refute,
                fewest=2,
                most=rules.most_seeds,
            )
            if needed is None:
                return None
            pairs = FIRST_PAIRS * len(width.judgements) if i == last and i else needed
            runs += max(0, pairs - width.judgements[0].pairs)
            longest = max(longest, needed)
    baselines = {s.chain.baseline for s in standings if s.active is not None}
    return runs + sum(max(0, longest - len(results.paired(name))) for name in baselines)


def _tolerances(results: Results) -> list[float]:
    return [factor * results.tolerance for factor in TOLERANCES]


def _pairs(standings: Sequence[Standing], results: Results, tolerance: float, noise: float) -> str:
    """Return, in words, after how many pairs a width with a single format is decided."""
    _, error = standings[0].widths[standings[0].chain.start].judgements[0].errors
    distance = tolerance / results.metric.scale
    most = 10 * results.question.settings.most_seeds
    needed = pairs_needed(distance, noise, certify=error, refute=error, fewest=2, most=most)
    return f"after more than {most} pairs" if needed is None else f"after about {needed} pairs"
