"""The runs of an experiment's baseline that a prediction is read from: which, where they lie, what is still to train.

What is observed are the gradients of the workers one by one, before anything is rounded or summed. So baselines that
differ only in how gradients are summed and sent (format, APS, order, rounding ...) share one observation; another
number of workers, model or batch size needs its own.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, stdev
from typing import Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import belongs_to_identity, run_name
from cpdrun.config.keys import flatten
from cpdrun.config.registry import foreign_names
from cpdrun.config.script import is_script
from cpdrun.record import RunDir, SweepDir
from cpdrun.search.question import Question
from cpdrun.search.schedule import Candidate, Chain, Ended, Rules
from cpdrun.stats.evidence import differences
from cpdrun.sweep import PlannedRun
from cpdrun.whatif.effects import NoEffectsError, is_observed
from cpdrun.whatif.effects import ask as ask_effects
from cpdrun.whatif.failure_model import Outcome, outcome
from cpdrun.whatif.forecast import ChainForecast, Subject, forecast_all

STEPS = 16
"""Observed, spread over the run. A look costs .8 to 2 of the run's steps (scripts/bench_observe.py): 16 are at most a
tenth of a run of 320 steps and more; of the shortest experiments here, of 96, they were 13 %, some two seconds."""
OBSERVE = "observe"
OF_SUMS = ("format", "aps", "scaling", "sync", "full_precision", "compressor", "topology")


@dataclass(frozen=True)
class Observation:
    """`run`: as it is trained; `serves`: the baselines' cells that it stands for; `note`: why it lies elsewhere."""

    run: PlannedRun
    sweep: SweepDir
    serves: tuple[str, ...]
    note: str = ""

    @property
    def folder(self) -> RunDir:
        return self.sweep.run(self.run.name)

    @property
    def is_there(self) -> bool:
        return _is_there(self.folder)


def _is_there(run: RunDir) -> bool:
    return run.result() is not None and is_observed(run)


def observations(question: Question, steps: int | None = None) -> list[Observation]:
    """One for each way of making gradients among the baselines. A first run of a baseline that was trained unobserved
    is planned anew, in prediction's own folder; so is one of `steps` steps, which is another run."""
    groups: dict[str, list[str]] = {}
    for chain in question.chains:
        served = groups.setdefault(_gradients(question.config(chain.baseline)), [])
        if chain.baseline not in served:
            served.append(chain.baseline)
    return [_observation(question, tuple(served), steps) for served in groups.values()]


def _observation(question: Question, served: Sequence[str], steps: int | None) -> Observation:
    firsts = [_first(question, name) for name in served]
    if is_script(firsts[0].config):
        raise ConfigError(
            "a script's run is observed where that is typed: cpdrun sweep script=... observe=16, then cpdrun predict "
            "RUN of that run"
        )
    own = question.directory.prediction
    if steps is not None:
        run = observed(firsts[0], {"max_steps": steps})
        return Observation(run, own, tuple(served))
    there = [(run, question.directory.run(run.name)) for run in firsts]
    found = [each for each in there if _is_there(each[1])]
    run, folder = (found or there)[0]
    if not found and folder.result() is not None:
        note = f"{run.name} was trained unobserved, and is trained once more, observed, in {own.path}"
        return Observation(observed(run), own, tuple(served), note)
    return Observation(observed(run), question.directory, tuple(served))


def _first(question: Question, name: str) -> PlannedRun:
    arms = question.tuning.arms.get(name, (name,))
    return question.cells[arms[0]][0]


def observed(run: PlannedRun, further: Mapping[str, Any] | None = None) -> PlannedRun:
    """The same run, of the same name and bits, observed; `further` values make it another. A script's is as typed."""
    if is_script(run.config):
        return run
    config = {**run.config, OBSERVE: run.config.get(OBSERVE) or STEPS, **(further or {})}
    words = [f"{key}={value}" for key, value in (further or {}).items()]
    return PlannedRun(run_name(config), config, [*run.overrides, *words, f"{OBSERVE}={config[OBSERVE]}"])


def _gradients(config: Mapping[str, Any]) -> str:
    """What makes a worker's gradients, the step that is taken with their sum aside."""
    made = {
        key: value
        for key, value in flatten(config)
        if belongs_to_identity(key) and key.split(".")[0] not in OF_SUMS
    }
    return json.dumps(made, sort_keys=True, default=str)


def forecast_chains(
    question: Question,
    found: Sequence[Observation],
    strictness: float,
    outcomes: Mapping[str, Outcome] | None = None,
) -> list[ChainForecast]:
    """Return a forecast for every candidate of every chain, from observations that exist.

    Args:
        question: The question of the sweep.
        found: The observed runs of its baselines.
        strictness: That of the margin.
        outcomes: What the runs of trained candidates showed, from `trained_outcomes`.

    Raises:
        NoEffectsError: The effects cannot be computed.
    """
    by_baseline = {name: observation for observation in found for name in observation.serves}
    effects: dict[str, Any] = {}
    for observation in found:
        chains = [chain for chain in question.chains if by_baseline[chain.baseline] is observation]
        configs = {each.name: each.config for chain in chains for each in subjects(question, chain)}
        effects |= _effects(observation.folder, configs, question)
    every = [each for chain in question.chains for each in subjects(question, chain)]
    forecasts = forecast_all(every, effects, strictness, outcomes)
    return [
        ChainForecast.of(chain.label, [forecasts[c.name] for width in chain.widths for c in width])
        for chain in question.chains
    ]


def trained_outcomes(question: Question, ended: Ended, rules: Rules, scale: float) -> dict[str, Outcome]:
    """Return what the pairs of each trained candidate showed, in the unit in which the metric is shown.

    The usual spread of a pair is the median of the candidates' standard deviations, or the margin if each has one pair.
    `scale` converts the metric's own unit into the shown one.
    """
    if not rules.tolerance > 0:
        return {}
    gaps: dict[str, list[float]] = {}
    for candidate in (c for chain in question.chains for width in chain.widths for c in width):
        found = ended.compared(candidate)
        gaps[candidate.name] = differences(
            found.ours, found.baseline, higher_is_better=rules.higher_is_better, worst=rules.worst
        )
    trained = {name: of for name, of in gaps.items() if of and all(map(math.isfinite, of))}
    spread = median([stdev(of) for of in trained.values() if len(of) > 1] or [rules.tolerance])
    return {
        name: outcome([scale * gap for gap in of], scale * spread, scale * rules.tolerance)
        for name, of in trained.items()
    }


def _effects(run: RunDir, configs: Mapping[str, Mapping[str, Any]], question: Question) -> dict[str, Any]:
    """Ask for effects of configs that the user typed, or that lie in a config directory that the user named."""
    typed = {name for config in configs.values() for name in foreign_names(config)}
    return ask_effects(run, configs, question.directory, may_import=typed)


def subjects(question: Question, chain: Chain) -> list[Subject]:
    return [
        Subject(c.name, c.label, c.bits, question.config(c.name)) for width in chain.widths for c in width
    ]


def with_chances(question: Question, chain: Chain, run: RunDir, strictness: float) -> Chain | None:
    """Return the chain with the predicted chance that each candidate fails, the least likely of each width first.

    The chance is the mean over the levels that an unseen network may have. Outcomes of candidates do not enter it: the
    start of a chain must not depend on the pairs that are tested. None if `run`, a run of the chain's baseline, was not
    observed or the effects cannot be computed.
    """
    if not is_observed(run):
        return None
    asked = subjects(question, chain)
    try:
        effects = _effects(run, {subject.name: subject.config for subject in asked}, question)
    except (NoEffectsError, OSError):
        return None
    found = forecast_all(asked, effects, strictness)

    def logit(candidate: Candidate) -> float:
        return found[candidate.name].logit

    widths = (
        tuple(replace(c, chance=found[c.name].chance.mean) for c in sorted(width, key=logit))
        for width in chain.widths
    )
    return replace(chain, widths=tuple(widths))
