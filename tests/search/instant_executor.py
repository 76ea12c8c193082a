"""An executor that trains nothing: a run ends at once with a value from a made-up world."""

import math
import random

from made_up_world import World

from cpdrun.launch.base import Event, Executor
from cpdrun.record import Ending, Outcome, append_json_line, write_json

GAPS = {("e3m0", True): -0.002, ("e3m2", False): -0.6, ("e2m0", True): -0.88, ("e4m1", False): math.nan}
WORLD = World({}, noise=0.0035)
OFF = {}  # (format, learning rate) -> accuracy lost against the best rate; NaN diverges


class PowerCutError(Exception):
    """The process is killed."""


class Instant(Executor):
    """Run `slots` jobs at a time, or rounds of jobs if it is 0. Jobs end in random order.

    Tests set on the class when the power fails and which runs fail.
    """

    here = True
    cut_after = math.inf  # number of events of all executors until the power fails
    failing: tuple[str, ...] = ()
    rounds: list[int] = []  # noqa: RUF012  number of jobs of each executor

    def __init__(self, slots=2, *, sweep, options, warm=None):
        self.slots, self._queue, self._rng = slots, [], random.Random(0)
        Instant.rounds.append(0)

    def at_once(self, jobs):
        return self.slots or None

    def submit(self, jobs):
        Instant.rounds[-1] += len(jobs)
        assert not self.slots or len(self._queue) + len(jobs) <= self.slots
        assert not any(job.run.done.exists() for job in jobs), "run twice"
        self._queue.extend(jobs)

    def poll(self, timeout_s):
        if not self._queue:
            return []
        if Instant.cut_after <= 0:
            raise PowerCutError
        Instant.cut_after -= 1
        job = self._queue.pop(self._rng.randrange(len(self._queue)))
        if any(text in job.run.name for text in Instant.failing):
            outcome = Outcome(Ending.FAILED, reason="made to fail")
        else:
            outcome = Outcome(train(job))
        return [Event(job), Event(job, outcome)]

    def cancel(self, *, now):
        self._queue.clear()

    def close(self):
        self._queue.clear()

    @property
    def running(self):
        return list(self._queue)

    @property
    def unfinished(self):
        return len(self._queue)


def train(job):
    """Write the records of a run whose value depends on format, scaling, learning rate and seed."""
    config = job.config
    cell = (config["format"], config["aps"])
    gap = GAPS.get(cell, 0.0) - OFF.get((config["format"], config["optim"]["lr"]), 0.0)
    shared = random.Random(f"{config['seed']}").gauss(0.98, 0.005)
    value = shared + random.Random(f"{cell} {config['seed']}").gauss(0, WORLD.noise) + gap
    status = "diverged" if math.isnan(gap) else "finished"
    metrics = {} if math.isnan(gap) else {"test_accuracy": value, "test_loss": 1 - value}
    done = {"status": status, "metrics": metrics, "wall_seconds": 4.0, "train_seconds": 3.0}
    done |= {"test_samples": 360, "num_classes": 10}
    layers = {"conv": {"exponent_max": -7}, "head": {"exponent_max": -6}}
    append_json_line(job.run.metrics, {"epoch": 1, "layers": layers})
    write_json(job.run.done, done)
    return job.run.result().status
