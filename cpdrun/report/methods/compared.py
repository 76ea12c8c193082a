"""Methods side by side: the groups of a study that differ in how workers exchange, one against another."""

from cpdrun.report.read.collect import CASE, FORMAT
from cpdrun.report.read.compare import Difference, difference
from cpdrun.report.read.group import Facet, Group
from cpdrun.report.read.grouping import make_facets
from cpdrun.report.read.method import WITHOUT_APS
from cpdrun.report.read.study import Study
from cpdrun.report.read.words import axis_text, short_titles
from cpdrun.report.verdict import is_within

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


def label(study: Study, group: Group) -> str:
    """`top-k 1 %`, the name of a case; else `e4m3, APS`, and what else of its method varies."""
    if group.case is not None:
        return group.strategy
    axes = [axis for axis in study.axes if is_of_method(axis) and axis not in _NAMES]
    values = {axis: axis_text(group.keys[axis]) for axis in axes}
    titles = short_titles(axes)
    rest = [
        text if axis.endswith("_target_") else f"{titles[axis]} {text}"
        for axis, text in values.items()
        if text != "-"
    ]
    return ", ".join([group.name, *(["APS"] if group.aps else []), *rest])
