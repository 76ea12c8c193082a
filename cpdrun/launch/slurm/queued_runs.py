"""Find the runs of a sweep in Slurm's queue, and remove them."""

import contextlib
from typing import Any

from cpdrun.launch.base import LaunchError
from cpdrun.launch.slurm.squeue import elements_in_queue, slurm
from cpdrun.record import SweepDir, read_json


def submitted_of(sweep: SweepDir) -> list[dict[str, Any]]:
    """Return the entries of slurm.json: a mapping with `job`, `script` and `runs` for each array.

    Damaged entries are skipped. An entry is also skipped if its `job` is not a number, because the jobs become
    arguments of squeue and scancel.
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
        The name of the run and the state in Slurm, such as PENDING, keyed by element (`job_index`).
    """
    submitted = submitted_of(sweep)
    runs = {f"{array['job']}_{i}": run for array in submitted for i, run in enumerate(array["runs"])}
    queue = elements_in_queue([array["job"] for array in submitted])
    return {element: (runs[element], state) for element, state in queue.items() if element in runs}


def withdraw(sweep: SweepDir, name: str | None = None) -> int:
    """Remove waiting elements of a sweep from the queue, and return their number.

    Args:
        sweep: The sweep.
        name: The name of the only run whose element is removed. By default, all waiting elements are removed.
    """
    waiting = [
        element
        for element, (run, state) in queued(sweep).items()
        if state == "PENDING" and name in (None, run)
    ]
    if waiting:
        # Without a name, all waiting elements are cancelled, so a filter by state is correct. For one element, it would
        # not be: scancel treats the waiting elements of an array as one job, and the filter would cancel all of them.
        only = ["--state=PENDING"] if name is None else []
        with contextlib.suppress(LaunchError):  # Some elements may have started in the meantime.
            slurm("scancel", *only, *waiting)
    return len(waiting)
