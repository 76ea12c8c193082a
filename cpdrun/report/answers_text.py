"""Render the answers of a study: the first lines of a report, its costs and its notes.

A facet is a set of groups that differ only in format and gradient scaling. A ladder is the list of one facet's
candidates that share a gradient scaling.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from custom_fp.formats.synonyms import naming_notes

from cpdrun.record import SweepDir
from cpdrun.report.cost import COSTS
from cpdrun.report.failures_text import failures_text, identical_text, left_out_text
from cpdrun.report.render import count, join_last, render_lines
from cpdrun.report.result_text import gap_text, outlook_text, result_text, verdict_text
from cpdrun.report.study_text import (
    baseline_problem_text,
    ignored_texts,
    margin_text,
    question_notes,
    seeds_text,
    tuned_sentences,
)
from cpdrun.report.tables import Shown, show_bits
from cpdrun.stats.evidence import Verdict
from cpdrun.study import answers, facet_summary, methods, pareto
from cpdrun.study.axes import axis_text, axis_title, short_titles
from cpdrun.study.best_of import best_of
from cpdrun.study.collect import ignored
from cpdrun.study.completeness import completeness, mixed_code
from cpdrun.study.group import Facet, Group
from cpdrun.study.study import Study
from cpdrun.study.verdicts import MARKS

# At most this many unreadable runs get a line of their own.
_MOST_NAMED = 12


def headline(study: Study, next_command: str = "") -> tuple[list[str], Shown | None]:
    """Return the first lines of a report, and the table of facets.

    With more than `MOST_FACETS` ordinary facets (those without named cases), the lines summarize them and the table
    lists their answers. Otherwise, each facet has its own lines, and the table is None.
    """
    ordinary = [facet for facet in study.facets if not facet.has_cases]
    is_answered = any(not study.baseline_problem(facet) for facet in study.facets)
    has_no_margin = bool(study.margin.problem) and is_answered
    summarized = ordinary if len(ordinary) > answers.MOST_FACETS and not has_no_margin else []
    known = [facet for facet in summarized if not study.baseline_problem(facet)]
    shown = [facet for facet in study.facets if not has_no_margin and facet not in summarized]
    lines = render_lines(
        "headline.j2",
        **_functions(study),
        mixed=mixed_code(study),
        has_no_margin=has_no_margin,
        answers=[answers.facet_answer(study, facet) for facet in shown],
        summaries=facet_summary.summarize(study, known),
        axes=join_last([axis_title(key) for key in summarized[0].keys]) if summarized else "",
        n_summarized=len(summarized),
        n_unanswered=len(summarized) - len(known),
        first_problem=study.baseline_problem(summarized[0]) if summarized else None,
        margin_and_origin=margin_text(study.margin, study.metric),
        next_command=next_command,
    )
    lines += [*order_sentences(study), *tuned_sentences(study), *_best_of_sentences(study)]
    return lines, _matrix(study, summarized) if summarized else None


def _best_of_sentences(study: Study) -> list[str]:
    """Warn that the table of best means certifies nothing; [] without tuned axes."""
    found = best_of(study)
    if not found or study.margin.problem:
        return []
    tried = found[0].tried
    return render_lines("best_of.j2", tried=tried, titles=list(short_titles(tried).values()))


def cost_sentences(study: Study, asked: Sequence[str] = ()) -> list[str]:
    """Describe the Pareto fronts of the metric against each cost.

    Args:
        study: The study. Only its first `MOST_FACETS` facets are described.
        asked: The costs that the user named, as keys of `COSTS`. Each gets a sentence, even if it has no front or knee.
            By default, only fronts of more than two groups and fronts that no other sentence mentions are described.
    """
    lines = []
    for facet in study.facets[: answers.MOST_FACETS]:
        for cost in [COSTS[key] for key in asked] or COSTS.values():
            costs, reasons = pareto.find_costs(facet, cost.find)
            found = pareto.front_of(study, costs) if len(set(costs.values())) > 1 else None
            is_interesting = found is not None and (len(found.groups) > 2 or cost.has_no_other)
            if asked or is_interesting:
                at = f", {facet.label}" if facet.label else ""
                values = {"cost": cost, "found": found, "reasons": reasons, "at": at}
                lines += render_lines("costs.j2", **values, **_functions(study))
    return lines


def method_sentences(study: Study) -> list[str]:
    """Name the certified method with the fewest bits in each setting.

    The groups of a setting differ only in their method. Settings that compare only formats are skipped, because the
    answer already names the format.
    """
    found = methods.fewest_bits(study)[: answers.MOST_FACETS]
    return render_lines("methods.j2", found=found, bits=show_bits, **_functions(study))


def notes(study: Study, sweeps: Sequence[SweepDir]) -> list[str]:
    """Return the notes on what is compared, and on missing, failed and left-out runs."""
    found = completeness(study, sweeps)
    return [
        *question_notes(study),
        *naming_notes(study.runs.to_numpy().flat),
        *render_lines("completeness.j2", study=study, found=found, seeds=_seeds_text, most_named=_MOST_NAMED),
        *ignored_texts(ignored(study.runs)),
    ]


def counts(study: Study) -> list[str]:
    """Count the certified, refuted and open groups in a sentence; [] if none is compared."""
    return render_lines("counts.j2", study=study, counts=answers.count_kinds(study), ci=f"{study.ci:g}")


def order_sentences(study: Study) -> list[str]:
    """Name certified formats whose bit width is refuted in another summation order."""
    return render_lines("orders.j2", found=facet_summary.compare_orders(study), order=_order_text)


def _functions(study: Study) -> dict[str, Any]:
    """Return the variables and functions that the templates share."""

    def gap(group: Group) -> str:
        return gap_text(study.metric, study.judged[group].judgment)

    def result(group: Group) -> str:
        judged = study.judged[group]
        return result_text(study.metric, judged.judgment, judged.failures, study.ci)

    return {
        "study": study,
        "ci": f"{study.ci:g}",
        "label": partial(methods.label, study),
        "name": partial(pareto.name_of, study),
        "names": lambda groups: [pareto.name_of(study, group) for group in groups],
        "gap": gap,
        "result": result,
        "pairs": lambda group: count(study.judged[group].judgment.pairs, "pair"),
        "failures": lambda group: failures_text(study.failures(group)),
        "failures_by_format": lambda groups: [failures_text(study.failures(g), g.name) for g in groups],
        "failures_by_name": lambda groups: [
            f"{g.full_name}, {failures_text(study.failures(g))}" for g in groups
        ],
        "left_out_by_name": lambda groups: [
            f"{g.full_name}, {left_out_text(study.failures(g))}" for g in groups
        ],
        "verdict": lambda group: verdict_text(study.judged[group]),
        "identical_text": identical_text,
        "outlook": outlook_text,
        "outlook_of": lambda group: outlook_text(answers.group_outlook(study, group)),
        "baseline_problem": lambda problem: baseline_problem_text(study, problem),
    }


def _matrix(study: Study, facets: list[Facet]) -> Shown:
    """Return the table of answers, with one row per facet.

    The columns are the facet's keys, its longest chain of rounded additions, the baseline's mean and the answer for
    each gradient scaling. Rows with few workers and short chains come first.
    """
    keys = list(facets[0].keys)
    names = [name for name in facet_summary.scalings(study) if any(name in facet.ladders for facet in facets)]
    has_lengths, rows = any(map(facet_summary.longest_chain, facets)), []
    for facet in facet_summary.sort_facets(facets):
        problem, length = study.baseline_problem(facet), facet_summary.longest_chain(facet)
        lengths = [f"{length:.0f}" if length else "-"] if has_lengths else []
        mean = "-" if facet.baseline is None else study.metric.show(facet.baseline.mean)
        baseline = baseline_problem_text(study, problem) if problem else mean
        cells = ["-" if problem else _cell(study, facet, name) for name in names]
        rows.append([*(axis_text(facet.keys[key]) for key in keys), *lengths, baseline, *cells])
    labels = [*map(axis_title, keys), *(["chain"] if has_lengths else [])]
    return Shown([*labels, f"{study.baseline_name}, {study.metric.title}", *names], rows, len(labels))


def _cell(study: Study, facet: Facet, scaling: str) -> str:
    """Return a ladder's answer with its mark: "✓ e3m0 (4 bits)" or "✗ none".

    An open ladder (mark ?) shows the format most likely to be certified, or "open" if none is likely. The mark = means
    that the runs equal the baseline's.
    """
    if scaling not in facet.ladders:
        return "-"
    answer = study.answer(facet, scaling)
    none = "none" if answer.verdict is Verdict.REFUTED else "open"
    return f"{MARKS[answer.kind]} {answer.group.title if answer.group else none}"


def _order_text(facet: Facet) -> str:
    """Return a facet's summation order and longest chain: "tree (chain 6)"."""
    name = " ".join(
        axis_text(facet.keys[key]) for key in facet_summary.ORDER if facet.keys.get(key) is not None
    )
    length = facet_summary.longest_chain(facet)
    return f"{name} (chain {length:.0f})" if length else name


def _seeds_text(seeds: Sequence[Any]) -> str:
    if all(isinstance(seed, int) for seed in seeds):
        return seeds_text(seeds)
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
