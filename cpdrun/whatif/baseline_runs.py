"""Find or plan the baseline runs that a prediction reads, and forecast candidates from them.

A prediction reads the gradients of single workers, before anything is rounded or summed. Baselines that differ only in
how gradients are summed and sent (format, APS, order, rounding ...) therefore share one observation. Another number of
workers, model or batch size needs an observation of its own.
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

# The number of observed steps, spread over the run. To observe a step costs as much as 0.8 to 2 steps of the run
# (scripts/bench_observe.py). For runs of at least 320 steps, 16 observed steps cost at most a tenth. For the shortest
# experiments here, with 96 steps, they cost 13 %, about two seconds.
STEPS = 16
OBSERVE = "observe"
# Keys that decide how gradients are summed and sent. They do not change the gradients of a single worker.
KEYS_OF_SUMS = ("format", "aps", "scaling", "sync", "full_precision", "compressor", "topology")


@dataclass(frozen=True)
class BaselineRun:
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


@dataclass(frozen=True)
class SubjectLadder:
    """The candidates of a chain, which differ only in their format, as a forecast reads them.

    Attributes:
        label: The label of the chain.
        baseline: The name of the baseline's cell.
        subjects: The candidates.
    """

    label: str
    baseline: str
    subjects: tuple[Subject, ...]


def find_baseline_runs(
    directory: SweepDir, baselines: Mapping[str, PlannedRun], steps: int | None = None
) -> list[BaselineRun]:
    """Return one run for each group of baselines whose workers have the same gradients.

    If a baseline's first run was trained unobserved, plan it again in the folder of predictions. If `steps` is given,
    plan a separate run of that many steps in the same folder.

    Args:
        directory: The folder of the sweep.
        baselines: The first run of each baseline, by the name of the baseline's cell.
        steps: The number of steps of a separate run, or None.

    Raises:
        ConfigError: The baseline runs a script.
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
    """Return the same run, observed. Its name and its bits do not change.

    `further` holds values that turn it into another run. The run of a script is returned as it is.
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
    """Return a forecast for every candidate of every chain, from observations that exist.

    Args:
        directory: The folder of the sweep.
        chains: The chains of candidates.
        found: The observed runs of their baselines.
        strictness: The strictness of the margin.
        outcomes: What the runs of trained candidates showed, from `trained_outcomes`.

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
    """Return the names of formats and classes outside of cpdrun in configs that the user typed."""
    return {name for subject in subjects for name in foreign_names(subject.config)}


def trained_outcomes(
    gaps: Mapping[str, Sequence[float]], tolerance: float, scale: float
) -> dict[str, Outcome]:
    """Return what the pairs of each trained candidate showed, in the unit in which the metric is shown.

    The usual spread of a pair is the median of the candidates' standard deviations, or the margin if each has one pair.

    Args:
        gaps: The differences of the pairs of each candidate, in the metric's own unit.
        tolerance: The margin in the metric's own unit.
        scale: The factor that converts the metric's own unit into the shown one.
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
    """Return a key that is equal for runs whose workers have the same gradients, whatever happens to their sum."""
    made = {
        key: value
        for key, value in flatten(config)
        if belongs_to_identity(key) and key.split(".")[0] not in KEYS_OF_SUMS
    }
    return json.dumps(made, sort_keys=True, default=str)
