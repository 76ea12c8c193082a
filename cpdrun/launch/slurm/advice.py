"""Warn before runs are submitted to Slurm if no GPU is requested or the time limit is too short."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.launch.base import Job
from cpdrun.launch.progress.best_result import duration
from cpdrun.record import SweepDir, read_json

NO_GPU = "no GPU is requested; device=cuda requests one per rank"
UNIT_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}
# The units of the numbers in a time limit of sbatch. Each key states whether the limit contains days, and its number of
# colons.
FORMS = {
    (False, 0): "m",
    (False, 1): "ms",
    (False, 2): "hms",
    (True, 0): "dh",
    (True, 1): "dhm",
    (True, 2): "dhms",
}


@dataclass(frozen=True)
class Pace:
    """The measured duration of a step and of an epoch, in seconds. `source` describes where they were measured."""

    step_s: float
    epoch_s: float | None
    source: str


def limit_seconds(limit: object) -> int | None:
    """Return a time limit in seconds, or None if there is no limit.

    Args:
        limit: The limit in a form that sbatch accepts, such as 90 (minutes), 01:30:00 or 2-12.
    """
    text = str(limit)
    if limit is None or text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    numbers = text.replace("-", ":").split(":")
    units = FORMS["-" in text, text.count(":")]
    return sum(int(number) * UNIT_S[unit] for number, unit in zip(numbers, units, strict=True))


def time_advice(sweep: SweepDir, jobs: Sequence[Job], limit: object, warning_s: int) -> str | None:
    """Return a warning if runs would reach their time limit before their first checkpoint.

    A run saves a checkpoint every `checkpoint.every_epochs` epochs, and at its next step after Slurm's signal that the
    time limit is near. The returned warning says whether this signal comes early enough.

    Args:
        sweep: The sweep.
        jobs: The jobs of the sweep that need the same resources.
        limit: The time limit in a form that sbatch accepts.
        warning_s: The time between Slurm's signal and the limit, in seconds.

    Returns:
        The warning as one line, or None if the pace of the runs is unknown or the limit is long enough.
    """
    config, limit_s = jobs[0].config, limit_seconds(limit)
    if limit_s is None or "checkpoint" not in config or (pace := _pace(sweep, config)) is None:
        return None
    step = f"a step takes about {duration(pace.step_s)}"
    saves_when_warned = pace.step_s <= warning_s
    if pace.epoch_s is None:
        if saves_when_warned:
            return None
        return (
            f"{step} ({pace.source}), longer than launcher.warning_s={warning_s}. A run that reaches "
            f"launcher.time={limit} in its first epoch would end without a checkpoint. "
            "Set launcher.warning_s to more than the time of a step"
        )
    first_s = pace.epoch_s * config["checkpoint"]["every_epochs"]
    if first_s <= limit_s:
        return None
    short = (
        f"launcher.time={limit} is shorter than the time to a run's first checkpoint, about {duration(first_s)} "
        f"({pace.source})"
    )
    if saves_when_warned:
        return f"{short}. A run is saved only after Slurm's signal, launcher.warning_s={warning_s} s before the limit"
    return (
        f"{short}, and {step}, longer than launcher.warning_s={warning_s}. Runs would end without a checkpoint. "
        "Increase launcher.time, or set launcher.warning_s to more than the time of a step"
    )


def _pace(sweep: SweepDir, config: dict[str, Any]) -> Pace | None:
    """Return the median pace of the runs of the sweep so far.

    If no run has completed an epoch, return the pace that `cpdrun doctor --calibrate` has measured. If there is no such
    measurement, return None.
    """
    rows = [rows[-1] for run in sweep.runs() if (rows := list(run.rows()))]
    rows = [row for row in rows if row.epoch > 0 and row.step > 0 and row.train_seconds > 0]
    if rows:
        step_s, epoch_s = (
            statistics.median(row.train_seconds / getattr(row, unit) for row in rows)
            for unit in ("step", "epoch")
        )
        return Pace(step_s, epoch_s, f"from {len(rows)} run{'s' * (len(rows) > 1)} of this sweep")
    try:
        workload = read_json(sweep.calibration)["workload"]
        worker_s = float(workload["forward_s"]) + float(workload["backward_s"])
        step_s = config["world_size"] / config["nproc"] * worker_s + float(workload["update_s"])
    except (TypeError, KeyError, ValueError):
        return None
    return Pace(step_s, None, "from the calibration")
