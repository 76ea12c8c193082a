"""Choose the width at which a ladder starts (`search.start`).

A ladder starts at its widest width, or at the narrowest width that is predicted to be enough.

Rule: A width is as likely to miss the tolerance as its least likely format. The ladder starts at the narrowest width
whose chance of missing the tolerance is at most EVEN. It starts at the widest width if no width qualifies or if
nothing is predicted. `cpdrun.stats.ledger` says which claims such a ladder makes, at which error, and why this is
valid.

Evidence: A prediction reads the first run of the baseline and no run of a candidate. That run is also half of a pair,
and a start that was chosen by a pair would bias the pair. The seed of that run is therefore left out of the pairs of
every ladder that starts below its widest width. This costs one run of the baseline, unless tuning has made that run:
tuning seeds are in no pair.

Record: The start is written to sweep.yaml before any candidate runs. It stays valid when the search is started again
or reported, whatever a later model predicts. Another tolerance or another baseline is another question and has its own
start.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cpdrun.config.overrides import typed_form
from cpdrun.record import RunDir, read_manifest
from cpdrun.search.ladders import EVEN, Candidate, Ladder
from cpdrun.search.question import Question
from cpdrun.search.settings import FEWEST_SEEDS, PREDICTED, WIDEST
from cpdrun.stats.ledger import read_starts
from cpdrun.whatif.baseline_runs import OBSERVE, SubjectLadder, typed_names
from cpdrun.whatif.effects import NoEffectsError, is_observed
from cpdrun.whatif.forecast import Subject, what_if

KEY = "search.start"
# A recorded start is valid only for a question that agrees in these keys.
SAME_KEYS = ("tolerance", "baseline")


def subject_ladder(question: Question, ladder: Ladder) -> SubjectLadder:
    """Return the candidates of a ladder as a forecast reads them."""
    subjects = (
        Subject(c.name, c.label, c.bits, question.config(c.name)) for width in ladder.widths for c in width
    )
    return SubjectLadder(ladder.label, ladder.baseline, tuple(subjects))


def with_chances(question: Question, ladder: Ladder, run: RunDir, strictness: float) -> Ladder | None:
    """Return the ladder with the predicted chance that each candidate fails, the likeliest to hold the tolerance first.

    The order is set within each width. The chance is the mean over the levels that an unseen network may have. Results
    of candidates are not used, because the start of a ladder must not depend on the pairs that are tested. Return None
    if `run`, a run of the ladder's baseline, was not observed or if the effects cannot be computed.
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

    def logit(candidate: Candidate) -> float:
        return found[candidate.name].logit

    widths = (
        tuple(replace(c, chance=found[c.name].chance.mean) for c in sorted(width, key=logit))
        for width in ladder.widths
    )
    return replace(ladder, widths=tuple(widths))


def predicted_width(ladder: Ladder, most: float = EVEN) -> int:
    """Return the index of the narrowest width that is predicted to hold the tolerance.

    At least one candidate of that width must miss the tolerance with probability `most` or less. The index is 0 if no
    width qualifies, or if any candidate has no prediction.
    """
    found = 0
    for i, width in enumerate(ladder.widths):
        chances = [candidate.chance for candidate in width if candidate.chance is not None]
        if len(chances) < len(width):
            return 0
        found = i if min(chances) <= most else found
    return found


def start_at(ladder: Ladder, width: int, seed: int | None) -> Ladder:
    """Return the ladder with its start at `width`.

    If `width` is not 0, no pair uses `seed`, the seed of the run that chose the start.
    """
    return replace(ladder, start=width, aside=seed if width else None, is_started=True)


@dataclass(frozen=True)
class Starts:
    """How the ladders of a question start.

    Attributes:
        by: PREDICTED or WIDEST.
        ladders: The recorded starts by the label of the ladder: the bits, and the seed that no pair uses.
    """

    by: str
    ladders: Mapping[str, tuple[float, int | None]] = field(default_factory=dict)

    def of(self, ladder: Ladder) -> Ladder | None:
        """Return the ladder with its start, or None if the start is still to be predicted."""
        if len(ladder.widths) == 1:
            return ladder
        bits, aside = self.ladders.get(ladder.label, (math.nan, None))
        width = next((i for i, width in enumerate(ladder.widths) if width[0].bits == bits), None)
        if width is not None:
            return start_at(ladder, width, aside)
        return ladder if self.by == WIDEST else None


def choose_starts(question: Question) -> Starts:
    """Return how the ladders of a question start.

    If the same question was searched in this folder before, its sweep.yaml decides, unless the user typed
    `search.start`. Otherwise the settings decide. All ladders start at their widest width if `search.most_seeds` is at
    most FEWEST_SEEDS, because no seed is left for a prediction, or if runs cannot be observed.
    """
    asked, before = question.settings, _recorded_starts(question)
    is_typed = any(text.split("=")[0] == KEY for text in question.typed)
    by = asked.start if is_typed or before is None else before.by
    if asked.most_seeds <= FEWEST_SEEDS or OBSERVE not in question.config(question.ladders[0].baseline):
        return Starts(WIDEST)
    return Starts(by, before.ladders if before is not None and before.by == by == PREDICTED else {})


def _recorded_starts(question: Question) -> Starts | None:
    """Return the starts that sweep.yaml records for this question, or None if it records none."""
    try:
        manifest = read_manifest(question.directory)
    except (OSError, ValueError):
        return None
    block = manifest.get("search") if isinstance(manifest, Mapping) else None
    if not isinstance(block, Mapping) or any(
        typed_form(block.get(key)) != typed_form(question.asked[key]) for key in SAME_KEYS
    ):
        return None
    ladders = {each.ladder: (each.bits, each.aside) for each in read_starts(block.get("start"))}
    return Starts(PREDICTED if "start" in block else WIDEST, ladders)


def starts_record(by: str, ladders: Sequence[Ladder], arms: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return what sweep.yaml records about the ladders whose start was predicted.

    Each entry has the bits, the seed that no pair uses, and the cells of the candidates, or of their arms, by which a
    report recognizes the ladder. Without `start`, all ladders start at their widest width.
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
