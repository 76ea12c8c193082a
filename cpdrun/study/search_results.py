"""Read the results of planned runs: values, failures, lengths, and times.

A cell is one combination of values on an experiment's axes, except for the seed. Its name is that of
`cpdrun.config.identity.cell_name`.
"""

import math
from collections.abc import Mapping
from typing import Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.script import SCRIPT, direction_of, judged_by
from cpdrun.record import Ending, Result, RunDir, SweepDir
from cpdrun.record.measure import ERROR, MEASURES
from cpdrun.record.run_end import failure_of, fingerprint_of, length_of
from cpdrun.stats.ended_runs import EndedRuns, RunKey
from cpdrun.stats.failures import Failure
from cpdrun.stats.means import as_float
from cpdrun.study.margin import Course, course_of
from cpdrun.study.metric import Metric
from cpdrun.sweep import PlannedRun

# The planned runs of a cell, keyed by seed.
Cell = dict[int, PlannedRun]


class RunResults:
    """The results of planned runs.

    The constructor reads all runs that have ended. Call `take` for each run that ends later.

    Attributes:
        directory: The folder of the sweep.
        cells: The planned runs, keyed by cell name and seed.
        ended: The values and failures of the runs that have ended.
        seconds: The wall times of the runs with a result, in seconds.
        core_seconds: The sum of wall time x processes x threads over these runs.
        fingerprints: The known fingerprints of runs, keyed by cell name and seed.
        metrics: All metrics of each run with a value, keyed by cell name.
        products: The entry `products` of a run's done.json, keyed by cell name.
        classes: The number of classes. NaN if unknown.
        samples: The number of test samples. NaN if unknown.
        compared: The compared metric, with default decimals. None until a run has ended.
    """

    def __init__(self, directory: SweepDir, cells: Mapping[str, Cell], metric: str | None) -> None:
        self.directory = directory
        self.cells = cells
        self.ended = EndedRuns()
        self.seconds: list[float] = []
        self.core_seconds = 0.0
        self.fingerprints: dict[str, dict[int, str]] = {}
        self.metrics: dict[str, list[dict[str, float | None]]] = {}
        self.products: dict[str, dict[str, Any]] = {}
        self.classes = self.samples = math.nan
        self.compared: Metric | None = None
        self._asked_metric = metric
        self._courses: dict[RunKey, Course] = {}
        for name, cell in cells.items():
            for seed in cell:
                key = name, seed
                if not self.take(key) and (failure := failure_of(self.run(key))) is not None:
                    self.fail(key, failure)

    @property
    def runs(self) -> int:
        """The number of runs with a result."""
        return len(self.seconds)

    def run(self, key: RunKey) -> RunDir:
        name, seed = key
        return self.directory.run(self.cells[name][seed].name)

    def take(self, key: RunKey) -> bool:
        """Read the result of a run unless it was read before. Return True if there is one.

        Raises:
            ConfigError: The first result lacks the requested metric.
        """
        name, seed = key
        done = self.run(key).result()
        if done is None or seed in self.ended.values.get(name, {}):
            return done is not None
        config = self.cells[name][seed].config
        self.seconds.append(as_float(done.wall_seconds))
        self.core_seconds += self.seconds[-1] * config["nproc"] * config["threads"]
        self.classes = _first(self.classes, as_float(done.num_classes))
        self.samples = _first(self.samples, as_float(done.test_samples))
        if done.products is not None:
            self.products[name] = done.products
        metric = self._metric_of(done).name
        if done.status is not Ending.DIVERGED and metric not in done.metrics:
            self.fail(key, Failure.UNKNOWN)
            return True
        # The run may have failed before and been started again.
        self.ended.failures.get(name, {}).pop(seed, None)
        self.ended.given_up.discard(name)
        value = as_float(done.metrics.get(metric))
        is_healthy = done.status is not Ending.DIVERGED and math.isfinite(value)
        self.ended.values.setdefault(name, {})[seed] = value if is_healthy else math.nan
        if done.status is Ending.DID_NOT_LEARN:
            self.ended.gave_up.setdefault(name, set()).add(seed)
        if (length := length_of(self.run(key), config)) is not None:
            self.ended.lengths.setdefault(name, {})[seed] = length
        if (fingerprint := fingerprint_of(done)) is not None:
            self.fingerprints.setdefault(name, {})[seed] = fingerprint
        self.metrics.setdefault(name, []).append(done.metrics)
        return True

    def fail(self, key: RunKey, failure: Failure) -> None:
        """Record a run as failed, so that this search does not start it again."""
        name, seed = key
        self.ended.failures.setdefault(name, {})[seed] = failure
        if self.ended.runs(name).is_given_up:
            self.ended.given_up.add(name)

    @property
    def failures(self) -> list[RunKey]:
        """The runs that failed without a result. A repeated search starts them again."""
        keys = [(name, seed) for name, seeds in self.ended.failures.items() for seed in seeds]
        return [key for key in keys if self.run(key).result() is None]

    @property
    def compared_metric(self) -> Metric:
        """The compared metric.

        Before the first result, it is a guess from the requested metric or the script's config.
        """
        if self.compared is not None:
            return self.compared
        cell = next(iter(self.cells.values()))
        script = next(iter(cell.values())).config.get(SCRIPT)
        if not script:
            return Metric(self._asked_metric or "test_accuracy")
        name = self._asked_metric or judged_by(script)
        if name is None:
            return Metric("test_accuracy", ERROR)
        direction = direction_of(name, script["direction"])
        return Metric(name, None if direction is None else MEASURES[direction])

    def course(self, name: str, values: Mapping[int, float]) -> Course | None:
        """Return the metric before and after training of a cell's first run with a finite value.

        This is the run with the lowest seed, so that further seeds do not change the margin. The result is None without
        such a run.
        """
        seed = min((seed for seed, value in values.items() if math.isfinite(value)), default=None)
        if seed is None or self.compared is None:
            return None
        key = name, seed
        if key not in self._courses:
            self._courses[key] = course_of(self.run(key), self.compared, values[seed], self.classes)
        return self._courses[key]

    def _metric_of(self, done: Result) -> Metric:
        """Return the requested metric, or else the metric by which the first run is judged.

        Raises:
            ConfigError: The first run does not have the requested metric.
        """
        if self.compared is None:
            metrics, asked = done.metrics, self._asked_metric
            if asked is not None and asked not in metrics:
                raise ConfigError(f"search.metric={asked}: the runs have {', '.join(sorted(metrics))}")
            name = asked or done.judge or next(iter(metrics), "test_accuracy")
            self.compared = Metric(name, done.measures.get(name))
        return self.compared


def _first(known: float, new: float) -> float:
    return known if math.isfinite(known) else new
