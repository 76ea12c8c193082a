"""Stop runs from another shell. Running ones save and stop at their next step, and waiting ones never start."""

from cpdrun.errors import writing
from cpdrun.launch.executors import schedulers
from cpdrun.record import RunDir, State, SweepDir, check_inside, state_of


def cancel_run(run: RunDir) -> bool:
    """Ask one run to save and stop, or take it out of a scheduler's queue.

    Returns:
        Whether the run was running or queued.

    Raises:
        LaunchError: A scheduler does not answer.
        CannotWriteError: The request cannot be written, for example because there is a link in its place.
    """
    waited = sum(scheduler.withdraw(run.sweep, run.name) for scheduler in schedulers())
    if not waited and state_of(run) is not State.RUNNING:
        return False
    _ask(run)  # For a run that was waiting, this records why it never began.
    return True


def cancel_sweep(sweep: SweepDir) -> tuple[int, int]:
    """Stop the launchers and workers of `sweep`, empty a scheduler's queue of its runs, and ask running runs to stop.

    Returns:
        The number of runs that were asked to stop, and the number that were queued.

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
