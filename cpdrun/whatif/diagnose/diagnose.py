"""Diagnose one run, from the records of its sweep and from the tensors that a run of it observed."""

import math
from typing import Any

from cpdrun.config.script import is_script
from cpdrun.errors import UserError
from cpdrun.record import RunDir, State, SweepDir, garbage, read_config, state_of
from cpdrun.study import ReportError
from cpdrun.study.gradient_sums import Reason, find_reason, gradient_statistics
from cpdrun.study.reader import read_study
from cpdrun.study.records import rows_of
from cpdrun.study.run_comparison import (
    Neighbor,
    RunComparison,
    RunVerdict,
    compare_run,
    find_neighbors,
    is_improvement,
)
from cpdrun.study.study import Study
from cpdrun.whatif.diagnose.changes import Change, changes_of_products, changes_of_sums
from cpdrun.whatif.diagnose.counterfactual import (
    Counterfactual,
    compute_counterfactual,
    observed_run_for,
    strictness_for,
)
from cpdrun.whatif.diagnose.diagnosis import MEASURED, Diagnosis, Fix
from cpdrun.whatif.diagnose.fixes import estimated_fixes, measured_fixes, observed_fixes
from cpdrun.whatif.effects import NoEffectsError

MOST_FIXES = 8


class CannotDiagnoseError(UserError):
    """A run has not begun, or its record cannot be read."""


def diagnose(run: RunDir) -> Diagnosis:
    """Return why a run is worse than its baseline, and what would lose less.

    Raises:
        CannotDiagnoseError: The run has not begun, or its record cannot be read.
    """
    config, state = _read(run)
    reason = find_reason(gradient_statistics(rows_of(run)))
    study = _read_study(run.sweep)
    comparison = compare_run(study, run) if study is not None else _alone()
    counterfactual, problem = _counterfactual(study, run, comparison, config, reason)
    fixes = [] if study is None else measured_fixes(_neighbors(study, run, comparison), reason)
    fixes += _computed_fixes(config, reason, counterfactual, {fix.words for fix in fixes})
    is_worse = comparison.verdict is RunVerdict.WORSE
    if not is_worse and (comparison.verdict is not RunVerdict.OPEN or is_script(config)):
        fixes = [fix for fix in fixes if fix.basis == MEASURED]
    return Diagnosis(
        run=run,
        config=config,
        state=state,
        result=run.result(),
        study=study,
        comparison=comparison,
        reason=reason,
        counterfactual=counterfactual,
        problem=problem,
        fixes=fixes[:MOST_FIXES],
    )


def _read(run: RunDir) -> tuple[dict[str, Any], State]:
    try:
        config, state = read_config(run), state_of(run)
    except (OSError, ValueError) as error:
        raise CannotDiagnoseError(f"{run.name}: {run.config.name} cannot be read: {error}") from None
    if state is State.PENDING:
        raise CannotDiagnoseError(f"{run.name} has not begun: there is nothing to explain yet")
    if state is State.DONE and run.result() is None:
        raise CannotDiagnoseError(garbage(run))
    return config, state


def _read_study(sweep: SweepDir) -> Study | None:
    """Return the study of a sweep; None if no run has ended or the runs cannot be compared."""
    try:
        return read_study([sweep])
    except ReportError:
        return None


def _alone() -> RunComparison:
    return RunComparison(RunVerdict.OPEN, math.nan, None, math.nan, same_seed=False)


def _neighbors(study: Study, run: RunDir, comparison: RunComparison) -> list[Neighbor]:
    if comparison.verdict is RunVerdict.BASELINE:
        return []
    found = find_neighbors(study, run, comparison)
    return [one for one in found if is_improvement(study, comparison, one)]


def _computed_fixes(
    config: dict[str, Any],
    reason: Reason,
    counterfactual: Counterfactual | None,
    measured: set[tuple[str, ...]],
) -> list[Fix]:
    """Return fixes that no finished run has tried: computed on observed tensors, or else estimated."""
    if counterfactual is not None:
        return [fix for fix in observed_fixes(counterfactual) if fix.words not in measured]
    if not reason.statistics.layers or is_script(config):
        return []
    changes = [change for change in changes_of_sums(config) if change.words not in measured]
    return estimated_fixes(reason, Change("", (), config), changes)


def _counterfactual(
    study: Study | None, run: RunDir, comparison: RunComparison, config: dict[str, Any], reason: Reason
) -> tuple[Counterfactual | None, str]:
    """Return the counterfactual, or None and why it cannot be computed although a run was observed."""
    if comparison.verdict is RunVerdict.BASELINE:
        return None, ""
    observed = observed_run_for(study, run, comparison, config)
    if observed is None:
        return None, ""
    changes = [*changes_of_sums(config, _layers_to_spare(reason)), *changes_of_products(config)]
    strict = strictness_for(study, comparison)
    try:
        return compute_counterfactual(observed, config, changes, run, strict), ""
    except (NoEffectsError, OSError) as error:
        return None, str(error)


def _layers_to_spare(reason: Reason) -> list[str]:
    """Return the layers to try in fp32: the two worst, or the first and the last if all layers lose the same."""
    layers = reason.statistics.layers
    if len({(one.sum_error, one.underflow) for one in layers}) == 1:
        weights = [one.name for one in layers if one.name.endswith("weight")] or [one.name for one in layers]
        return list(dict.fromkeys([weights[0], weights[-1]]))
    return [one.name for one in reason.worst[:2]]
