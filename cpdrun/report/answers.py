"""What a report says first: a sentence for a few combinations of axes, one matrix for many, and whether another order
of summation would save bits."""

import math
from collections.abc import Iterator

from cpdrun.report import best_of
from cpdrun.report.completeness import mixture
from cpdrun.report.look.style import strategy_looks
from cpdrun.report.tables import Shown
from cpdrun.report.verdict import is_open, named, sentence, smallest_within, some, tolerance
from cpdrun.study.axes import formats
from cpdrun.study.axes.titles import axis_text, axis_title
from cpdrun.study.collect import identity
from cpdrun.study.groups.group import Facet
from cpdrun.study.study import Study

MOST_SENTENCES = 3  # facets; more of them become rows of a matrix
ORDER = ("sync.order", "sync.group_size")  # which gradients are added to which, when
_OPEN = " ?"


def answer(study: Study) -> tuple[list[str], Shown | None]:
    """The sentences, and the matrix where there is one. That the runs are a mixture is said first of all,
    and that a metric's direction is a guess."""
    sentences, matrix = _answer(study)
    if study.judged and not math.isnan(study.tolerance):
        sentences.append(f"Margin: {study.margin.describe(study.metric)}.")
    sentences += [*study.tuned.said(study.groups), *best_of.sentences(study)]
    if not study.metric.is_known:
        sentences[0] = f"If a higher {study.metric.name} is better, which no record says: {sentences[0]}"
    if mixed := mixture(study):
        sentences[0] = f"{mixed}: {sentences[0]}"
    return sentences, matrix


def _answer(study: Study) -> tuple[list[str], Shown | None]:
    matrix = [facet for facet in study.facets if not facet.has_cases]
    if len(matrix) <= MOST_SENTENCES:
        return [*_sentences(study, study.facets), *reorder(study)], None
    cases = [facet for facet in study.facets if facet.has_cases]
    return [_summary(study, matrix), *reorder(study), *_sentences(study, cases)], _matrix(study, matrix)


def reorder(study: Study) -> list[str]:
    """Where the same workers need more than a bit less in another order of summation: which, and how much."""
    return [
        line
        for facets in _by_order(study)
        for name in strategy_looks(study)
        if (line := _reorder(study, facets, name))
    ]


def needed_bits(study: Study, facet: Facet, strategy: str) -> float:
    """The fewest that are enough; infinite where no format tried was, NaN where there is nothing to compare."""
    if strategy not in facet.strategies or study.baseline_problem(facet):
        return math.nan
    found = smallest_within(study, facet, strategy)
    return math.inf if found is None else formats.bits(found[0].format) or math.nan


def most_tried(facet: Facet, strategy: str) -> float:
    """Bits of the largest reduced format of the facet."""
    sizes = [formats.bits(group.format) for group in facet.strategies.get(strategy, [])]
    return max((size for size in sizes if size is not None), default=math.nan)


def _sentences(study: Study, facets: list[Facet]) -> list[str]:
    return [
        f"{facet.label}: {sentence(study, facet)}" if facet.label else sentence(study, facet)
        for facet in facets
    ]


def _by_order(study: Study) -> Iterator[list[Facet]]:
    """Facets that differ in their order of summation alone."""
    found: dict[tuple[str, ...], list[Facet]] = {}
    for facet in study.facets:
        if ORDER[0] in facet.keys and not facet.has_cases:
            rest = tuple(f"{key}={identity(value)}" for key, value in facet.keys.items() if key not in ORDER)
            found.setdefault(rest, []).append(facet)
    yield from (facets for facets in found.values() if len(facets) > 1)


def _reorder(study: Study, facets: list[Facet], strategy: str) -> str | None:
    needed = {facet.label: needed_bits(study, facet, strategy) for facet in facets}
    able = [facet for facet in facets if math.isfinite(needed[facet.label])]
    if not able:
        return None
    best = min(able, key=lambda facet: needed[facet.label])
    least, worse = needed[best.label], []
    for facet in facets:
        bits = needed[facet.label]
        if math.isinf(bits) and most_tried(facet, strategy) > least:
            worse.append(f"{_order(facet)} more than any tried ({most_tried(facet, strategy):g})")
        elif math.isfinite(bits) and bits > least + 1:
            worse.append(f"{_order(facet)} {bits:g}")
    if not worse:
        return None
    rest = {key: value for key, value in best.keys.items() if key not in ORDER}
    where = " ".join([Facet(rest, []).label, strategy]).strip()
    found = smallest_within(study, best, strategy)
    return f"Reorder: {where}, {_order(best)} needs {named(found[0])}, {some(worse)}."


def _order(facet: Facet) -> str:
    """`tree (chain 6)`."""
    name = " ".join(axis_text(facet.keys[key]) for key in ORDER if facet.keys.get(key) is not None)
    return f"{name} (chain {chain(facet):.0f})" if chain(facet) else name


def chain(facet: Facet) -> float:
    """The longest chain of rounded additions of the facet's runs; 0 where no record has it."""
    return max((group.longest_chain for group in facet.groups if group.longest_chain > 0), default=0)


def _summary(study: Study, facets: list[Facet]) -> str:
    """From the fewest bits to the most, by how gradients are scaled."""
    clauses, open_, cells = [], 0, 0
    for name in strategy_looks(study):
        known = [facet for facet in facets if not math.isnan(needed_bits(study, facet, name))]
        if not known:
            continue
        cells += len(known)
        open_ += sum(is_open(study, facet, name) for facet in known)
        found = [smallest_within(study, facet, name) for facet in known]
        enough = sorted((pair[0] for pair in found if pair), key=lambda group: formats.order(group.format))
        ends = list(dict.fromkeys(named(group) for group in enough[:1] + enough[-1:]))
        text = " to ".join(ends) if ends else "none of those tried"
        if ends and len(enough) < len(known):
            text += f", and none in {len(known) - len(enough)} of {len(known)}"
        what = (
            f"the smallest format within {tolerance(study)} of {study.baseline_name} is "
            if not clauses
            else ""
        )
        clauses.append(f"{name if clauses else name[0].upper() + name[1:]} {what}{text}")
    if study.margin.problem:
        return f"No answer: {study.margin.problem}."
    if not clauses:
        return f"No answer for any of {len(facets)} combinations: {study.baseline_problem(facets[0])} in the first."
    lines = [f"{'; '.join(clauses)}, over {len(facets)} combinations of {_axes(facets)}."]
    if without := sum(study.baseline_problem(facet) is not None for facet in facets):
        lines.append(f"No answer in {without} of them.")
    if open_:
        lines.append(f"{open_} of {cells} answers are not settled (marked{_OPEN}).")
    return " ".join(lines)


def _axes(facets: list[Facet]) -> str:
    names = [axis_title(key) for key in facets[0].keys]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _matrix(study: Study, facets: list[Facet]) -> Shown:
    """A row a facet, few workers and short chains first: fp32, then the smallest format by how gradients are scaled."""
    keys, names = (
        list(facets[0].keys),
        [name for name in strategy_looks(study) if any(name in f.strategies for f in facets)],
    )
    chains, rows = any(map(chain, facets)), []
    for facet in sorted(facets, key=lambda facet: (_sortable(facet.keys.get("world_size")), chain(facet))):
        problem = study.baseline_problem(facet)
        lengths = [f"{chain(facet):.0f}" if chain(facet) else "-"] if chains else []
        fp32 = problem or study.metric.show_interval(study.interval(facet.baseline))
        cells = [_cell(study, facet, name) if problem is None else "-" for name in names]
        rows.append([*(axis_text(facet.keys[key]) for key in keys), *lengths, fp32, *cells])
    labels = [*map(axis_title, keys), *(["chain"] if chains else [])]
    return Shown([*labels, f"{study.baseline_name}, {study.metric.title}", *names], rows, len(labels))


def _sortable(value: object) -> tuple:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _cell(study: Study, facet: Facet, strategy: str) -> str:
    if strategy not in facet.strategies:
        return "-"
    found = smallest_within(study, facet, strategy)
    return (named(found[0]) if found else "none") + (_OPEN if is_open(study, facet, strategy) else "")
