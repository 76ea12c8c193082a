"""Record the hypotheses that were tested on a sweep, with their shares of the error probability.

A hypothesis says: "this candidate is worse than this baseline by more than the margin, in this metric". It gets a
weight, its share of the error probability, when it is first tested, and keeps it. Hypotheses are never removed. So a
later search with fewer formats or ladders frees no error probability. A question is a request for verdicts on some
ladders, by a search or a report.

Hypotheses form sequences. A ladder, whose candidates share a baseline and a gradient scaling, is one sequence from most
bits to fewest. A width consists of the ladder's candidates with the same number of bits, and may be certified only if
the next wider width, which opens it, is certified. Every width has the whole weight of the ladder, because a wrong
claim needs the certification of the first width that is not good enough (fixed-sequence testing: W. Maurer, L. A.
Hothorn, and W. Lehmacher, "Multiple comparisons in drug clinical trials and preclinical assays: a-priori ordered
hypotheses", Biometrie in der chemisch-pharmazeutischen Industrie 6 (1995)). The formats of a width share its weight
equally, because each of them may open the next width (Bonferroni).

A ladder may start below its widest width if a prediction suggests it. The widths from the start down form a sequence
with START_SHARE of the ladder's weight. Each wider width is a sequence of its own, and the k-th width above the start
has 2^-(k + 2) of the weight. START_SHARE + 1/8 + 1/16 + ... is at most 1 (B. L. Wiens, "A fixed sequence Bonferroni
procedure for testing multiple endpoints", Pharmaceutical Statistics 2 (2003)). The seed of the run that the prediction
used is set aside, because this run must be in no pair.

A root is a hypothesis that no other hypothesis opens. The weights of all roots sum to at most 1 (Bonferroni over the
sequences). The first question on a sweep gets FIRST_QUESTION of the error probability. Each later question with new
roots gets LATER_QUESTION of what is left. The ladders of a question share its part equally. A width that is added below
the narrowest one continues the sequence with the same weight.

The gate of a hypothesis is the set of candidates that open it. A later question reuses a hypothesis only if its gate is
certain to be passed when the wider widths of that question are certified. Otherwise, the test counts as a new
hypothesis.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeGuard

from cpdrun.stats.evidence import SpreadPrior
from cpdrun.stats.means import is_number

FIRST_QUESTION = 0.8  # The first question gets this share of the error probability.
LATER_QUESTION = 0.5  # Each later question gets this share of what is left.
START_SHARE = 0.75  # The widths from a ladder's start down get this share of its weight.


@dataclass(frozen=True)
class Hypothesis:
    """The hypothesis that a candidate is worse than a baseline by more than the margin.

    Attributes:
        metric: The name of the metric.
        candidate: The name of the candidate.
        baseline: The name of the baseline.
        opened_by: The gate: one of these candidates must be certified before `candidate` may be. Empty for a root.
        weight: The hypothesis's share of the error probability.
        prior: The prior for the standard deviation. None until it is fixed (`cpdrun.stats.pooled_spread.priors`).
    """

    metric: str
    candidate: str
    baseline: str
    opened_by: tuple[str, ...]
    weight: float
    prior: SpreadPrior | None = None

    @property
    def key(self) -> tuple[str, str, str, tuple[str, ...]]:
        """The fields that identify the hypothesis."""
        return self.metric, self.candidate, self.baseline, self.opened_by


@dataclass(frozen=True)
class Start:
    """The width at which a search starts a ladder, because of a prediction.

    Attributes:
        ladder: The label of the ladder in the search.
        bits: The bits of the width at which the ladder starts.
        aside: The seed of the run that the prediction used, which is in no pair. None if it used none.
        cells: The names of the candidates' cells, by which a report recognizes the ladder.
    """

    ladder: str
    bits: float
    aside: int | None
    cells: frozenset[str]


@dataclass(frozen=True)
class AskedLadder:
    """A ladder on which a search or a report requests verdicts.

    Candidates and baselines have the name of their cell, which is the name of its run of seed 0, or for tuned
    candidates the name in `Ledger.cells`.

    Attributes:
        baseline: The name of the baseline.
        widths: The names of the candidates of each width, most bits first.
        start: The index of the width at which the ladder starts.
        bits: The number of bits of each width. Empty if unknown.
    """

    baseline: str
    widths: Sequence[Sequence[str]]
    start: int = 0
    bits: Sequence[float] = ()


@dataclass(frozen=True)
class Ledger:
    """The hypotheses that were tested on one sweep.

    Attributes:
        hypotheses: The hypotheses, in the order in which they were added.
        cells: The names under which tuned candidates were tested, keyed by the cell of the candidate's runs.
        ladders: The number of ladders in an older sweep.yaml without hypotheses. At least as many share the first
            question.
        sizes: The number of formats in an older sweep.yaml, keyed by bits. At least as many share the weight of a
            width.
    """

    hypotheses: tuple[Hypothesis, ...] = ()
    cells: Mapping[str, str] = field(default_factory=dict)
    ladders: int = 0
    sizes: Mapping[float, int] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """The share of the error probability that no root uses yet."""
        return max(0.0, 1 - math.fsum(each.weight for each in self.hypotheses if not each.opened_by))

    def ask(self, metric: str, ladders: Sequence[AskedLadder]) -> list[list[list[Hypothesis]]]:
        """Return the hypotheses of a question, by ladder and width.

        Recorded hypotheses are reused. New ones get their weights here, but only `merged` adds them to a ledger.
        """
        found = [
            [
                [
                    self._find(metric, candidate, ladder.baseline, ladder.widths[ladder.start : i])
                    for candidate in width
                ]
                for i, width in enumerate(ladder.widths)
            ]
            for ladder in ladders
        ]
        opened = {name for each in self.hypotheses if each.metric == metric for name in each.opened_by}
        roots = [_roots(ladder, known, opened) for ladder, known in zip(ladders, found, strict=True)]
        asking = sum(map(bool, roots))
        share = FIRST_QUESTION if not self.hypotheses else LATER_QUESTION * self.left
        share /= max(asking, 0 if self.hypotheses else self.ladders, 1)
        return [
            self._weighted(metric, ladder, known, of_roots, share)
            for ladder, known, of_roots in zip(ladders, found, roots, strict=True)
        ]

    def merged(self, others: Collection[Hypothesis]) -> "Ledger":
        """Return the ledger with further hypotheses. Existing weights and priors do not change."""
        by_key = {each.key: each for each in self.hypotheses}
        for each in others:
            there = by_key.setdefault(each.key, each)
            if there.prior is None and each.prior is not None:
                by_key[each.key] = replace(there, prior=each.prior)
        return replace(self, hypotheses=tuple(by_key.values()))

    def named(self, cell: str) -> str:
        """Return the name under which a cell was tested."""
        return self.cells.get(cell, cell)

    def _find(
        self, metric: str, candidate: str, baseline: str, above: Sequence[Sequence[str]]
    ) -> Hypothesis | None:
        """Return the recorded hypothesis that a question may reuse, or None.

        Its gate must be empty, or certain to be passed when all wider widths of the same sequence (`above`) are
        certified. Of several, the one with the largest weight is returned.
        """
        about = metric, candidate, baseline
        known = [
            each
            for each in self.hypotheses
            if (each.metric, each.candidate, each.baseline) == about
            and (not each.opened_by or any(width and {*width} <= {*each.opened_by} for width in above))
        ]
        return max(known, key=lambda each: each.weight, default=None)

    def _weighted(
        self,
        metric: str,
        ladder: AskedLadder,
        known: Sequence[Sequence[Hypothesis | None]],
        roots: Mapping[int, float],
        share: float,
    ) -> list[list[Hypothesis]]:
        portion = share / max(1.0, math.fsum(roots.values()))
        found: list[list[Hypothesis]] = []
        for i, (names, there) in enumerate(zip(ladder.widths, known, strict=True)):
            opened_by: Sequence[str]
            if i in roots:
                weight, opened_by = portion * roots[i], []
            else:
                weight = math.fsum(each.weight for each in found[-1]) if i else 0.0
                opened_by = ladder.widths[i - 1] if i else []
            size = max(there.count(None), self._size(ladder, i), 1)
            new = (
                Hypothesis(metric, name, ladder.baseline, tuple(opened_by), weight / size) for name in names
            )
            found.append([each or fresh for each, fresh in zip(there, new, strict=True)])
        return found

    def _size(self, ladder: AskedLadder, width: int) -> int:
        return self.sizes.get(ladder.bits[width], 0) if ladder.bits and not self.hypotheses else 0

    # ---- in sweep.yaml

    @property
    def as_yaml(self) -> dict[str, Any]:
        """The value of the key `ledger` in sweep.yaml."""
        rows = [asdict(each) for each in self.hypotheses]
        hypotheses = [{**row, "opened_by": list(row["opened_by"])} for row in rows]
        return {"hypotheses": hypotheses} | ({"cells": dict(self.cells)} if self.cells else {})

    @classmethod
    def read(cls, block: object, family: object = None) -> "Ledger":
        """Read the keys `ledger` and, in older files, `family` of a sweep.yaml.

        Unreadable parts are ignored, because the file may come from anyone.
        """
        block, family = (each if isinstance(each, Mapping) else {} for each in (block, family))
        rows, cells = block.get("hypotheses"), block.get("cells")
        found = [each for row in _list(rows) if (each := _hypothesis(row)) is not None]
        names = {str(a): str(b) for a, b in cells.items()} if isinstance(cells, Mapping) else {}
        ladders, formats = family.get("chains"), family.get("formats")
        pairs = formats.items() if isinstance(formats, Mapping) else ()
        sizes = {bits: int(n) for bits, n in pairs if _is_finite(bits) and _is_finite(n)}
        return cls(tuple(found), names, int(ladders) if _is_finite(ladders) else 0, sizes)


def read_starts(block: object) -> tuple[Start, ...]:
    """Read the key `start` of a sweep.yaml. Unreadable entries are skipped."""
    found = []
    for each in _list(block):
        bits, aside, cells = (each.get(key) for key in ("bits", "aside", "cells"))
        if _is_finite(bits):
            seed = aside if isinstance(aside, int) else None
            label = str(each.get("chain", ""))
            found.append(Start(label, float(bits), seed, frozenset(map(str, cells or ()))))
    return tuple(found)


def _roots(
    ladder: AskedLadder, known: Sequence[Sequence[Hypothesis | None]], opened: set[str]
) -> dict[int, float]:
    """Return the widths that begin a sequence of new hypotheses.

    Args:
        ladder: The ladder.
        known: The recorded hypothesis of each candidate by width. None if there is none.
        opened: The names of all candidates that open a recorded hypothesis.

    Returns:
        The share of each sequence in the ladder's weight, keyed by the index of the width.
    """
    found = {}
    for i, there in enumerate(known):
        if None not in there:
            continue
        is_first_child = all(each is None for each in there) and not (
            i and not opened.isdisjoint(ladder.widths[i - 1])
        )
        if i < ladder.start:
            found[i] = 2.0 ** -(ladder.start - i + 2)
        elif i == ladder.start:
            found[i] = START_SHARE if i else 1.0
        elif not is_first_child:
            found[i] = 1.0
    return found


def _hypothesis(row: Mapping[str, Any]) -> Hypothesis | None:
    names = [row[key] for key in ("metric", "candidate", "baseline") if isinstance(row.get(key), str)]
    weight: object = row.get("weight")
    if len(names) < 3 or not (_is_finite(weight) and 0 < weight <= 1):
        return None
    opened_by = row.get("opened_by")
    gate = tuple(map(str, opened_by)) if isinstance(opened_by, list) else ()
    metric, candidate, baseline = names
    return Hypothesis(metric, candidate, baseline, gate, float(weight), _prior(row.get("prior")))


def _prior(block: object) -> SpreadPrior | None:
    about = block if isinstance(block, Mapping) else {}
    deviation: object = about.get("deviation")
    degrees: object = about.get("degrees")
    if not (_is_finite(deviation) and _is_finite(degrees) and deviation >= 0 and degrees >= 0):
        return None
    return SpreadPrior(float(deviation), degrees)


def _list(block: object) -> list[Mapping[str, Any]]:
    return [each for each in block if isinstance(each, Mapping)] if isinstance(block, list) else []


def _is_finite(value: object) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)
