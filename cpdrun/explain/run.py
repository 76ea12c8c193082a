"""Why one run is worse than its baseline: from the records of its sweep, and from what a run of it observed."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from cpdrun.config.script import is_script
from cpdrun.errors import UserError
from cpdrun.explain import observed_words, words
from cpdrun.explain.counted import Counted, count, number, observed_for, strict_of
from cpdrun.explain.estimate import estimate, gain
from cpdrun.explain.explanation import MEASURED, Explanation, LayerLoss, Mend
from cpdrun.explain.mends import of_products, of_sums
from cpdrun.predict.effects import NoEffectsError
from cpdrun.record import RunDir, State, SweepDir, garbage, read_config, state_of
from cpdrun.report.why.beside import Beside, beside, is_mend
from cpdrun.report.why.reason import Reason, reason
from cpdrun.report.why.seen import seen
from cpdrun.report.why.standing import RunStanding, RunVerdict, standing
from cpdrun.report.why.words import measured
from cpdrun.study.errors import ReportError
from cpdrun.study.reader import read_study
from cpdrun.study.runs.history import rows_of
from cpdrun.study.study import Study

MOST_MENDS = 8


class CannotExplainError(UserError):
    """There is nothing to explain, in a line that says why."""


def explain(run: RunDir) -> Explanation:
    """Raises CannotExplainError for a run that has not begun and for a record that cannot be read."""
    config, state = _read(run)
    found = reason(seen(rows_of(run)))
    study = _study(run.sweep)
    stands = standing(study, run) if study is not None else _alone()
    result = run.result()
    other = [] if study is None else _beside(study, run, stands)
    mends = _measured(study, other, found) if study is not None else []
    counted, problem = _count(study, run, stands, config, found)
    mends += _not_measured(counted, mends) if counted is not None else _estimated(config, found, mends)
    about = words.About(run, config, state, result, study, stands, found, counted, problem)
    needs_mending = stands.verdict is RunVerdict.WORSE or (
        stands.verdict is RunVerdict.OPEN and not is_script(config)
    )
    mends = (
        mends[:MOST_MENDS]
        if needs_mending
        else [mend for mend in mends if mend.basis == MEASURED][:MOST_MENDS]
    )
    unseen = words.not_seen(about)
    return Explanation(
        run=run.name,
        state=str(state),
        status=None if result is None else str(result.status),
        verdict=str(stands.verdict),
        metric=None if study is None else study.metric.name,
        value=stands.value,
        baseline=None if stands.baseline is None else stands.baseline.name,
        baseline_value=stands.baseline_value,
        lost=stands.lost,
        tolerance=math.nan if study is None else study.tolerance / study.metric.scale,
        cause=str(found.cause),
        role="gradient" if counted is None else counted.role,
        sentences=words.sentences(about, mends, unseen),
        layers=[*_seen_layers(found), *(_observed_layers(counted) if counted is not None else ())],
        epochs=found.seen.by_epoch(lambda moment: moment.sum_error),
        first_nonfinite_epoch=None if found.seen.nonfinite is None else found.seen.nonfinite.epoch,
        mends=mends,
        roles={} if counted is None else {role: _numbers(counted.own.of(role)) for role in counted.own.roles},
        parts={} if counted is None else counted.parts,
        observed=None if counted is None else counted.observed.name,
        not_seen=unseen,
    )


def worst_of(sweep: SweepDir) -> RunDir | None:
    """The run that lost most; None where none has ended."""
    study = _study(sweep)
    if study is None:
        return None
    values = [
        (run, standing(study, run)) for group in study.groups for run in group.runs if not group.is_baseline
    ]
    lost = [(one.lost if math.isfinite(one.lost) else math.inf, run.name, run) for run, one in values]
    return max(lost)[2] if lost else None


def _read(run: RunDir) -> tuple[dict[str, Any], State]:
    try:
        config, state = read_config(run), state_of(run)
    except (OSError, ValueError) as error:
        raise CannotExplainError(f"{run.name}: {run.config.name} cannot be read: {error}") from None
    if state is State.PENDING:
        raise CannotExplainError(f"{run.name} has not begun: there is nothing to explain yet")
    if state is State.DONE and run.result() is None:
        raise CannotExplainError(garbage(run))
    return config, state


def _study(sweep: SweepDir) -> Study | None:
    """Its runs; None where none has ended, or they cannot be compared."""
    try:
        return read_study([sweep])
    except ReportError:
        return None


def _alone() -> RunStanding:
    problem = "no run of its sweep has finished"
    return RunStanding(RunVerdict.OPEN, math.nan, None, math.nan, same_seed=False, problem=problem)


def _beside(study: Study, run: RunDir, stands: RunStanding) -> list[Beside]:
    if stands.verdict is RunVerdict.BASELINE:
        return []
    return [one for one in beside(study, run, stands) if is_mend(study, stands, one)]


def _measured(study: Study, other: list[Beside], found: Reason) -> list[Mend]:
    return [
        Mend(
            words=tuple(one.words),
            basis=MEASURED,
            text=measured(study, one, found),
            figure="sum_error",
            before=found.seen.sum_error,
            after=one.seen.sum_error,
            run=one.run.name,
            value=one.stands.value,
        )
        for one in other
    ]


def _estimated(config: dict[str, Any], found: Reason, known: list[Mend]) -> list[Mend]:
    """Of what no run beside it has tried."""
    if not found.seen.layers or is_script(config):
        return []
    tried = {one.words for one in known}
    turned = [one for one in of_sums(config) if one.words not in tried]
    mends = [mend for one in turned if (mend := estimate(config, found, one)) is not None]
    return sorted(mends, key=gain, reverse=True)


def _not_measured(counted: Counted, known: list[Mend]) -> list[Mend]:
    tried = {one.words for one in known}
    return [mend for mend in observed_words.mends(counted) if mend.words not in tried]


def _count(
    study: Study | None, run: RunDir, stands: RunStanding, config: dict[str, Any], found: Reason
) -> tuple[Counted | None, str]:
    """What can be computed on what was observed; or why it cannot, where somebody observed."""
    if stands.verdict is RunVerdict.BASELINE:
        return None, ""
    observed = observed_for(study, run, stands, config)
    if observed is None:
        return None, ""
    turned = [*of_sums(config, _spared(found)), *of_products(config)]
    try:
        return count(observed, config, turned, run, strict_of(study, stands)), ""
    except (NoEffectsError, OSError) as error:
        return None, str(error)


def _spared(found: Reason) -> list[str]:
    """The layers to try in fp32: the two that lose most, or where all lose alike the first and the last."""
    layers = found.seen.layers
    if len({(one.sum_error, one.underflow) for one in layers}) == 1:
        weights = [one.name for one in layers if one.name.endswith("weight")] or [one.name for one in layers]
        return list(dict.fromkeys([weights[0], weights[-1]]))
    return [one.name for one in found.worst[:2]]


def _seen_layers(found: Reason) -> Iterator[LayerLoss]:
    for one in found.seen.layers:
        figures = {name: getattr(one, name) for name in ("underflow", "overflow", "sum_error")}
        ends = {"exponent_min": one.low, "exponent_max": one.high}
        figures |= {name: math.nan if value is None else value for name, value in ends.items()}
        yield LayerLoss(one.name, "gradient", one.format, figures)


def _observed_layers(counted: Counted) -> Iterator[LayerLoss]:
    for role in counted.own.roles:
        for name, figures in counted.own.layers(role).items():
            yield LayerLoss(name, f"{role}, observed", str(figures.get("format", "")), _numbers(figures))


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    kept = ("underflow", "saturation", "snr_db", "bias", "cosine", "sum_error", "growth", "update_lost")
    kept += ("steps_cosine", "steps")
    return {name: number(figures, name) for name in kept if name in figures}
