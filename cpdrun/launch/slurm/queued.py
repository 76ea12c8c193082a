"""What of a sweep is in Slurm's queue, and how it is taken out."""

import contextlib

from cpdrun.launch.base import LaunchError
from cpdrun.launch.slurm.squeue import elements_in_queue, slurm
from cpdrun.record import SweepDir, read_json


def queued(sweep: SweepDir) -> dict[str, tuple[str, str]]:
    """Run name and state of each array element of `sweep` that is not over."""
    submitted = read_json(sweep.slurm)
    if not submitted:
        return {}
    runs = {f"{array['job']}_{i}": run for array in submitted for i, run in enumerate(array["runs"])}
    queue = elements_in_queue([array["job"] for array in submitted])
    return {element: (runs[element], state) for element, state in queue.items() if element in runs}


def elements_of(sweep: SweepDir) -> dict[str, str]:
    """The run of each array element of `sweep` that waits or runs: {element: run name}."""
    return {element: run for element, (run, _) in queued(sweep).items()}


def withdraw(sweep: SweepDir, name: str | None = None) -> int:
    """Take the elements of `sweep` that have not begun, or that of one run, out of the queue; how many they were."""
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
