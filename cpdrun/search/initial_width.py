"""Choose the width at which a ladder starts (`search.start`).

A ladder holds the candidates that differ only in their format, from most bits to fewest. It starts at its widest width,
or at the narrowest width that is predicted to be good enough. A candidate fails if it is worse than the baseline by
more than the margin.

Rule: The chance that a width fails is the smallest chance among its formats. The ladder starts at the narrowest width
whose chance of failing is at most EVEN. If no width qualifies or if nothing is predicted, the ladder starts at its
widest width. `cpdrun.stats.ledger` explains which claims such a ladder makes, their error probability, and why the
claims are valid.

Evidence: A prediction reads the baseline's first run and no run of a candidate. The baseline's run would also be half
of a pair, and a pair that has influenced the start would be biased. The pairs of a ladder that starts below its widest
width therefore leave out the seed of that run. This costs one run of the baseline. It costs nothing if the run was made
for tuning, because tuning seeds are never in a pair.

Record: The start is written to sweep.yaml before any candidate runs. Continuing or reporting the search uses the
recorded start, even if a later model predicts another one. A search with another margin or another baseline has its
own start.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cpdrun.config.overrides import typed_form
from cpdrun.record import RunDir, read_search
from cpdrun.search.ladders import EVEN, Ladder
from cpdrun.search.question import Question, key_of
from cpdrun.search.settings import FEWEST_SEEDS, PREDICTED, WIDEST
from cpdrun.stats.ledger import read_starts
from cpdrun.whatif.baseline_runs import OBSERVE, SubjectLadder, typed_names
from cpdrun.whatif.effects import NoEffectsError, is_observed
from cpdrun.whatif.forecast import Subject, what_if

KEY = "search.start"
# A recorded start is valid only for a search with the same values of these keys.
SAME_KEYS = ("tolerance", "baseline")


def subject_ladder(question: Question, ladder: Ladder) -> SubjectLadder:
    """Return the ladder's candidates in the form that a forecast reads."""
    subjects = (
        Subject(c.name, c.label, c.bits, question.config(c.name)) for width in ladder.widths for c in width
    )
    return SubjectLadder(ladder.label, ladder.baseline, tuple(subjects))


def with_chances(question: Question, ladder: Ladder, run: RunDir, strictness: float) -> Ladder | None:
    """Return the ladder with the predicted chance that each candidate fails.

    Within each width, the candidates are sorted by that chance, lowest first. Networks differ in the damage that they
    tolerate (the level in `cpdrun.whatif.forecast`), so the chance is the mean over the prior distribution of the
    level. The results of candidates are not used, because the start of a ladder must not depend on the pairs that are
    tested.

    Args:
        question: The question of the search.
        ladder: The ladder.
        run: A run of the ladder's baseline.
        strictness: The strictness of the margin, from `cpdrun.whatif.damage.strictness`.

    Returns:
        The ladder, or None if `run` was not observed or if the effects of the candidates cannot be computed.
    """
    if not is_observed(run):
        return None
    subjects = subject_ladder(question, ladder).subjects
    try:
        found = what_if(
            [(run, subjects)], strictness, sweep=question.directory, may_import=typed_names(subjects)
        )
    except (NoEffectsError, OSError):
        return None
    by_chance = (sorted(width, key=lambda candidate: found[candidate.name].logit) for width in ladder.widths)
    widths = (tuple(replace(c, chance=found[c.name].chance.mean) for c in width) for width in by_chance)
    return replace(ladder, widths=tuple(widths))


def predicted_width(ladder: Ladder) -> int:
    """Return the index of the narrowest width that is predicted to be good enough.

    A width qualifies if at least one of its candidates fails with probability EVEN or less. If no width qualifies, or
    if any candidate has no prediction, the index is 0, which is the widest width.
    """
    found = 0
    for i, width in enumerate(ladder.widths):
        chances = [candidate.chance for candidate in width if candidate.chance is not None]
        if len(chances) < len(width):
            return 0
        found = i if min(chances) <= EVEN else found
    return found


def start_at(ladder: Ladder, width: int, seed: int | None) -> Ladder:
    """Return the ladder with its start at the index `width`.

    `seed` is the seed of the run from which the start was predicted. If `width` is not 0, no pair uses this seed.
    """
    return replace(ladder, start=width, aside=seed if width else None, is_started=True)


@dataclass(frozen=True)
class Starts:
    """The way in which a search chooses the starts of its ladders, and the starts that are recorded.

    Attributes:
        by: PREDICTED or WIDEST.
        ladders: The recorded starts, keyed by the ladder's label. A start is a bit width and the seed that no pair of
            the ladder uses. The seed is None if the pairs may use all seeds.
    """

    by: str
    ladders: Mapping[str, tuple[float, int | None]] = field(default_factory=dict)

    def of(self, ladder: Ladder) -> Ladder | None:
        """Return the ladder with its start, or None if the start has not been predicted yet."""
        if len(ladder.widths) == 1:
            return ladder
        bits, aside = self.ladders.get(ladder.label, (math.nan, None))
        width = next((i for i, width in enumerate(ladder.widths) if width[0].bits == bits), None)
        if width is not None:
            return start_at(ladder, width, aside)
        return ladder if self.by == WIDEST else None


def choose_starts(question: Question) -> Starts:
    """Return the way in which the ladders of a search start.

    If the same search was made in this folder before and the user did not type `search.start`, its sweep.yaml decides.
    Otherwise, the settings decide.

    Two cases are exceptions, in which all ladders start at their widest width. If `search.most_seeds` is at most
    FEWEST_SEEDS, no seed is left for a prediction. If the config has no key `observe`, its runs cannot be observed.
    """
    asked, before = question.settings, _recorded_starts(question)
    by = asked.start if before is None or KEY in map(key_of, question.typed) else before.by
    if asked.most_seeds <= FEWEST_SEEDS or OBSERVE not in question.config(question.ladders[0].baseline):
        return Starts(WIDEST)
    return Starts(by, before.ladders if before is not None and before.by == by == PREDICTED else {})


def _recorded_starts(question: Question) -> Starts | None:
    """Return the starts that sweep.yaml records for a search with the same margin and baseline, or None."""
    block = read_search(question.directory)
    if any(typed_form(block.get(key)) != typed_form(question.asked[key]) for key in SAME_KEYS):
        return None
    ladders = {each.ladder: (each.bits, each.aside) for each in read_starts(block.get("start"))}
    return Starts(PREDICTED if "start" in block else WIDEST, ladders)


def starts_record(by: str, ladders: Sequence[Ladder], arms: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the entry `start` of sweep.yaml, which records the ladders whose start is known.

    Each item has the ladder's label (under the key `chain`), the bit width of the start, the seed that no pair uses,
    and the names of the candidates' cells, by which a report recognizes the ladder. A tuned cell is listed as its arms.
    If `by` is WIDEST, the result is empty, which means that all ladders start at their widest width.
    """
    if by == WIDEST:
        return {}
    return {
        "start": [
            {
                "chain": ladder.label,
                "bits": ladder.widths[ladder.start][0].bits,
                "aside": ladder.aside,
                "cells": [
                    cell for width in ladder.widths for c in width for cell in arms.get(c.name, (c.name,))
                ],
            }
            for ladder in ladders
            if ladder.is_started
        ]
    }
