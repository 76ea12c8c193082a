"""Methods side by side: the groups of a study that differ in how workers exchange, one against another; and which sends
least for the same result."""

from cpdrun.report.tables import show_bits
from cpdrun.report.verdict import is_within, tolerance
from cpdrun.stats.evidence import Verdict
from cpdrun.study.axes.method import GOSSIP, WITH_APS, WITHOUT_APS
from cpdrun.study.axes.titles import axis_text, short_titles
from cpdrun.study.collect import CASE, FORMAT
from cpdrun.study.groups.compare import Difference, difference
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.groups.grouping import make_facets
from cpdrun.study.study import Study

MOST_SENTENCES = 3  # settings; the tables and pictures have all
_OF_METHODS = ("sync", "compressor", "scaling")  # sections of a config
_NAMES = (CASE, FORMAT, "aps")


def by_setting(study: Study) -> list[Facet]:
    """The study's groups, those together that differ in their method alone: model, workers, data ... are the same."""
    return make_facets(
        study.groups, [axis for axis in study.facet_axes if not is_of_method(axis)], study.bits_axis
    )


def is_of_method(axis: str) -> bool:
    return axis in _NAMES or axis.split(".")[0] in _OF_METHODS


def reference(facet: Facet) -> Group | None:
    """What the methods of such a facet are compared with: the baseline that is a plain sum, where there are several."""
    found = [group for group in facet.all_groups if group.is_baseline and group.values]
    return min(found, key=lambda group: group.method.family != WITHOUT_APS, default=None)


def gap(study: Study, facet: Facet, group: Group) -> Difference | None:
    """How much better than the reference; None for the reference itself, and without values to compare."""
    against = reference(facet)
    if against is None or against is group or not group.values or study.baseline_problem(facet):
        return None
    return difference(
        group.by_seed,
        against.by_seed,
        ci=study.ci,
        higher_is_better=study.metric.higher_is_better,
        samples=study.samples(group, against),
    )


def does_as_well(study: Study, facet: Facet, group: Group) -> bool:
    """Whether its mean is within the tolerance of the reference's, and all its runs trained; so is the reference."""
    if group is reference(facet):
        return study.may_be_within(group)
    found = gap(study, facet, group)
    return found is not None and is_within(study, group, found)


def fewest(study: Study) -> list[str]:
    """Of each setting, a sentence: the fewest bits a parameter a step that do as well as the reference, and the fewest
    that are certified to. Of named cases, and of methods of several families; formats alone have `answers`."""
    facets = [facet for facet in by_setting(study) if _is_of_methods(facet)]
    return [line for facet in facets[:MOST_SENTENCES] if (line := _fewest(study, facet))]


def _is_of_methods(facet: Facet) -> bool:
    families = {group.method.family for group in facet.groups if not group.is_baseline}
    return facet.has_cases or not families <= {WITH_APS, WITHOUT_APS}


def _fewest(study: Study, facet: Facet) -> str | None:
    against = reference(facet)
    if against is None or not against.bits_a_parameter > 0:
        return None
    less = [group for group in facet.groups if 0 < group.bits_a_parameter < against.bits_a_parameter]
    able = [group for group in less if does_as_well(study, facet, group)]
    where = f"{facet.label}: " if facet.label else ""
    within = f"within {tolerance(study)} of {study.baseline_name}, which sends {show_bits(against.bits_a_parameter)}"
    if not able:
        return f"{where}No method that sends less is {within} bits a parameter a step."
    able.sort(key=lambda group: group.bits_a_parameter)
    sure = [group for group in able if _is_certified(study, group)]
    parts = [f"{where}Fewest bits a parameter a step {within}: {_sends(study, able[0])}"]
    if able[:1] == sure[:1]:
        parts.append(", certified")
    else:
        parts.append(f"; certified: {_sends(study, sure[0]) if sure else 'none yet'}")
    return f"{''.join(parts)}."


def _is_certified(study: Study, group: Group) -> bool:
    return group in study.judged and study.judged[group].verdict is Verdict.CERTIFIED


def _sends(study: Study, group: Group) -> str:
    return f"{label(study, group)} ({show_bits(group.bits_a_parameter)})"


def label(study: Study, group: Group) -> str:
    """The name of a case; else `e4m3, APS`, `fp32, top-k, keep 0.01`: the format, the family, and what else of its
    method varies."""
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
        elif family == GOSSIP:  # of several rules
            parts.append(text)
    return ", ".join(parts)
