"""Find or plan the baseline runs from which candidates are predicted, and forecast the candidates.

A prediction needs the gradients of each worker before anything is rounded or summed. Therefore, baselines that differ
only in how gradients are summed and sent (such as format, APS, order, and rounding) share one observed run. Baselines
with another number of workers, model, or batch size need a separate observed run.

A ladder consists of the candidates of one facet that share a gradient scaling, from most bits to fewest.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import belongs_to_identity, run_name
from cpdrun.config.keys import flatten
from cpdrun.config.registry import foreign_names
from cpdrun.config.script import is_script
from cpdrun.record import RunDir, SweepDir
from cpdrun.sweep import PlannedRun
from cpdrun.whatif.effects import is_observed
from cpdrun.whatif.forecast import LadderForecast, Outcome, Subject, outcome, what_if

# The number of observed steps, which are spread over the run. Observing a step takes as long as 0.8 to 2 training steps
# (scripts/bench_observe.py). In runs of at least 320 steps, observing 16 steps adds at most 10 % to the time. In the
# shortest experiments of this project, which have 96 steps, it adds 13 %, about two seconds.
STEPS = 16
OBSERVE = "observe"
# The keys that determine how gradients are summed and sent. They do not change the gradients of a single worker.
KEYS_OF_SUMS = ("format", "aps", "scaling", "sync", "full_precision", "compressor", "topology")


@dataclass(frozen=True)
class BaselineRun:
    """An observed run that represents one or more baselines with the same gradients.

    Attributes:
        run: The planned run, with the setting that observes it.
        sweep: The folder of the sweep in which the run is stored.
        serves: The names of the baseline cells that the run represents.
        note: The reason why a trained run has to be trained again, or "".
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
        """Whether the run was observed and ended with a result."""
        return _is_there(self.folder)


@dataclass(frozen=True)
class SubjectLadder:
    """A ladder whose candidates are to be forecast. They differ only in their format.

    Attributes:
        label: The label of the ladder.
        baseline: The name of the baseline's cell.
        subjects: The candidates.
    """

    label: str
    baseline: str
    subjects: tuple[Subject, ...]


def find_baseline_runs(
    directory: SweepDir, baselines: Mapping[str, PlannedRun], steps: int | None = None
) -> list[BaselineRun]:
    """Return one run to observe for each group of baselines whose workers have the same gradients.

    The run is the first run of one of the baselines, preferably one that was observed already. If it was trained
    without being observed, it is planned again in the folder of predictions.

    Args:
        directory: The folder of the sweep.
        baselines: The first run of each baseline, keyed by the name of the baseline's cell.
        steps: If given, a separate run of this number of steps is planned in the folder of predictions instead.

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
            "a script's run is observed only if you ask for it: cpdrun sweep script=... observe=16, then cpdrun "
            "predict RUN for that run"
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
    """Return a planned run with the setting that observes it. Observing changes neither its name nor its results.

    A run of a script is returned unchanged.

    Args:
        run: The planned run.
        further: Further values to set in the config. They make it another run, which gets another name.
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
    """Return a forecast for each ladder, computed from runs that were observed already.

    Args:
        directory: The folder of the sweep, which caches the effects.
        chains: The ladders.
        found: The observed runs of the ladders' baselines.
        strictness: The strictness of the margin.
        outcomes: The outcomes of the trained candidates keyed by name, from `trained_outcomes`.

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
    """Return the names of formats and classes outside of cpdrun in the subjects' configs.

    Call this function only for configs that the user typed, because it permits importing these names.
    """
    return {name for subject in subjects for name in foreign_names(subject.config)}


def trained_outcomes(
    gaps: Mapping[str, Sequence[float]], tolerance: float, scale: float
) -> dict[str, Outcome]:
    """Return the outcome of each trained candidate, keyed by name, in the unit in which the metric is shown.

    A candidate without pairs, or with a difference that is not finite, is left out. The usual spread of a pair is the
    median of the standard deviations of candidates with several pairs. If there are none, it is the margin.

    Args:
        gaps: The differences from the baseline in the metric's stored unit, keyed by candidate and listed by pair.
            Positive is better.
        tolerance: The margin in the metric's stored unit. If it is not positive, the result is empty.
        scale: The factor that converts the stored unit into the shown unit.
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
    """Return a key that is equal for runs whose workers have the same gradients.

    Settings of how gradients are summed and sent do not affect the key.
    """
    made = {
        key: value
        for key, value in flatten(config)
        if belongs_to_identity(key) and key.split(".")[0] not in KEYS_OF_SUMS
    }
    return json.dumps(made, sort_keys=True, default=str)
