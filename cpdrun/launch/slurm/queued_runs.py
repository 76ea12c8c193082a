"""Find the runs of a sweep in Slurm's queue, and remove them."""

import contextlib
from typing import Any

from cpdrun.launch.base import LaunchError
from cpdrun.launch.slurm.squeue import elements_in_queue, slurm
from cpdrun.record import SweepDir, read_json


def submitted_of(sweep: SweepDir) -> list[dict[str, Any]]:
    """Return the entries of slurm.json: a mapping with `job`, `script` and `runs` for each submitted array.

    Damaged entries are skipped. An entry whose `job` is not a number is also skipped, because the job numbers are
    passed to squeue and scancel as arguments.
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
    """Return the array elements of a sweep that have not ended.

    Returns:
        A dictionary. The keys are elements (`job_index`), and the values are the name of the run and its state in
        Slurm, such as PENDING.
    """
    submitted = submitted_of(sweep)
    runs = {f"{array['job']}_{i}": run for array in submitted for i, run in enumerate(array["runs"])}
    queue = elements_in_queue([array["job"] for array in submitted])
    return {element: (runs[element], state) for element, state in queue.items() if element in runs}


def withdraw(sweep: SweepDir, name: str | None = None) -> int:
    """Remove waiting elements of a sweep from the queue, and return their number.

    Args:
        sweep: The sweep.
        name: The name of a run. If it is given, only the element of this run is removed, otherwise all waiting
            elements.
    """
    waiting = [
        element
        for element, (run, state) in queued(sweep).items()
        if state == "PENDING" and name in (None, run)
    ]
    if waiting:
        # Without a name, all waiting elements are canceled, so scancel can select them by their state. It
        # cannot do this for a single element, because it treats all waiting elements of an array as one job.
        only = ["--state=PENDING"] if name is None else []
        with contextlib.suppress(LaunchError):  # Some elements may have started in the meantime.
            slurm("scancel", *only, *waiting)
    return len(waiting)
