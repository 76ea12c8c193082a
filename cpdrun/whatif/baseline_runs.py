"""Select the baseline runs to observe, and forecast the candidates of an experiment.

A prediction needs each worker's gradients before anything is rounded or summed. Baselines that differ only in how
gradients are summed and sent (`KEYS_OF_SUMS`) have the same such gradients, so one observed run serves all of them.
Baselines with another model, batch size, or number of workers each need their own.

A ladder is the list of formats, widest first, that an experiment compares under one gradient scaling.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import belongs_to_identity, run_name
from cpdrun.config.overrides import flatten
from cpdrun.config.script import is_script
from cpdrun.config.yaml_files import foreign_names
from cpdrun.record import RunDir, SweepDir
from cpdrun.sweep import PlannedRun
from cpdrun.whatif.effects import is_observed
from cpdrun.whatif.forecast import LadderForecast, Outcome, Subject, outcome, what_if

# The number of steps to observe. Observing a step takes as long as 0.8 to 2 training steps
# (scripts/benchmarks/observation.py). This adds at most 10% to a run of 320 steps, and 13% to the
# shortest experiments, which have 96 steps.
STEPS = 16
OBSERVE = "observe"
# These keys determine how gradients are summed and sent. The gradients of a single worker do not depend on them.
KEYS_OF_SUMS = ("format", "aps", "scaling", "sync", "full_precision", "compressor", "topology")


@dataclass(frozen=True)
class BaselineRun:
    """A run to observe, and the baselines that it serves.

    Attributes:
        run: The planned run, with the setting `observe`.
        sweep: The sweep directory that contains the run.
        serves: The cell names of the baselines with the same gradients.
        note: Why a run that was trained must be trained again, or "".
    """

    run: PlannedRun
    sweep: SweepDir
    serves: tuple[str, ...]
    note: str = ""

    @property
    def folder(self) -> RunDir:
        return self.sweep.find(self.run.name)

    @property
    def is_there(self) -> bool:
        """True if the run was observed and has a result."""
        return _is_there(self.folder)


@dataclass(frozen=True)
class SubjectLadder:
    """A ladder of candidates to forecast, with the cell name of its baseline."""

    label: str
    baseline: str
    subjects: tuple[Subject, ...]


def find_baseline_runs(
    directory: SweepDir, baselines: Mapping[str, PlannedRun], steps: int | None = None
) -> list[BaselineRun]:
    """Select a run to observe for each group of baselines.

    Baselines with the same gradients share a run. A run that was already observed is preferred. If the run was trained
    without observation, it is planned again in the sweep's directory of predictions.

    Args:
        directory: The directory of the sweep.
        baselines: The first run of each baseline, keyed by its cell name.
        steps: The number of steps of a shorter run to train for the prediction. None uses the baseline itself.

    Raises:
        ConfigError: A baseline runs a script.
    """
    groups: dict[str, list[str]] = {}
    for name, run in baselines.items():
        groups.setdefault(_gradients_key(run.config), []).append(name)
    return [
        _baseline_run(directory, {name: baselines[name] for name in group}, steps)
        for group in groups.values()
    ]


def _baseline_run(directory: SweepDir, served: Mapping[str, PlannedRun], steps: int | None) -> BaselineRun:
    runs, names = list(served.values()), tuple(served)
    if is_script(runs[0].config):
        raise ConfigError(
            "a script is observed only on request. Run cpdrun sweep script=... observe=16, and then cpdrun predict RUN"
        )
    own = directory.prediction
    if steps is not None:
        return BaselineRun(with_observation(runs[0], {"max_steps": steps}), own, names)
    run = next((run for run in runs if _is_there(directory.run(run.name))), None)
    if run is None and directory.run(runs[0].name).result() is not None:
        note = f"{runs[0].name} was trained unobserved, and is trained once more, observed, in {own.path}"
        return BaselineRun(with_observation(runs[0]), own, names, note)
    return BaselineRun(with_observation(run or runs[0]), directory, names)


def with_observation(run: PlannedRun, further: Mapping[str, Any] | None = None) -> PlannedRun:
    """Return the planned run with observation turned on. Its name and results stay the same.

    Values in `further` change the config and the name. Runs of scripts are returned unchanged.
    """
    if is_script(run.config):
        return run
    config = {**run.config, OBSERVE: run.config.get(OBSERVE) or STEPS, **(further or {})}
    words = [f"{key}={value}" for key, value in (further or {}).items()]
    name = run_name(config) if further else run.name
    return PlannedRun(name, config, [*run.overrides, *words, f"{OBSERVE}={config[OBSERVE]}"])


def forecast_ladders(
    directory: SweepDir,
    chains: Sequence[SubjectLadder],
    found: Sequence[BaselineRun],
    strictness: float,
    outcomes: Mapping[str, Outcome] | None = None,
) -> list[LadderForecast]:
    """Forecast the candidates of each ladder from the observed baseline runs.

    `outcomes` are those of trained candidates (`trained_outcomes`). The sweep directory caches the effects.

    Raises:
        NoEffectsError: The effects cannot be computed.
    """
    subjects = {each.name: each for chain in chains for each in chain.subjects}
    forecasts = what_if(
        [
            (run.folder, [each for c in chains if c.baseline in run.serves for each in c.subjects])
            for run in found
        ],
        strictness,
        outcomes,
        sweep=directory,
        may_import=typed_names(subjects.values()),
    )
    return [
        LadderForecast.of(chain.label, [forecasts[each.name] for each in chain.subjects]) for chain in chains
    ]


def typed_names(subjects: Iterable[Subject]) -> set[str]:
    """Return the formats and classes outside of cpdrun that the subjects' configs name.

    The returned names may be imported. Call this function only for configs that the user typed.
    """
    return {name for subject in subjects for name in foreign_names(subject.config)}


def trained_outcomes(
    gaps: Mapping[str, Sequence[float]], tolerance: float, scale: float
) -> dict[str, Outcome]:
    """Return the outcome of each trained candidate.

    A candidate with one pair has no standard deviation of its own. All outcomes therefore use the median standard
    deviation of the candidates that have several pairs, or the margin if no candidate has several.

    Args:
        gaps: The difference from the baseline for each pair of each candidate, in the metric's stored unit. Positive is
            better. Candidates with no or infinite differences are left out.
        tolerance: The margin in the metric's stored unit. If it is not positive, no outcome is returned.
        scale: The factor from the stored unit to the displayed unit, which the outcomes use.
    """
    trained = {name: of for name, of in gaps.items() if of and all(map(math.isfinite, of))}
    if not tolerance > 0:
        return {}
    spread = median([stdev(of) for of in trained.values() if len(of) > 1] or [tolerance])
    return {
        name: outcome([scale * gap for gap in of], scale * spread, scale * tolerance)
        for name, of in trained.items()
    }


def _is_there(run: RunDir) -> bool:
    return run.result() is not None and is_observed(run)


def _gradients_key(config: Mapping[str, Any]) -> str:
    """Return a key that is equal for runs with the same gradients."""
    made = {
        key: value
        for key, value in flatten(config)
        if belongs_to_identity(key) and key.split(".")[0] not in KEYS_OF_SUMS
    }
    return json.dumps(made, sort_keys=True, default=str)
