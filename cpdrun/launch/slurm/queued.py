"""Find the runs of a sweep in Slurm's queue, and remove them."""

import contextlib
from typing import Any

from cpdrun.launch.base import LaunchError
from cpdrun.launch.slurm.squeue import elements_in_queue, slurm
from cpdrun.record import SweepDir, read_json


def submitted_of(sweep: SweepDir) -> list[dict[str, Any]]:
    """Return what slurm.json says about each array: its `job`, `script` and `runs`.

    Damaged entries are skipped, and so are jobs that are no numbers: they would become arguments of squeue and scancel.
    """
    arrays = read_json(sweep.slurm)
    return [
        array
        for array in (arrays if isinstance(arrays, list) else [])
        if isinstance(array, dict)
        and isinstance(array.get("job"), str)
        and array["job"].isascii()
        and array["job"].isdecimal()
        and isinstance(array.get("runs"), list)
    ]


def queued(sweep: SweepDir) -> dict[str, tuple[str, str]]:
    """Return the run's name and the state of each array element of a sweep that has not ended."""
    submitted = submitted_of(sweep)
    runs = {f"{array['job']}_{i}": run for array in submitted for i, run in enumerate(array["runs"])}
    queue = elements_in_queue([array["job"] for array in submitted])
    return {element: (runs[element], state) for element, state in queue.items() if element in runs}


def withdraw(sweep: SweepDir, name: str | None = None) -> int:
    """Remove the waiting elements of a sweep, or that of one run, from the queue. Return their number."""
    waiting = [
        element
        for element, (run, state) in queued(sweep).items()
        if state == "PENDING" and name in (None, run)
    ]
    if waiting:
        # With a filter by state, scancel takes the waiting elements of an array for one job, and cancels them all.
        only = ["--state=PENDING"] if name is None else []
        with contextlib.suppress(LaunchError):  # some have begun since
            slurm("scancel", *only, *waiting)
    return len(waiting)
