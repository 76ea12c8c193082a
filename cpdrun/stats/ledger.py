"""The ledger: which hypotheses of a sweep were asked, and how much of the error probability each of them has.

A hypothesis is "this candidate is not good enough against this baseline, in this metric". It gets its weight, its share
of the error probability, when it is first asked, and keeps it. The ledger is append-only: a question that is typed
again with fewer formats, chains or other axes gets nothing back.

Hypotheses form sequences. A chain of formats, most bits first, is one sequence: each width is opened by the wider one
before it, and all of its widths have the whole weight of the chain, because too few bits are claimed only if the first
width that is not good enough is certified (fixed-sequence testing: W. Maurer, L. A. Hothorn and W. Lehmacher, "Multiple
comparisons in drug clinical trials and preclinical assays: a-priori ordered hypotheses", Biometrie in der
chemisch-pharmazeutischen Industrie 6 (1995)). The formats of a width share its weight equally, because any of them may
open the next width (Bonferroni).

A chain may start below its widest width, where a prediction says so. From the start down it is a sequence with
START_SHARE of the chain's weight. Each wider width is a sequence of its own: the k-th above the start has 2^-(k + 2),
and START_SHARE + 1/8 + 1/16 + ... is at most 1 (B. L. Wiens, "A fixed sequence Bonferroni procedure for testing
multiple endpoints", Pharmaceutical Statistics 2 (2003)). A prediction may read nothing that is in a pair: its seed is
set aside.

The roots, the hypotheses that nothing opens, have weights that sum to at most 1 (Bonferroni over the sequences). The
first question of a sweep gets FIRST_QUESTION of the error probability, and each later one that adds roots half of what
is left; its chains share that equally. A width that is added below the narrowest one of a sequence continues it at its
weight. A hypothesis is found again only if its gate is as narrow as it was: asked without the formats that opened it,
it is a new one.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeGuard

from cpdrun.stats.evidence import SpreadPrior

FIRST_QUESTION = 0.8
LATER_QUESTION = 0.5  # of what is left
NO_GATE: tuple[str, ...] = ()
START_SHARE = 0.75  # of a chain's weight, for the widths from its start down


@dataclass(frozen=True)
class Hypothesis:
    """`opened_by` holds the candidates of which one must be certified first; a root has none. `prior` is None until it
    is fixed (`cpdrun.stats.pooled_spread.priors`)."""

    metric: str
    candidate: str
    baseline: str
    opened_by: tuple[str, ...]
    weight: float
    prior: SpreadPrior | None = None

    @property
    def key(self) -> tuple[str, str, str, tuple[str, ...]]:
        return self.metric, self.candidate, self.baseline, self.opened_by


@dataclass(frozen=True)
class Start:
    """Where a chain of a search started, by a prediction."""

    chain: str  # its label in the search
    bits: float
    aside: int | None  # the seed that is in no pair
    cells: frozenset[str]  # the names of its candidates' runs of seed 0, by which a report knows the chain

    @property
    def note(self) -> str:
        seed = "" if self.aside is None else f", seed {self.aside}, which the prediction is of, is in no pair"
        at = f"{self.chain}: " if self.chain else ""
        return f"{at}started at {self.bits:g} bits, as predicted; each wider width is judged by itself{seed}"


@dataclass(frozen=True)
class AskedChain:
    """A chain as a question asks it: names of cells, most bits first, and the width that it starts at."""

    baseline: str
    widths: Sequence[Sequence[str]]
    start: int = 0
    bits: Sequence[float] = ()


@dataclass(frozen=True)
class Ledger:
    """The hypotheses of one sweep.

    `cells` maps each run's cell to the name under which a tuned candidate was asked. `chains` and `sizes` (formats by
    bits) are the numbers that a sweep.yaml without hypotheses has: the least that share the first question's error.
    """

    hypotheses: tuple[Hypothesis, ...] = ()
    cells: Mapping[str, str] = field(default_factory=dict)
    chains: int = 0
    sizes: Mapping[float, int] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """The share of the error probability that no root has."""
        return max(0.0, 1 - math.fsum(each.weight for each in self.hypotheses if not each.opened_by))

    def ask(self, metric: str, chains: Sequence[AskedChain]) -> list[list[list[Hypothesis]]]:
        """Return the hypotheses of each chain, width by width. Those that are new are not in the ledger yet; `merged`
        adds them."""
        found = [
            [
                [
                    self._find(metric, candidate, chain.baseline, chain.widths[chain.start : i])
                    for candidate in width
                ]
                for i, width in enumerate(chain.widths)
            ]
            for chain in chains
        ]
        opened = {name for each in self.hypotheses if each.metric == metric for name in each.opened_by}
        roots = [_roots(chain, known, opened) for chain, known in zip(chains, found, strict=True)]
        asking = sum(map(bool, roots))
        share = FIRST_QUESTION if not self.hypotheses else LATER_QUESTION * self.left
        share /= max(asking, 0 if self.hypotheses else self.chains, 1)
        return [
            self._weighted(metric, chain, known, of_roots, share)
            for chain, known, of_roots in zip(chains, found, roots, strict=True)
        ]

    def merged(self, others: Collection[Hypothesis]) -> "Ledger":
        """Return the ledger with further hypotheses. Weights and priors that are there already stay."""
        by_key = {each.key: each for each in self.hypotheses}
        for each in others:
            there = by_key.setdefault(each.key, each)
            if there.prior is None and each.prior is not None:
                by_key[each.key] = replace(there, prior=each.prior)
        return replace(self, hypotheses=tuple(by_key.values()))

    def named(self, cell: str) -> str:
        """Return the name under which a cell was asked."""
        return self.cells.get(cell, cell)

    def _find(
        self, metric: str, candidate: str, baseline: str, above: Sequence[Sequence[str]]
    ) -> Hypothesis | None:
        """Return the entry with the most weight whose gate is passed whenever the widths `above` are certified."""
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
        chain: AskedChain,
        known: Sequence[Sequence[Hypothesis | None]],
        roots: Mapping[int, float],
        share: float,
    ) -> list[list[Hypothesis]]:
        portion = share / max(1.0, math.fsum(roots.values()))
        found: list[list[Hypothesis]] = []
        for i, (names, there) in enumerate(zip(chain.widths, known, strict=True)):
            if i in roots:
                weight, opened_by = portion * roots[i], NO_GATE
            else:
                weight = math.fsum(each.weight for each in found[-1]) if i else 0.0
                opened_by = tuple(chain.widths[i - 1]) if i else NO_GATE
            size = max(there.count(None), self._size(chain, i), 1)
            new = (Hypothesis(metric, name, chain.baseline, opened_by, weight / size) for name in names)
            found.append([each or fresh for each, fresh in zip(there, new, strict=True)])
        return found

    def _size(self, chain: AskedChain, width: int) -> int:
        return self.sizes.get(chain.bits[width], 0) if chain.bits and not self.hypotheses else 0

    # ---- in sweep.yaml

    @property
    def as_yaml(self) -> dict[str, Any]:
        rows = [asdict(each) for each in self.hypotheses]
        hypotheses = [{**row, "opened_by": list(row["opened_by"])} for row in rows]
        return {"hypotheses": hypotheses} | ({"cells": dict(self.cells)} if self.cells else {})

    @classmethod
    def read(cls, block: object, family: object = None) -> "Ledger":
        """Read `ledger` of a sweep.yaml, or else `family` of an older one. Anyone may have written it: what cannot be
        read counts as absent."""
        block, family = (each if isinstance(each, Mapping) else {} for each in (block, family))
        rows, cells = block.get("hypotheses"), block.get("cells")
        found = [each for row in _list(rows) if (each := _hypothesis(row)) is not None]
        names = {str(a): str(b) for a, b in cells.items()} if isinstance(cells, Mapping) else {}
        chains, formats = family.get("chains"), family.get("formats")
        pairs = formats.items() if isinstance(formats, Mapping) else ()
        sizes = {bits: int(n) for bits, n in pairs if _is_number(bits) and _is_number(n)}
        return cls(tuple(found), names, int(chains) if _is_number(chains) else 0, sizes)


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
    chain: AskedChain, known: Sequence[Sequence[Hypothesis | None]], opened: set[str]
) -> dict[int, float]:
    """Return the widths whose new hypotheses begin a sequence, with their portions of the chain's share."""
    found = {}
    for i, there in enumerate(known):
        if None not in there:
            continue
        is_first_child = all(each is None for each in there) and not (
            i and not opened.isdisjoint(chain.widths[i - 1])
        )
        if i < chain.start:
            found[i] = 2.0 ** -(chain.start - i + 2)
        elif i == chain.start:
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
