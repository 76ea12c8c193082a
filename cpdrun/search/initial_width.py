"""Choose the width at which a ladder starts (`search.start`).

Rule: The chance that a width fails is the smallest predicted chance among its formats. The ladder starts at the
narrowest width whose chance is at most EVEN, or at its widest width if there is none or nothing is predicted.
`cpdrun.stats.ledger` explains why the claims of such a ladder are valid.

Evidence: A prediction reads the baseline's first run and no run of a candidate. A pair with that run would be biased,
because it has influenced the start. Therefore, a ladder that starts below its widest width leaves out the seed of that
run. This costs one baseline run, or none if the run was made for tuning, because tuning seeds are in no pair.

Record: The start is written to sweep.yaml before any candidate runs, and is used from then on, even if a later model
predicts another one. A search with another margin or baseline has its own start.
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
# A recorded start is valid only for a search with the same values.
SAME_KEYS = ("tolerance", "baseline")


def subject_ladder(question: Question, ladder: Ladder) -> SubjectLadder:
    """Return the ladder as a `SubjectLadder`, the form that forecasts use."""
    subjects = (
        Subject(c.name, c.label, c.bits, question.config(c.name)) for width in ladder.widths for c in width
    )
    return SubjectLadder(ladder.label, ladder.baseline, tuple(subjects))


def with_chances(question: Question, ladder: Ladder, run: RunDir, strictness: float) -> Ladder | None:
    """Predict each candidate's chance of failing, and sort each width by it.

    The chance is the mean over the prior of the network's sensitivity (the level in `cpdrun.whatif.forecast`). Results
    of candidates are not used, because the start must not depend on the pairs that are tested. Returns None if the
    baseline's `run` was not observed or the effects cannot be computed.
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
    """Return the index of the narrowest width that is predicted to succeed.

    One of its candidates must fail with probability EVEN or less. If there is no such width, or if a candidate has no
    prediction, the index is that of the widest width, 0.
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

    `seed` is that of the run which the prediction read. No pair uses it, unless `width` is 0.
    """
    return replace(ladder, start=width, aside=seed if width else None, is_started=True)


@dataclass(frozen=True)
class Starts:
    """How a search chooses the starts of its ladders, PREDICTED or WIDEST, and the recorded starts.

    A start, keyed by the ladder's label, is a bit width and the seed that is in no pair, if any.
    """

    by: str
    ladders: Mapping[str, tuple[float, int | None]] = field(default_factory=dict)

    def of(self, ladder: Ladder) -> Ladder | None:
        """Return the ladder with its start, if that is known."""
        if len(ladder.widths) == 1:
            return ladder
        bits, aside = self.ladders.get(ladder.label, (math.nan, None))
        width = next((i for i, width in enumerate(ladder.widths) if width[0].bits == bits), None)
        if width is not None:
            return start_at(ladder, width, aside)
        return ladder if self.by == WIDEST else None


def choose_starts(question: Question) -> Starts:
    """Return how the ladders of a search start.

    sweep.yaml decides if it records the same search, unless the user typed `search.start`. Otherwise, the settings
    decide. All ladders start at their widest width if `search.most_seeds` leaves no seed for a prediction, or if the
    runs cannot be observed.
    """
    asked, before = question.settings, _recorded_starts(question)
    by = asked.start if before is None or KEY in map(key_of, question.typed) else before.by
    if asked.most_seeds <= FEWEST_SEEDS or OBSERVE not in question.config(question.ladders[0].baseline):
        return Starts(WIDEST)
    return Starts(by, before.ladders if before is not None and before.by == by == PREDICTED else {})


def _recorded_starts(question: Question) -> Starts | None:
    """Return the recorded starts of a search with the same margin and baseline."""
    block = read_search(question.directory)
    if any(typed_form(block.get(key)) != typed_form(question.asked[key]) for key in SAME_KEYS):
        return None
    ladders = {each.ladder: (each.bits, each.aside) for each in read_starts(block.get("start"))}
    return Starts(PREDICTED if "start" in block else WIDEST, ladders)


def starts_record(by: str, ladders: Sequence[Ladder], arms: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the entry `start` of sweep.yaml, which records the known starts.

    Each item has the ladder's label (`chain`), the bit width of the start, the seed that no pair uses, and the
    candidates' cells, by which a report recognizes the ladder. A tuned cell is listed as its arms. If all ladders start
    at their widest width, there is no entry.
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
