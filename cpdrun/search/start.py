"""Where a chain starts: at its widest, or at the narrowest width that is predicted to be enough (search.start).

The rule. A width is as likely to miss the tolerance as the least likely of its formats; the start is the narrowest that
is rather not to (EVEN at most), the widest where none is, or nothing is predicted. `cpdrun.stats.ledger` says which
claims a chain that starts there makes, at which error, and why that is valid.

What it may go by. A prediction reads the baseline's first run, and no candidate's. That run is one half of a pair,
though, and a start that was chosen by a pair would bias it: so its seed is left out of the pairs of a chain that starts
below its widest. It costs one run of the baseline, unless tuning, whose seeds are in no pair, has made it.

The start is written to the sweep's own file before a candidate runs, and holds there for whoever types the search again
or reports it, whatever a later model predicts. Another tolerance or baseline is another question, with its own start.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cpdrun.config.overrides import typed_form
from cpdrun.record import read_manifest
from cpdrun.search.schedule import EVEN, Chain
from cpdrun.search.settings import FEWEST_SEEDS, PREDICTED, WIDEST
from cpdrun.stats.ledger import read_starts

if TYPE_CHECKING:
    from cpdrun.search.question import Question

KEY = "search.start"
OBSERVE = "observe"
SAME = ("tolerance", "baseline")  # of the question that a start was chosen for


def predicted_width(chain: Chain, most: float = EVEN) -> int:
    """Return the index of the narrowest width that is predicted to hold the tolerance.

    At least one candidate of that width must miss the tolerance with probability `most` or less. The index is 0 if no
    width qualifies, or if any candidate has no prediction.
    """
    chances = [[candidate.chance for candidate in width] for width in chain.widths]
    if any(chance is None for width in chances for chance in width):
        return 0
    return max((i for i, width in enumerate(chances) if min(width) <= most), default=0)


def start_at(chain: Chain, width: int, seed: int | None) -> Chain:
    """Return the chain with its start at `width`. If that is not 0, set `seed`, which chose the start, aside."""
    return replace(chain, start=width, aside=seed if width else None, is_started=True)


@dataclass(frozen=True)
class Begun:
    """How the chains of a question begin. `chains`: those that were recorded, by label, as bits and the seed aside."""

    by: str
    chains: Mapping[str, tuple[float, int | None]] = field(default_factory=dict)

    def of(self, chain: Chain) -> Chain | None:
        """Return the chain with its start, or None if the start is still to be predicted."""
        if len(chain.widths) == 1:
            return chain
        bits, aside = self.chains.get(chain.label, (math.nan, None))
        width = next((i for i, width in enumerate(chain.widths) if width[0].bits == bits), None)
        if width is not None:
            return start_at(chain, width, aside)
        return chain if self.by == WIDEST else None


def begun(question: "Question") -> Begun:
    """As the folder's sweep.yaml has it, if it was searched with the same question before; else, and where another
    start was typed, as is asked for. The fewest seeds that settle anything leave none for a prediction."""
    asked, before = question.settings, _before(question)
    is_typed = any(text.split("=")[0] == KEY for text in question.typed)
    by = asked.start if is_typed or before is None else before.by
    if asked.most_seeds <= FEWEST_SEEDS or OBSERVE not in question.config(question.chains[0].baseline):
        return Begun(WIDEST)
    return Begun(by, before.chains if before is not None and before.by == by == PREDICTED else {})


def _before(question: "Question") -> Begun | None:
    """What the folder says of this question; None where it was not asked there."""
    try:
        manifest = read_manifest(question.directory)
    except (OSError, ValueError):
        return None
    block = manifest.get("search") if isinstance(manifest, Mapping) else None
    if not isinstance(block, Mapping) or any(
        typed_form(block.get(key)) != typed_form(question.asked[key]) for key in SAME
    ):
        return None
    chains = {each.chain: (each.bits, each.aside) for each in read_starts(block.get("start"))}
    return Begun(PREDICTED if "start" in block else WIDEST, chains)


def recorded(by: str, chains: Sequence[Chain], arms: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return what sweep.yaml says about the chains whose start was predicted: the bits, the seed in no pair, and the
    cells of the candidates, or of their arms, by which a report knows the chain. Without `start`, all chains start
    at their widest width."""
    if by == WIDEST:
        return {}
    return {
        "start": [
            {
                "chain": chain.label,
                "bits": chain.widths[chain.start][0].bits,
                "aside": chain.aside,
                "cells": [
                    cell for width in chain.widths for c in width for cell in arms.get(c.name, (c.name,))
                ],
            }
            for chain in chains
            if chain.is_started
        ]
    }
