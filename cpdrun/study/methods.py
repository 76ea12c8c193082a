"""Compare communication methods, and find the one that sends the fewest bits.

A setting is a combination of values that are independent of the method, such as the model, the number of workers, and
the data.
"""

from dataclasses import dataclass

from cpdrun.stats.evidence import Verdict
from cpdrun.study.axes import axis_text, short_titles
from cpdrun.study.collect import CASE, FORMAT
from cpdrun.study.group import GOSSIP, WITH_APS, WITHOUT_APS, Facet, Group
from cpdrun.study.grouping import make_facets
from cpdrun.study.study import Study

# The config sections that belong to the communication method.
_OF_METHODS = ("sync", "compressor", "scaling")
_NAMES = (CASE, FORMAT, "aps")


def by_setting(study: Study) -> list[Facet]:
    """Return one facet per setting, whose groups differ only in their communication method."""
    return make_facets(
        study.groups, [axis for axis in study.facet_axes if not is_of_method(axis)], study.bits_axis
    )


def is_of_method(axis: str) -> bool:
    """Return True if an axis belongs to the communication method. The format and the case do."""
    return axis in _NAMES or axis.split(".")[0] in _OF_METHODS


def has_baseline_per_case(study: Study) -> bool:
    """Return True if the cases vary something other than the format, so that each has its own baseline."""
    return CASE in study.facet_axes


def reference(facet: Facet) -> Group | None:
    """Return the baseline of a setting, or None if no baseline has a value.

    A plain sum without compression or APS is preferred.
    """
    found = [group for group in facet.all_groups if group.is_baseline and group.values]
    return min(found, key=lambda group: group.method.family != WITHOUT_APS, default=None)


def method_verdicts(study: Study, facet: Facet) -> dict[Group, Verdict]:
    """Return the verdict on each method of a setting. The reference counts as certified.

    If the study compares all methods with the reference, these are its own verdicts. But a compressor, for example, may
    have fp32 runs of its own as baseline. Then all methods are judged against the reference, and share the error
    probability.
    """
    against = reference(facet)
    if against is None or study.baseline_problem(facet) or not study.may_be_within(against):
        return {}
    others = [group for group in facet.groups if group is not against]
    if all(study.baselines.get(group) is against for group in others):
        judged = study.judged
    else:
        judged = study.judge([(against, [group]) for group in others])
    return {against: Verdict.CERTIFIED} | {g: judged[g].verdict for g in others if g in judged}


@dataclass(frozen=True)
class FewestBits:
    """The certified method of a setting that sends the fewest bits per parameter and step.

    Attributes:
        facet: The setting.
        baseline: The baseline of the setting.
        certified: The method. None if no method that sends less than the baseline is certified.
        open: The methods with an open verdict that send less than `certified`, fewest bits first.
    """

    facet: Facet
    baseline: Group
    certified: Group | None
    open: list[Group]


def fewest_bits(study: Study) -> list[FewestBits]:
    """Return the certified method with the fewest bits for each setting.

    Settings that compare only formats with and without APS are left out, because the study's answers cover them. If
    each case has its own baseline, methods have no baseline in common, and the list is empty.
    """
    if has_baseline_per_case(study):
        return []
    facets = [facet for facet in by_setting(study) if _has_methods(facet)]
    return [found for facet in facets if (found := _fewest_bits(study, facet)) is not None]


def _has_methods(facet: Facet) -> bool:
    """Return True if a facet compares more than formats with and without APS."""
    families = {group.method.family for group in facet.groups if not group.is_baseline}
    return facet.has_cases or not families <= {WITH_APS, WITHOUT_APS}


def _fewest_bits(study: Study, facet: Facet) -> FewestBits | None:
    against, verdicts = reference(facet), method_verdicts(study, facet)
    if against is None or not against.bits_a_parameter > 0:
        return None
    less = [group for group in verdicts if 0 < group.bits_a_parameter < against.bits_a_parameter]
    less.sort(key=lambda group: group.bits_a_parameter)
    certified = next((group for group in less if verdicts[group] is Verdict.CERTIFIED), None)
    rank = len(less) if certified is None else less.index(certified)
    open_ = [group for group in less[:rank] if verdicts[group] is Verdict.OPEN and study.may_be_within(group)]
    return FewestBits(facet, against, certified, open_)


def label(study: Study, group: Group) -> str:
    """Return the name of a group's method, with its settings that vary in the study.

    Example: `e4m3, APS`, `fp32, top-k, keep 0.01`, or the name of a case.
    """
    if group.case is not None:
        return group.strategy
    family = group.method.family
    axes = [axis for axis in study.axes if is_of_method(axis) and axis not in _NAMES]
    values = {axis: axis_text(group.keys[axis]) for axis in axes}
    titles = short_titles(axes)
    parts = [group.name, *(["APS"] if group.aps else [])]
    parts += [] if family in (WITH_APS, WITHOUT_APS) else [family]
    for axis, text in values.items():
        if not axis.endswith("_target_"):
            parts += [f"{titles[axis]} {text}"] if text != "-" else []
        elif family == GOSSIP:  # The family has several rules, so the name of the rule is needed.
            parts.append(text)
    return ", ".join(parts)
