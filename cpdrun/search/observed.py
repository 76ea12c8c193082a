"""Find or plan the baseline runs that a prediction reads.

A prediction reads the gradients of single workers, before anything is rounded or summed. Baselines that differ only in
how gradients are summed and sent (format, APS, order, rounding ...) therefore share one observation. Another number of
workers, model or batch size needs an observation of its own.
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

# The number of observed steps, spread over the run. To observe a step costs as much as 0.8 to 2 steps of the run
# (scripts/bench_observe.py). For runs of at least 320 steps, 16 observed steps cost at most a tenth. For the shortest
# experiments here, with 96 steps, they cost 13 %, about two seconds.
STEPS = 16
OBSERVE = "observe"
# Keys that decide how gradients are summed and sent. They do not change the gradients of a single worker.
OF_SUMS = ("format", "aps", "scaling", "sync", "full_precision", "compressor", "topology")


@dataclass(frozen=True)
class Observation:
    """The run from which predictions for some of the baselines are read.

    Attributes:
        run: The run as it is trained.
        sweep: The folder of the sweep in which the run is stored.
        serves: The names of the baselines' cells for which the run stands.
        note: Why the run is stored in the folder of predictions, or "".
    """

    run: PlannedRun
    sweep: SweepDir
    serves: tuple[str, ...]
    note: str = ""

    @property
    def folder(self) -> RunDir:
        """The folder of the run."""
        return self.sweep.find(self.run.name)

    @property
    def is_there(self) -> bool:
        """Whether the run has ended with a result and was observed."""
        return _is_there(self.folder)


def _is_there(run: RunDir) -> bool:
    return run.result() is not None and is_observed(run)


def observations(question: Question, steps: int | None = None) -> list[Observation]:
    """Return one observation for each group of baselines whose workers have the same gradients.

    If a baseline's first run was trained unobserved, plan it again in the folder of predictions. If `steps` is given,
    plan a separate run of that many steps in the same folder.

    Raises:
        ConfigError: The baseline runs a script.
    """
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
    """Return the same run, observed. Its name and its bits do not change.

    `further` holds values that turn it into another run. The run of a script is returned as it is.
    """
    if is_script(run.config):
        return run
    config = {**run.config, OBSERVE: run.config.get(OBSERVE) or STEPS, **(further or {})}
    words = [f"{key}={value}" for key, value in (further or {}).items()]
    name = run_name(config) if further else run.name
    return PlannedRun(name, config, [*run.overrides, *words, f"{OBSERVE}={config[OBSERVE]}"])


def _gradients(config: Mapping[str, Any]) -> str:
    """Return a key that is equal for runs whose workers have the same gradients, whatever happens to their sum."""
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
        strictness: The strictness of the margin.
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
    """Compute the effects of configs that the user typed or that are in a config directory of the user."""
    typed = {name for config in configs.values() for name in foreign_names(config)}
    return ask_effects(run, configs, question.directory, may_import=typed)


def subjects(question: Question, chain: Chain) -> list[Subject]:
    """Return the candidates of a chain as the forecast reads them."""
    return [
        Subject(c.name, c.label, c.bits, question.config(c.name)) for width in chain.widths for c in width
    ]


def with_chances(question: Question, chain: Chain, run: RunDir, strictness: float) -> Chain | None:
    """Return the chain with the predicted chance that each candidate fails, the likeliest to hold the tolerance first.

    The order is set within each width. The chance is the mean over the levels that an unseen network may have. Results
    of candidates are not used, because the start of a chain must not depend on the pairs that are tested. Return None
    if `run`, a run of the chain's baseline, was not observed or if the effects cannot be computed.
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
