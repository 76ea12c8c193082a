"""Read run directories into a `Study`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from cpdrun.config.margin import Typed, parse_margin
from cpdrun.costmodel import Network
from cpdrun.record import SweepDir
from cpdrun.record.measure import MEASURES, known_judge
from cpdrun.stats.evidence import ordered_seeds
from cpdrun.study import ReportError, ReportUsageError
from cpdrun.study.axes import SWEEP, bits_axis
from cpdrun.study.choices import with_choices
from cpdrun.study.collect import (
    CORE_AXES,
    FORMAT,
    SEED,
    collect,
    count_states,
    finished,
    mask_followers,
    other_axes,
    sweep_names,
    why_none,
)
from cpdrun.study.group import Group
from cpdrun.study.grouping import facet_axes, failed_runs, make_groups
from cpdrun.study.margin import Course, choose_margin, course_of
from cpdrun.study.metric import Metric
from cpdrun.study.search_record import CONFIDENCE, Asked, Tuned, asked, baseline_of, read_tuned
from cpdrun.study.study import Study


def read_study(
    sweeps: list[SweepDir],
    *,
    metric: str | None = None,
    ci: float | None = None,
    tolerance: Typed | None = None,
    networks: dict[str, Network] | None = None,
    baseline: Mapping[str, Any] | None = None,
) -> Study:
    """Read all runs of the given sweeps into a study.

    An argument that is None gets the value that the search used which made the runs. If no search made them, it gets
    its default.

    Args:
        sweeps: The sweeps.
        metric: The name of the metric, optionally followed by `:min`, `:max`, or `:share`. By default, the metric by
            which the data set is judged.
        ci: The confidence in percent, 95 by default.
        tolerance: The margin. The default depends on the metric.
        networks: The networks for which the report predicts a speed-up, keyed by name.
        baseline: The baseline's values, keyed by config key. The default is fp32.

    Raises:
        ReportError: No run has finished, or nothing is left to compare.
        ReportUsageError: The metric, its direction, the baseline, or the margin is invalid for these runs.
    """
    try:
        tolerance = None if tolerance is None else parse_margin(tolerance)
    except ValueError as error:
        raise ReportUsageError(f"tol={tolerance}: the margin {error}") from None
    names = list(sweep_names(sweeps))
    where = ", ".join(names) or "results"
    runs, question = _runs(sweeps, where), asked(sweeps)
    done = finished(runs)
    about, usual = _metric(metric, question, done, where)
    column = f"metric:{about.name}"
    tuned = read_tuned(runs, sweeps, Metric.of(usual, done))
    shown = mask_followers(_compared(tuned, where))
    shown = shown.assign(**{key: shown.get(key) for key in (*CORE_AXES, SEED, column)})
    axes = ([SWEEP] if len(names) > 1 else []) + other_axes(shown)
    along = question.axis if baseline is None else None
    if along is not None and along not in (FORMAT, *axes) and along in shown.columns:
        axes.append(along)  # So far, only runs of the baseline have ended.
    bits = bits_axis(shown, axes, baseline_of(shown, baseline, question), along)
    groups = tuned.with_values(make_groups(shown, axes, column, bits))
    # The search's margin is in the unit of the search's metric, so it is used only for this metric.
    asked_margin = question.tolerance if about.name == usual else None
    study = Study(
        sweeps=names,
        runs=tuned.runs,
        metric=about,
        ci=(question.confidence or CONFIDENCE) if ci is None else ci,
        axes=axes,
        bits_axis=bits,
        groups=groups,
        facet_axes=facet_axes(groups, axes, bits),
        networks=networks or {},
        is_default_metric=about.name == usual,
        asked=replace(
            question,
            tolerance=asked_margin if tolerance is None else None,
            confidence=question.confidence if ci is None else None,
        ),
        tuned=tuned,
    )
    if tolerance is None:
        return _with_margin(study, asked_margin, f"as the {question.by} asked")
    return _with_margin(study, tolerance, "typed")


def _metric(typed: str | None, question: Asked, done: pd.DataFrame, where: str) -> tuple[Metric, str]:
    """Return the compared metric, and the name of the default metric.

    Raises:
        ReportUsageError: No finished run has the metric, or a script's metric has no known direction.
    """
    columns = [column for column in done.columns if column.startswith("metric:")]
    known = sorted(column.removeprefix("metric:") for column in columns if done[column].notna().any())
    usual = question.metric if question.metric in known else _usual_metric(done, known)
    asked_for = usual if typed is None else typed
    name, colon, way = asked_for.rpartition(":")
    if not colon or way not in MEASURES or asked_for in known:
        name, way = asked_for, ""
    if name not in known and known:
        raise ReportUsageError(
            f"no finished run in {where} has a metric {name!r}; there are: {', '.join(known)}"
        )
    about = Metric(name, MEASURES[way]) if way else Metric.of(name, done)
    if not about.is_known and "script.path" in done.columns:
        raise ReportUsageError(
            f"the runs do not say which values of {name!r} are better; type --metric {name}:min if smaller ones are, "
            f"or --metric {name}:max"
        )
    return about, usual


def _with_margin(study: Study, asked_margin: Typed | None, asked_by: str) -> Study:
    """Set the margin of the study, and enough decimals to show it. Return the new study."""
    metric, name = study.metric, study.baseline_name
    baselines = [
        facet.baseline
        for facet in study.facets
        if facet.baseline is not None and facet.ladders and not study.baseline_problem(facet)
    ]
    courses = [_course(study, group) for group in dict.fromkeys(baselines)]
    margin = choose_margin(asked_margin, asked_by, metric, courses, name)
    means = [group.mean for facet in study.facets for group in facet.all_groups]
    return replace(study, margin=margin, metric=metric.with_digits(margin.shown, means))


def _course(study: Study, baseline: Group) -> Course:
    """Return the metric before and after training, from the baseline's run with the lowest seed.

    Only one run is used, so that further seeds do not change the margin.
    """
    seed_of = dict(zip(study.runs["run:path"], study.runs[SEED], strict=True))
    runs = {seed_of.get(str(run.path)): run for run in baseline.runs}
    seeds = ordered_seeds(runs.keys() & baseline.by_seed.keys())
    run = runs[seeds[0]] if seeds else baseline.runs[0]  # The else branch is for runs without seeds.
    final = baseline.by_seed[seeds[0]] if seeds else baseline.mean
    return course_of(run, study.metric, final, baseline.num_classes)


def _runs(sweeps: list[SweepDir], where: str) -> pd.DataFrame:
    """Return the table of all runs.

    Raises:
        ReportError: No run has finished.
    """
    runs = with_choices(collect(sweeps))
    if runs.empty:
        raise ReportError(f"no runs in {where}: start some with `cpdrun sweep`")
    if finished(runs).empty:
        raise ReportError(f"no finished run in {where} ({count_states(runs)}): {why_none(runs)}")
    return runs


def _compared(tuned: Tuned, where: str) -> pd.DataFrame:
    """Return the runs to compare: finished or failed, without those that chose tuned values.

    Raises:
        ReportError: There are no such runs.
    """
    runs, done = tuned.runs, finished(tuned.runs)
    shown = tuned.compared(pd.concat([done, failed_runs(runs)]) if len(done) < len(runs) else done)
    if shown.empty:
        what = f": the search is choosing {', '.join(tuned.keys)}" if tuned.keys else ""
        raise ReportError(f"nothing to compare in {where} yet{what}")
    return shown


def _usual_metric(done: pd.DataFrame, known: list[str]) -> str:
    judged_by = done["run:judged_by"]
    most = judged_by[judged_by.isin(known)].value_counts()
    if len(most):
        return most.index[0]
    return known_judge(known) or (known[0] if known else "test_accuracy")
