"""Texts about failed runs and about runs that are equal bit for bit. This module does not import pandas."""

from collections.abc import Mapping, Sequence
from typing import Any

from cpdrun.stats.failures import FailureCounts, identical_groups


def failures_text(counts: FailureCounts, candidate: str = "") -> str:
    """Return the number of failed runs with their causes; "" if no run failed.

    For example `3 of 6 runs of e4m3 failed (1 diverged, 1 stopped early)`. Runs that ended with an error of their own
    count as failed, but the parentheses do not list them.

    Args:
        counts: The numbers of failed runs.
        candidate: The candidate's name to insert into the text, or "" to name no candidate.
    """
    if not counts.failed:
        return ""
    causes = (
        (counts.diverged, "diverged"),
        (counts.stopped_early, "stopped early"),
        (counts.did_not_learn, "did not learn"),
        (counts.unknown, "for an unknown reason"),
    )
    told = ", ".join(f"{count} {cause}" for count, cause in causes if count)
    of = f" of {candidate}" if candidate else ""
    return f"{counts.failed} of {counts.ended} runs{of} failed{f' ({told})' if told else ''}"


def failure_bound_text(counts: FailureCounts, confidence: float) -> str:
    """Return the number of failed runs and the upper confidence limit of the failure rate.

    For example `0 of 9 runs failed (with 95 % confidence at most 28 % fail)`. The limit is left out if it is unknown.

    Args:
        counts: The numbers of failed runs.
        confidence: The confidence of the limit in percent.
    """
    told, bound = failures_text(counts) or f"0 of {counts.ended} runs failed", counts.at_most(confidence)
    if bound is None:
        return told
    return f"{told} (with {confidence:g} % confidence at most {100 * bound:.0f} % fail)"


def left_out_text(counts: FailureCounts) -> str:
    """Return the number of pairs that are left out, such as `2 pairs left out because the baseline's run failed`.

    If no pair is left out, return "".
    """
    pairs = f"{counts.left_out} pair{'s' if counts.left_out != 1 else ''}"
    return f"{pairs} left out because the baseline's run failed" if counts.left_out else ""


def identical_texts(cells: Mapping[str, Mapping[Any, str]]) -> list[str]:
    """Return a sentence for each group of cells whose runs are equal bit for bit.

    Args:
        cells: For each cell name, the fingerprints of the cell's runs, keyed by seed.
    """
    return [identical_text(names) for names in identical_groups(cells)]


def identical_text(names: Sequence[str]) -> str:
    """Return the sentence that says that the runs of at least two cells are equal bit for bit."""
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{listed} are identical: equal bit for bit in every seed, which is no evidence of equality."
