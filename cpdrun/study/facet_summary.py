"""The answers of many facets in short: verdicts by way of scaling, and orders of summation that need more bits."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.stats.evidence import Verdict
from cpdrun.study import formats
from cpdrun.study.answers import VERDICTS
from cpdrun.study.collect import identity
from cpdrun.study.group import WITH_APS, WITHOUT_APS, Facet, Group
from cpdrun.study.study import Study

# The keys of the order of summation, which says which gradients are added to which, and when.
ORDER = ("sync.order", "sync.group_size")


@dataclass(frozen=True)
class VerdictCount:
    """In how many facets a way of scaling has a verdict.

    Attributes:
        verdict: The verdict.
        count: The number of facets.
        ends: The group with the fewest and the group with the most bits among the answers, or one group, or none.
    """

    verdict: Verdict
    count: int
    ends: list[Group]


@dataclass(frozen=True)
class ScalingSummary:
    """The answers of one way of scaling in many facets.

    Attributes:
        scaling: The way of scaling.
        facets: The number of facets that have an answer.
        counts: The verdicts that occur, certified first.
    """

    scaling: str
    facets: int
    counts: list[VerdictCount]


def summarize(study: Study, facets: Sequence[Facet]) -> list[ScalingSummary]:
    """Return the summary of each way of scaling. Ways with a certified answer come first.

    Args:
        study: The study.
        facets: The facets whose baseline is fit to compare with.
    """
    found = []
    for name in scalings(study):
        answers = [study.answer(facet, name) for facet in facets if name in facet.ladders]
        if not answers:
            continue
        counts = []
        for verdict in VERDICTS:
            chosen = [answer for answer in answers if answer.verdict is verdict]
            shown = sorted(
                (a.group for a in chosen if a.group), key=lambda group: formats.order(group.format)
            )
            ends = {group.title: group for group in shown[:1] + shown[-1:]}
            if chosen:
                counts.append(VerdictCount(verdict, len(chosen), list(ends.values())))
        found.append(ScalingSummary(name, len(answers), counts))
    return sorted(found, key=lambda summary: VERDICTS.index(summary.counts[0].verdict))


def scalings(study: Study) -> list[str]:
    """Return the ways of scaling of a study. Scaling rules come first, and the runs without scaling last."""
    names = {group.strategy for group in study.groups if not group.is_baseline}
    usual = (WITH_APS, WITHOUT_APS)
    return [*sorted(names - {*usual}), *(name for name in usual if name in names)]


def sort_facets(facets: Collection[Facet]) -> list[Facet]:
    """Return facets sorted by the number of workers and by the longest chain of rounded additions."""
    return sorted(facets, key=lambda each: (_sortable(each.keys.get("world_size")), longest_chain(each)))


def longest_chain(facet: Facet) -> float:
    """Return the number of rounded additions in the longest chain of any group of the facet; 0 if no record has it."""
    return max((group.longest_chain for group in facet.groups if group.longest_chain > 0), default=0)


def _sortable(value: object) -> tuple[Any, ...]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


# ---- orders of summation


@dataclass(frozen=True)
class OrderComparison:
    """A format that is certified in one order of summation and refuted in another order.

    Attributes:
        label: The values that the facets share and the way of scaling.
        certified: The certified group with the fewest bits.
        order: The facet in which it is certified.
        refuted: The facets in which so few bits are refuted.
        refuted_bits: The bit width up to which each of these facets is refuted.
    """

    label: str
    certified: Group
    order: Facet
    refuted: list[Facet]
    refuted_bits: list[float]


def compare_orders(study: Study) -> list[OrderComparison]:
    """Return each bit width that is certified in one order of summation and refuted in another order."""
    found = []
    for facets in _by_order(study):
        for name in scalings(study):
            answers = [(facet, study.answer(facet, name)) for facet in facets]
            certified = [(facet, each.certified) for facet, each in answers if each.certified is not None]
            if not certified:
                continue
            facet, group = min(certified, key=lambda pair: formats.order(pair[1].format))
            bits = formats.bits(group.format) or math.inf
            worse = [(other, each.refuted_bits) for other, each in answers if each.refuted_bits >= bits]
            if worse:
                rest = {key: value for key, value in facet.keys.items() if key not in ORDER}
                label = " ".join([Facet(rest, []).label, name]).strip()
                orders, widths = zip(*worse, strict=True)
                found.append(OrderComparison(label, group, facet, list(orders), list(widths)))
    return found


def _by_order(study: Study) -> list[list[Facet]]:
    """Return groups of facets that differ only in their order of summation."""
    found: dict[tuple[str, ...], list[Facet]] = {}
    for facet in study.facets:
        if ORDER[0] in facet.keys and not facet.has_cases and not study.baseline_problem(facet):
            rest = tuple(f"{key}={identity(value)}" for key, value in facet.keys.items() if key not in ORDER)
            found.setdefault(rest, []).append(facet)
    return [facets for facets in found.values() if len(facets) > 1]
