"""An explanation in sentences: how the run stands and why, with its figure; where; when; what would mend it; what was
not seen."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cpdrun.config.script import is_script
from cpdrun.explain import observed_words
from cpdrun.explain.counted import Counted
from cpdrun.explain.explanation import Mend
from cpdrun.explain.mends import GRADIENT
from cpdrun.predict.effects import is_observed
from cpdrun.record import Ending, Result, RunDir, State
from cpdrun.report.why import words as said
from cpdrun.report.why.chain import chain, together
from cpdrun.report.why.reason import Cause, Reason
from cpdrun.report.why.standing import RunStanding, RunVerdict
from cpdrun.study.axes import formats
from cpdrun.study.result_text import gap_text
from cpdrun.study.runs.history import rows_of
from cpdrun.study.study import Study

ROUNDS = ("weights", "activations", "errors", "accumulator", "optimizer_state", "update")  # keys of precision


@dataclass(frozen=True)
class About:
    run: RunDir
    config: Mapping[str, Any]
    state: State
    result: Result | None
    study: Study | None
    stands: RunStanding
    reason: Reason
    counted: Counted | None = None
    problem: str = ""  # why nothing is counted though somebody observed


def sentences(about: About, mends: list[Mend], unseen: list[str]) -> list[str]:
    """The main reason first."""
    because = _because(about)
    if because and (about.stands.verdict is RunVerdict.WITHIN or _is_chance(about)):
        lines = [f"{about.run.name} {_standing(about)}.", f"What it loses: {because}."]
    else:
        lines = [f"{about.run.name} {_standing(about)}{': ' + because if because else ''}."]
    observed = () if about.counted is None else observed_words.roles(about.counted)
    lines += [f"{line}." for line in (*_where(about), *observed, *_ended(about)) if line]
    if mends:
        title = "What mends it" if about.stands.verdict is RunVerdict.WORSE else "What loses less"
        lines += [f"{title}: {mends[0].text}.", *(f"Also: {mend.text}." for mend in mends[1:])]
    return [*lines, *(f"Not seen: {one}." for one in unseen)]


def _is_chance(about: About) -> bool:
    return about.study is not None and bool(said.by_chance(about.study, about.stands))


def not_seen(about: About) -> list[str]:
    """What nobody looked at, with the command that does."""
    if is_script(about.config) and about.counted is None:
        if is_observed(about.run):
            return []
        return [
            "a script's tensors: cpdrun records what it logs, and what it loses in between stays open; a sweep with "
            "observe=16 shows them"
        ]
    found = []
    if about.reason.cause is Cause.UNSEEN:
        found.append("its layers: no epoch of its record has statistics of them")
    if about.counted is not None:
        return [*found, *about.counted.said]
    if about.problem:
        return [*found, f"the tensors that were observed: {about.problem}"]
    if rounds := _rounded_within(about.config):
        found.append(
            f"what rounding {' and '.join(rounds)} takes within a worker; `{_observes(about)}` observes it"
        )
    elif about.stands.verdict is not RunVerdict.BASELINE and about.reason.seen.layers:
        found.append(
            f"gradients before they are summed, by value: the figures above are those of the last look in each epoch; "
            f"`{_observes(about)}` observes them and says what each mend would do"
        )
    return found


def _observes(about: About) -> str:
    experiment = about.config.get("exp")
    return f"cpdrun predict exp={experiment}" if experiment else f"cpdrun predict {about.run.path}"


def _rounded_within(config: Mapping[str, Any]) -> list[str]:
    """What products and steps round, in words."""
    precision = config.get("precision")
    if not isinstance(precision, Mapping):
        return []
    found = [
        f"{key.replace('_', ' ')} in {precision[key]}"
        for key in ROUNDS
        if isinstance(precision.get(key), str) and not formats.is_baseline(precision[key])
    ]
    recipe = config.get("recipe")
    rules = f"recipe {recipe}" if recipe else "precision.rules"
    return [rules, *found] if precision.get("rules") else found


def _standing(about: About) -> str:
    """`is 88.4 points worse than fp32 (...)`, or how it ended."""
    run, stands, study = about.run, about.stands, about.study
    if about.state is State.RUNNING:
        progress = run.progress()
        far = f" (epoch {progress.epoch} of {progress.epochs})" if progress and progress.epochs else ""
        return f"still runs{far}, and so far {_gap(about)}"
    if about.state in (State.FAILED, State.PREEMPTED):
        return f"{_attempt(about)}; until then {_gap(about)}" if rows_of(run) else _attempt(about)
    if about.result is not None and about.result.status is Ending.DIVERGED:
        return f"diverged: its loss was not finite{_when_nonfinite(about)}"
    if about.result is not None and about.result.status is Ending.DID_NOT_LEARN:
        after = f" after {about.result.ended_after} epochs" if about.result.ended_after else ""
        return f"did not learn, and was ended{after}: {_gap(about)}"
    if stands.verdict is RunVerdict.BASELINE:
        return f"is the baseline itself, {study.baseline_name}: there is nothing that it is worse than"
    if stands.verdict is RunVerdict.WITHIN:
        tolerance = study.metric.show_tolerance(study.tolerance)
        return f"is not worse: within the tolerance of {tolerance}, {_gap(about).removeprefix('it is ')}"
    return _gap(about).removeprefix("it ")


def _gap(about: About) -> str:
    if about.study is None or about.stands.problem:
        value = ""
        if about.study is not None and math.isfinite(about.stands.value):
            metric = about.study.metric
            value = f", which reaches {metric.show(about.stands.value)}{metric.unit}"
        return f"it has nothing to be compared with{value} ({about.stands.problem})"
    gap = said.gap(about.study, about.stands)
    chance = said.by_chance(about.study, about.stands)
    return f"it is {gap}{', ' + chance if chance else ''}"


def _because(about: About) -> str:
    """`97 % of the gradients become 0 ...`; empty where there is nothing to say."""
    config, found, counted = about.config, about.reason, about.counted
    if counted is not None and (counted.role != GRADIENT or found.cause in (Cause.UNSEEN, Cause.EXACT)):
        return observed_words.reason(counted)
    if about.stands.verdict is RunVerdict.BASELINE or found.cause is Cause.UNSEEN:
        return ""
    if found.cause is Cause.EXACT and not _rounded_within(config):
        return "gradients are summed in fp32 and nothing else is rounded, so no format is the reason"
    sync, workers = config.get("sync") or {}, config.get("world_size", 1)
    longest = about.result.longest_chain if about.result is not None else None
    return said.cause(
        found,
        aps=bool(config.get("aps")),
        chain=longest or chain(sync, workers),
        workers=workers,
        together=together(sync, workers),
    )


def _where(about: About) -> Iterator[str]:
    found = about.reason
    if found.cause in (Cause.UNSEEN, Cause.EXACT) or about.stands.verdict is RunVerdict.BASELINE:
        return
    yield f"Where: {said.layers(found)}"
    if when := said.when(found):
        yield f"When: {when}"
    if found.seen.exact:
        yield f"Summed in fp32: {', '.join(found.seen.exact[:3])}{' ...' if len(found.seen.exact) > 3 else ''}"


def _ended(about: About) -> Iterator[str]:
    """Yield non-finite gradients of a run that ended well, and what all seeds together show."""
    status = about.result.status if about.result is not None else None
    if about.reason.seen.nonfinite is not None and status is not Ending.DIVERGED:
        yield f"Summed gradients were not finite{_when_nonfinite(about)}{_hidden(about)}"
    group = about.stands.group
    if about.study is not None and group is not None and about.stands.verdict is not RunVerdict.BASELINE:
        gap = about.study.against_baseline(group)
        if gap is not None and gap.pairs > 1:
            verdict = about.study.judged[group].verdict
            amount = f"{gap_text(about.study.metric, gap)} against {about.study.baseline_name}"
            yield f"Over its {len(group.values)} seeds: {amount}, {verdict}"


def _when_nonfinite(about: About) -> str:
    found = about.reason.seen.nonfinite
    if found is None:
        return ""
    elements = f"{found.elements:,} element{'s' if found.elements != 1 else ''} of the summed gradients"
    where = f", seen in {', '.join(found.layers[:3])}" if found.layers else ""
    return f", first in epoch {found.epoch} ({elements}{where})"


_KEPT = ("saturate", "propagate")  # words of overflow that make the largest value of what is past it


def _hidden(about: About) -> str:
    """A format without infinities makes numbers of them, so that the loss stays finite."""
    fmt = formats.parse(about.config["format"])
    if fmt is None or (fmt.has_inf and (about.config.get("sync") or {}).get("overflow") not in _KEPT):
        return ""
    return f"; {fmt.name} has no infinity, or saturates, and made numbers of them, so the loss stayed finite"


def _attempt(about: About) -> str:
    attempt = about.run.last_attempt()
    outcome = attempt.outcome() if attempt is not None else None
    if about.state is State.PREEMPTED:
        return "was stopped and goes on when its sweep is typed again"
    reason = f": {outcome.reason}" if outcome is not None and outcome.reason else ""
    status = outcome.status if outcome is not None else Ending.FAILED
    how = {Ending.KILLED: "was killed", Ending.OUT_OF_MEMORY: "ran out of memory"}.get(status, "failed")
    return f"{how}{reason} (cpdrun logs {about.run.name})"
