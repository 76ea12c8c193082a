"""Summarize the answers of many facets, and compare orders of summation.

An order of summation defines which gradients are added to which, and when.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cpdrun.study import formats
from cpdrun.study.collect import identity
from cpdrun.study.group import WITH_APS, WITHOUT_APS, Facet, Group
from cpdrun.study.grouping import sortable
from cpdrun.study.study import Study
from cpdrun.study.verdicts import Kind

# The config keys of the order of summation, which defines which gradients are added to which, and when.
ORDER = ("sync.order", "sync.group_size")


@dataclass(frozen=True)
class KindCount:
    """The number of facets whose ladders have a given kind of answer.

    Attributes:
        kind: The kind of the answer.
        count: The number of facets.
        ends: The shown groups with the fewest and the most bits. One group if both have the same title. May be empty.
    """

    kind: Kind
    count: int
    ends: list[Group]


@dataclass(frozen=True)
class ScalingSummary:
    """The answers for one gradient scaling in many facets.

    Attributes:
        scaling: How gradients are scaled.
        facets: The number of facets with an answer.
        counts: The kinds that occur, in the order of `Kind`.
    """

    scaling: str
    facets: int
    counts: list[KindCount]


def summarize(study: Study, facets: Sequence[Facet]) -> list[ScalingSummary]:
    """Return a summary of each gradient scaling, with certified scalings first.

    Args:
        study: The study.
        facets: The facets to summarize. Their baselines must be usable.
    """
    found = []
    for name in scalings(study):
        answers = [study.answer(facet, name) for facet in facets if name in facet.ladders]
        if not answers:
            continue
        counts = []
        for kind in Kind:
            chosen = [answer for answer in answers if answer.kind is kind]
            shown = sorted(
                (a.group for a in chosen if a.group), key=lambda group: formats.order(group.format)
            )
            ends = {group.title: group for group in shown[:1] + shown[-1:]}
            if chosen:
                counts.append(KindCount(kind, len(chosen), list(ends.values())))
        found.append(ScalingSummary(name, len(answers), counts))
    return sorted(found, key=lambda summary: list(Kind).index(summary.counts[0].kind))


def scalings(study: Study) -> list[str]:
    """Return the study's gradient scalings: scaling rules, then `with APS`, then `without APS`."""
    names = {group.strategy for group in study.groups if not group.is_baseline}
    usual = (WITH_APS, WITHOUT_APS)
    return [*sorted(names - {*usual}), *(name for name in usual if name in names)]


def sends_alike(study: Study) -> bool:
    """Return True if all groups of a facet send the same number of bytes, for each facet.

    This happens if only formats of tensors other than gradients vary.
    """
    return not study.bits_axis.is_of_gradients and all(
        len({group.wire_bytes for group in facet.groups if group.wire_bytes > 0}) < 2
        for facet in study.facets
    )


def sort_facets(facets: Collection[Facet]) -> list[Facet]:
    """Return facets sorted by the number of workers and the longest series of additions."""
    return sorted(facets, key=lambda each: (sortable(each.keys.get("world_size")), longest_chain(each)))


def longest_chain(facet: Facet) -> float:
    """Return the number of rounded additions in the facet's longest series, or 0 if unknown."""
    return max((group.longest_chain for group in facet.groups if group.longest_chain > 0), default=0)


# ---- orders of summation


@dataclass(frozen=True)
class OrderComparison:
    """A bit width that is certified in one order of summation and refuted in others.

    Attributes:
        label: The values that the facets share, with the gradient scaling.
        certified: The certified group with the fewest bits.
        order: The facet of `certified`.
        refuted: The facets where as many bits are refuted, each with the bits of its widest refuted width.
    """

    label: str
    certified: Group
    order: Facet
    refuted: list[tuple[Facet, float]]


def compare_orders(study: Study) -> list[OrderComparison]:
    """Return the bit widths that are certified in one order of summation and refuted in another."""
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
                found.append(OrderComparison(label, group, facet, worse))
    return found


def _by_order(study: Study) -> list[list[Facet]]:
    """Return lists of at least two facets that differ only in their order of summation."""
    found: dict[tuple[str, ...], list[Facet]] = {}
    for facet in study.facets:
        if ORDER[0] in facet.keys and not facet.has_cases and not study.baseline_problem(facet):
            rest = tuple(f"{key}={identity(value)}" for key, value in facet.keys.items() if key not in ORDER)
            found.setdefault(rest, []).append(facet)
    return [facets for facets in found.values() if len(facets) > 1]
