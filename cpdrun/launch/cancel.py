"""Stop runs from another shell. Active runs save and stop at their next step, and waiting runs never start."""

from cpdrun.errors import writing
from cpdrun.launch.executors import schedulers
from cpdrun.record import RunDir, State, SweepDir, check_inside, state_of


def cancel_run(run: RunDir) -> bool:
    """Request a run to save and stop, or remove it from a scheduler's queue.

    Returns:
        Whether the run was running or queued.

    Raises:
        LaunchError: A scheduler does not answer.
        CannotWriteError: The request cannot be written, for example because there is a link in its place.
    """
    waited = sum(scheduler.withdraw(run.sweep, run.name) for scheduler in schedulers())
    if not waited and state_of(run) is not State.RUNNING:
        return False
    _ask(run)  # For a run that was waiting, the request records why it never began.
    return True


def cancel_sweep(sweep: SweepDir) -> tuple[int, int]:
    """Stop the launchers and workers of `sweep`, remove its runs from a scheduler's queue, and stop its active runs.

    Returns:
        The number of runs that were asked to stop, and the number of runs that were removed from a queue.

    Raises:
        LaunchError: A scheduler does not answer.
        CannotWriteError: A request cannot be written.
    """
    with writing(sweep.stop):
        check_inside(sweep.path, sweep.stop)
        sweep.stop.touch()
    waiting = sum(scheduler.withdraw(sweep) for scheduler in schedulers())
    running = [run for run in sweep.runs() if state_of(run) is State.RUNNING]
    for run in running:
        _ask(run)
    return len(running), waiting


def _ask(run: RunDir) -> None:
    with writing(run.preempt):
        check_inside(run.path, run.preempt)
        run.preempt.touch()
