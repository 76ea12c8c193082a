"""The ledger: the hypotheses that were tested on a sweep, and the share of the error probability of each.

A hypothesis is "this candidate is not good enough compared with this baseline, in this metric". It gets its weight,
which is its share of the error probability, when it is first tested, and keeps it. The ledger is append-only: repeating
a question with fewer formats, fewer ladders or other axes frees no error probability.

Hypotheses form sequences. A ladder, which is a list of candidates with most bits first, is one sequence. Each width
(the candidates of one bit width) is opened by the wider width before it: it may be certified only if that one is. All
widths have the whole weight of the ladder, because too few bits are claimed only if the first width that is not good
enough is certified (fixed-sequence testing: W. Maurer, L. A. Hothorn and W. Lehmacher, "Multiple comparisons in drug
clinical trials and preclinical assays: a-priori ordered hypotheses", Biometrie in der chemisch-pharmazeutischen
Industrie 6 (1995)). The formats of a width share its weight equally, because any of them may open the next width
(Bonferroni).

A ladder may start below its widest width if a prediction says so. The widths from the start down form a sequence with
START_SHARE of the ladder's weight. Each wider width is a sequence of its own: the k-th width above the start has
2^-(k + 2) of the weight, and START_SHARE + 1/8 + 1/16 + ... is at most 1 (B. L. Wiens, "A fixed sequence Bonferroni
procedure for testing multiple endpoints", Pharmaceutical Statistics 2 (2003)). A prediction must not use any run that
is in a pair, so the seed of its run is set aside.

The roots are the hypotheses that no other hypothesis opens. Their weights sum to at most 1 (Bonferroni over the
sequences). The first question of a sweep gets FIRST_QUESTION of the error probability. Each later question that adds
roots gets half of what is left. The ladders of a question share its part equally. A width that is added below the
narrowest width of a sequence continues the sequence with the same weight.

The gate of a hypothesis is the set of candidates that open it. A hypothesis is found again only if its gate is passed
whenever the wider widths of the new question are certified. If it is tested without the formats that opened it, it is a
new hypothesis.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeGuard

from cpdrun.stats.evidence import SpreadPrior

FIRST_QUESTION = 0.8
LATER_QUESTION = 0.5  # the share of the remaining error probability that a later question gets
NO_GATE: tuple[str, ...] = ()
START_SHARE = 0.75  # the share of a ladder's weight that the widths from its start down have


@dataclass(frozen=True)
class Hypothesis:
    """The hypothesis that a candidate is not good enough compared with a baseline.

    Attributes:
        metric: The name of the metric.
        candidate: The name of the candidate.
        baseline: The name of the baseline.
        opened_by: The gate: the candidates of which one must be certified first. Empty for a root.
        weight: The share of the error probability.
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
    """The start of a ladder of a search that does not start at its widest width, because of a prediction.

    Attributes:
        ladder: The label of the ladder in the search.
        bits: The bits of the width at which the ladder starts.
        aside: The seed of the run that the prediction used, which is in no pair. None if there is none.
        cells: The names of the candidates' runs of seed 0, by which a report recognizes the ladder.
    """

    ladder: str
    bits: float
    aside: int | None
    cells: frozenset[str]


@dataclass(frozen=True)
class AskedLadder:
    """A ladder in a question.

    A candidate or baseline is named after its cell, which is the name of its run of seed 0. Tuned candidates have the
    names in `Ledger.cells`.

    Attributes:
        baseline: The name of the baseline.
        widths: The names of the candidates of each width, most bits first.
        start: The index of the width at which the ladder starts.
        bits: The bits of each width. Empty if unknown.
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
        cells: The name under which a tuned candidate was tested, by the cell of its runs.
        ladders: The number of ladders in an older sweep.yaml, which contains no hypotheses. At least this many ladders
            share the error probability of the first question.
        sizes: The number of formats by bits in an older sweep.yaml. At least this many formats share the weight of a
            width in the first question.
    """

    hypotheses: tuple[Hypothesis, ...] = ()
    cells: Mapping[str, str] = field(default_factory=dict)
    ladders: int = 0
    sizes: Mapping[float, int] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """The share of the error probability that no root has."""
        return max(0.0, 1 - math.fsum(each.weight for each in self.hypotheses if not each.opened_by))

    def ask(self, metric: str, ladders: Sequence[AskedLadder]) -> list[list[list[Hypothesis]]]:
        """Return the hypotheses of each ladder, width by width.

        New hypotheses get their weights, but they are not in the ledger until `merged` adds them.

        Args:
            metric: The name of the metric.
            ladders: The ladders of the question.
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
        """Return the ledger with further hypotheses. Existing weights and priors are not changed."""
        by_key = {each.key: each for each in self.hypotheses}
        for each in others:
            there = by_key.setdefault(each.key, each)
            if there.prior is None and each.prior is not None:
                by_key[each.key] = replace(there, prior=each.prior)
        return replace(self, hypotheses=tuple(by_key.values()))

    def named(self, cell: str) -> str:
        """Return the name under which the candidate or baseline of a cell was tested."""
        return self.cells.get(cell, cell)

    def _find(
        self, metric: str, candidate: str, baseline: str, above: Sequence[Sequence[str]]
    ) -> Hypothesis | None:
        """Return the recorded hypothesis with the largest weight whose gate is passed whenever `above` is certified.

        Args:
            metric: The name of the metric.
            candidate: The name of the candidate.
            baseline: The name of the baseline.
            above: The names of the candidates of the wider widths in the same sequence.
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
            if i in roots:
                weight, opened_by = portion * roots[i], NO_GATE
            else:
                weight = math.fsum(each.weight for each in found[-1]) if i else 0.0
                opened_by = tuple(ladder.widths[i - 1]) if i else NO_GATE
            size = max(there.count(None), self._size(ladder, i), 1)
            new = (Hypothesis(metric, name, ladder.baseline, opened_by, weight / size) for name in names)
            found.append([each or fresh for each, fresh in zip(there, new, strict=True)])
        return found

    def _size(self, ladder: AskedLadder, width: int) -> int:
        return self.sizes.get(ladder.bits[width], 0) if ladder.bits and not self.hypotheses else 0

    # ---- in sweep.yaml

    @property
    def as_yaml(self) -> dict[str, Any]:
        """The content of `ledger` in sweep.yaml."""
        rows = [asdict(each) for each in self.hypotheses]
        hypotheses = [{**row, "opened_by": list(row["opened_by"])} for row in rows]
        return {"hypotheses": hypotheses} | ({"cells": dict(self.cells)} if self.cells else {})

    @classmethod
    def read(cls, block: object, family: object = None) -> "Ledger":
        """Read the ledger of a sweep.yaml.

        Anyone may have written the file, so parts that cannot be read count as absent.

        Args:
            block: The content of `ledger`.
            family: The content of `family` in an older sweep.yaml.
        """
        block, family = (each if isinstance(each, Mapping) else {} for each in (block, family))
        rows, cells = block.get("hypotheses"), block.get("cells")
        found = [each for row in _list(rows) if (each := _hypothesis(row)) is not None]
        names = {str(a): str(b) for a, b in cells.items()} if isinstance(cells, Mapping) else {}
        ladders, formats = family.get("chains"), family.get("formats")
        pairs = formats.items() if isinstance(formats, Mapping) else ()
        sizes = {bits: int(n) for bits, n in pairs if _is_number(bits) and _is_number(n)}
        return cls(tuple(found), names, int(ladders) if _is_number(ladders) else 0, sizes)


def read_starts(block: object) -> tuple[Start, ...]:
    """Read `start` of a sweep.yaml, which anyone may have written."""
    found = []
    for each in _list(block):
        bits, aside, cells = (each.get(key) for key in ("bits", "aside", "cells"))
        if _is_number(bits):
            seed = aside if isinstance(aside, int) else None
            label = str(each.get("chain", ""))
            found.append(Start(label, float(bits), seed, frozenset(map(str, cells or ()))))
    return tuple(found)


def _roots(
    ladder: AskedLadder, known: Sequence[Sequence[Hypothesis | None]], opened: set[str]
) -> dict[int, float]:
    """Return the indices of the widths whose new hypotheses begin a sequence, and their portions of its share.

    Args:
        ladder: The ladder.
        known: For each width the recorded hypothesis of each candidate; None for a new one.
        opened: The names of all candidates that open a recorded hypothesis.
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
    if len(names) < 3 or not (_is_number(weight) and 0 < weight <= 1):
        return None
    opened_by = row.get("opened_by")
    gate = tuple(map(str, opened_by)) if isinstance(opened_by, list) else ()
    metric, candidate, baseline = names
    return Hypothesis(metric, candidate, baseline, gate, float(weight), _prior(row.get("prior")))


def _prior(block: object) -> SpreadPrior | None:
    about = block if isinstance(block, Mapping) else {}
    deviation: object = about.get("deviation")
    degrees: object = about.get("degrees")
    if not (_is_number(deviation) and _is_number(degrees) and deviation >= 0 and degrees >= 0):
        return None
    return SpreadPrior(float(deviation), degrees)


def _list(block: object) -> list[Mapping[str, Any]]:
    return [each for each in block if isinstance(each, Mapping)] if isinstance(block, list) else []


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
