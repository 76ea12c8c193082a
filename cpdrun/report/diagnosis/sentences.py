"""Render the diagnosis of one run in sentences, the main reason first."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from cpdrun.config.script import is_script
from cpdrun.record import Ending, State
from cpdrun.report.diagnosis import counterfactual_text, sums_text
from cpdrun.report.result_text import gap_text
from cpdrun.report.study_text import baseline_problem_text
from cpdrun.study import formats
from cpdrun.study.gradient_sums import Cause, longest_chain, workers_per_scale
from cpdrun.study.records import rows_of
from cpdrun.study.run_comparison import RunVerdict
from cpdrun.whatif.changes import GRADIENT
from cpdrun.whatif.diagnosis import MEASURED, OBSERVED, REPRESENTED, Diagnosis, Fix
from cpdrun.whatif.effects import is_observed

ROUNDED_KEYS = (
    "weights",
    "activations",
    "errors",
    "accumulator",
    "optimizer_state",
    "update",
)  # of precision
_TO_FINITE = (
    "saturate",
    "propagate",
)  # values of sync.overflow that replace an overflow by the largest value


def sentences(diagnosis: Diagnosis) -> list[str]:
    """Return how the run compares and why; where; when; what would fix it; and what was not observed."""
    run, verdict = diagnosis.run, diagnosis.comparison.verdict
    because, result = _because(diagnosis), _result(diagnosis)
    if because and (verdict is RunVerdict.WITHIN or _is_chance(diagnosis)):
        lines = [f"{run.name} {result}.", f"What it loses: {because}."]
    else:
        lines = [f"{run.name} {result}{': ' + because if because else ''}."]
    counterfactual = diagnosis.counterfactual
    observed = () if counterfactual is None else counterfactual_text.roles(counterfactual)
    lines += [f"{line}." for line in (*_where(diagnosis), *observed, *_ended(diagnosis)) if line]
    for i, fix in enumerate(diagnosis.fixes):
        title = "What would fix it" if verdict is RunVerdict.WORSE else "What loses less"
        lines.append(f"{title if i == 0 else 'Also'}: {fix_text(diagnosis, fix)}.")
    return [*lines, *(f"Not observed: {one}." for one in not_observed(diagnosis))]


def fix_text(diagnosis: Diagnosis, fix: Fix) -> str:
    """Return a fix with its figure before and after, and how that is known."""
    if fix.basis == MEASURED and fix.neighbor is not None and diagnosis.study is not None:
        return sums_text.measured(diagnosis.study, fix.neighbor, diagnosis.reason)
    if fix.basis == OBSERVED and diagnosis.counterfactual is not None:
        return counterfactual_text.observed_fix(diagnosis.counterfactual, fix)
    if fix.figure == REPRESENTED:
        text = (
            f"the format would represent {fix.after:.1f} of the {fix.span:.1f} powers of two that a layer's gradients "
            f"span, instead of {fix.before:.1f}"
        )
    else:
        text = f"{fix.after:g} rounded additions in series instead of {fix.before:g}"
    description = "" if fix.change is None else f" ({fix.change.description})"
    return f"{' '.join(fix.words)}{description}: {text} (estimated from the recorded exponents)"


def not_observed(diagnosis: Diagnosis) -> list[str]:
    """Return what no run has observed, with the command that observes it."""
    counterfactual, reason = diagnosis.counterfactual, diagnosis.reason
    if is_script(diagnosis.config) and counterfactual is None:
        if is_observed(diagnosis.run):
            return []
        return [
            "the tensors of a script, of which cpdrun records only the logged metrics; a sweep with observe=16 "
            "observes them"
        ]
    found = []
    if reason.cause is Cause.UNSEEN:
        found.append("its layers, because no epoch of its record has statistics of them")
    if counterfactual is not None:
        return [*found, *counterfactual.uncovered]
    if diagnosis.problem:
        return [*found, f"the effects of changes on observed tensors: {diagnosis.problem}"]
    if rounded := _rounded_within(diagnosis.config):
        command = _observe_command(diagnosis)
        found.append(
            f"the effect of rounding {' and '.join(rounded)} within a worker; `{command}` observes it"
        )
    elif not diagnosis.is_baseline and reason.statistics.layers:
        found.append(
            "the values of gradients before they are summed (the figures above are the last statistics of each epoch); "
            f"`{_observe_command(diagnosis)}` observes them and computes what each change would do"
        )
    return found


def _is_chance(diagnosis: Diagnosis) -> bool:
    return diagnosis.study is not None and bool(sums_text.by_chance(diagnosis.study, diagnosis.comparison))


def _observe_command(diagnosis: Diagnosis) -> str:
    experiment = diagnosis.config.get("exp")
    return f"cpdrun predict exp={experiment}" if experiment else f"cpdrun predict {diagnosis.run.path}"


def _rounded_within(config: Mapping[str, Any]) -> list[str]:
    """Return what matrix products and optimizer steps round, in words."""
    precision = config.get("precision")
    if not isinstance(precision, Mapping):
        return []
    found = [
        f"{key.replace('_', ' ')} in {precision[key]}"
        for key in ROUNDED_KEYS
        if isinstance(precision.get(key), str) and not formats.is_baseline(precision[key])
    ]
    recipe = config.get("recipe")
    rules = f"recipe {recipe}" if recipe else "precision.rules"
    return [rules, *found] if precision.get("rules") else found


def _result(diagnosis: Diagnosis) -> str:
    """Return `is 88.4 points worse than fp32 (...)`, or how the run ended."""
    run, comparison, study, result = diagnosis.run, diagnosis.comparison, diagnosis.study, diagnosis.result
    gap = _gap(diagnosis)
    if diagnosis.state is State.RUNNING:
        progress = run.progress()
        far = f" (epoch {progress.epoch} of {progress.epochs})" if progress and progress.epochs else ""
        return f"is still running{far}, and so far {gap}"
    if diagnosis.state in (State.FAILED, State.PREEMPTED):
        return f"{_attempt(diagnosis)}; until then {gap}" if rows_of(run) else _attempt(diagnosis)
    if result is not None and result.status is Ending.DIVERGED:
        return f"diverged: its loss was not finite{_when_nonfinite(diagnosis)}"
    if result is not None and result.status is Ending.DID_NOT_LEARN:
        after = f" after {result.ended_after} epochs" if result.ended_after else ""
        return f"did not learn, and was stopped{after}: {gap}"
    if study is not None and comparison.verdict is RunVerdict.BASELINE:
        return f"is the baseline itself, {study.baseline_name}, so there is nothing to compare it with"
    if study is not None and comparison.verdict is RunVerdict.WITHIN:
        return f"is not worse: within the margin of {study.margin_text}, {gap.removeprefix('it is ')}"
    return gap.removeprefix("it ")


def _gap(diagnosis: Diagnosis) -> str:
    study, comparison = diagnosis.study, diagnosis.comparison
    if study is None or comparison.problem:
        value = ""
        if study is not None and math.isfinite(comparison.value):
            value = f", which reaches {study.metric.show(comparison.value)}{study.metric.unit}"
        why = "no run of its sweep has finished"
        if study is not None and comparison.problem is not None:
            why = baseline_problem_text(study, comparison.problem)
        return f"it has nothing to be compared with{value} ({why})"
    chance = sums_text.by_chance(study, comparison)
    return f"it is {sums_text.gap(study, comparison)}{', ' + chance if chance else ''}"


def _because(diagnosis: Diagnosis) -> str:
    """Return `97 % of the gradients become 0 ...`; empty if no reason is known."""
    config, reason, counterfactual = diagnosis.config, diagnosis.reason, diagnosis.counterfactual
    if counterfactual is not None and (
        counterfactual.role != GRADIENT or reason.cause in (Cause.UNSEEN, Cause.EXACT)
    ):
        return counterfactual_text.reason(counterfactual)
    if diagnosis.is_baseline or reason.cause is Cause.UNSEEN:
        return ""
    if reason.cause is Cause.EXACT and not _rounded_within(config):
        return "gradients are summed in fp32 and nothing else is rounded, so no format is the reason"
    sync, workers = config.get("sync") or {}, config.get("world_size", 1)
    recorded = diagnosis.result.longest_chain if diagnosis.result is not None else None
    return sums_text.cause(
        reason,
        aps=bool(config.get("aps")),
        chain=recorded or longest_chain(sync, workers),
        workers=workers,
        workers_per_scale=workers_per_scale(sync, workers),
    )


def _where(diagnosis: Diagnosis) -> Iterator[str]:
    reason = diagnosis.reason
    if reason.cause in (Cause.UNSEEN, Cause.EXACT) or diagnosis.is_baseline:
        return
    yield f"Where: {sums_text.layers(reason)}"
    if when := sums_text.when(reason):
        yield f"When: {when}"
    if exact := reason.statistics.exact:
        yield f"Summed in fp32: {', '.join(exact[:3])}{' ...' if len(exact) > 3 else ''}"


def _ended(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield non-finite gradients of a run that ended well, and what all seeds together show."""
    study, comparison = diagnosis.study, diagnosis.comparison
    status = diagnosis.result.status if diagnosis.result is not None else None
    if diagnosis.reason.statistics.nonfinite is not None and status is not Ending.DIVERGED:
        yield f"Summed gradients were not finite{_when_nonfinite(diagnosis)}{_hidden(diagnosis)}"
    group = comparison.group
    if study is not None and group is not None and not diagnosis.is_baseline:
        gap = study.against_baseline(group)
        if gap is not None and gap.pairs > 1:
            verdict = study.judged[group].verdict
            amount = f"{gap_text(study.metric, gap)} against {study.baseline_name}"
            yield f"Over its {len(group.values)} seeds: {amount}, {verdict}"


def _when_nonfinite(diagnosis: Diagnosis) -> str:
    found = diagnosis.reason.statistics.nonfinite
    if found is None:
        return ""
    elements = f"{found.elements:,} element{'s' if found.elements != 1 else ''} of the summed gradients"
    where = f", in {', '.join(found.layers[:3])}" if found.layers else ""
    return f", first in epoch {found.epoch} ({elements}{where})"


def _hidden(diagnosis: Diagnosis) -> str:
    """Return a clause if the format turned non-finite values into numbers, so that the loss stayed finite."""
    fmt = formats.parse(diagnosis.config["format"])
    overflow = (diagnosis.config.get("sync") or {}).get("overflow")
    if fmt is None or (fmt.has_inf and overflow not in _TO_FINITE):
        return ""
    return (
        f"; {fmt.name} saturates or has no infinity, and turned them into numbers, so the loss stayed finite"
    )


def _attempt(diagnosis: Diagnosis) -> str:
    attempt = diagnosis.run.last_attempt()
    outcome = attempt.outcome() if attempt is not None else None
    if diagnosis.state is State.PREEMPTED:
        return "was stopped, and continues when its sweep is typed again"
    reason = f": {outcome.reason}" if outcome is not None and outcome.reason else ""
    status = outcome.status if outcome is not None else Ending.FAILED
    how = {Ending.KILLED: "was killed", Ending.OUT_OF_MEMORY: "ran out of memory"}.get(status, "failed")
    return f"{how}{reason} (cpdrun logs {diagnosis.run.name})"
