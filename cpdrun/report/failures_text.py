"""Describe failed runs and bit-identical runs in text. This module does not import pandas."""

from collections.abc import Mapping, Sequence
from typing import Any

from cpdrun.report.render import count, join_last
from cpdrun.stats.failures import FailureCounts, identical_groups


def failures_text(counts: FailureCounts, candidate: str = "") -> str:
    """Return how many runs failed and why; "" if none failed.

    Example: "3 of 6 runs of e4m3 failed (1 diverged, 1 stopped early)". The third run ended with an error of its own.
    Such runs are counted but not listed. Without a `candidate`, "of e4m3" is omitted.
    """
    if not counts.failed:
        return ""
    causes = (
        (counts.diverged, "diverged"),
        (counts.stopped_early, "stopped early"),
        (counts.did_not_learn, "did not learn"),
        (counts.unknown, "for an unknown reason"),
    )
    told = ", ".join(f"{number} {cause}" for number, cause in causes if number)
    of = f" of {candidate}" if candidate else ""
    return f"{counts.failed} of {counts.ended} runs{of} failed{f' ({told})' if told else ''}"


def failure_bound_text(counts: FailureCounts, confidence: float) -> str:
    """Return the failed runs with an upper confidence limit of the failure rate.

    Example: "0 of 9 runs failed (with 95% confidence at most 28% fail)". An unknown limit is omitted. `confidence` is
    in percent.
    """
    told, bound = failures_text(counts) or f"0 of {counts.ended} runs failed", counts.at_most(confidence)
    if bound is None:
        return told
    return f"{told} (with {confidence:g}% confidence at most {100 * bound:.0f}% fail)"


def left_out_text(counts: FailureCounts) -> str:
    """Return how many pairs lack a result because the baseline failed; "" if none."""
    if not counts.left_out:
        return ""
    return f"{count(counts.left_out, 'pair')} left out because the baseline's run failed"


def identical_texts(cells: Mapping[str, Mapping[Any, str]]) -> list[str]:
    """Return a sentence for each set of cells whose runs are bit-identical.

    `cells` holds the runs' fingerprints as {cell name: {seed: fingerprint}}.
    """
    return [identical_text(names) for names in identical_groups(cells)]


def identical_text(names: Sequence[str]) -> str:
    """Return the sentence that calls the named cells bit-identical."""
    return f"{join_last(names)} are identical: equal bit for bit in every seed, which is no evidence of equality."
