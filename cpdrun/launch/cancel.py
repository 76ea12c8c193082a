"""Stopping from another shell: running runs save and stop at their next step, waiting ones never start."""

from cpdrun.errors import writing
from cpdrun.launch.executors import schedulers
from cpdrun.record import RunDir, State, SweepDir, state_of


def cancel_run(run: RunDir) -> bool:
    """Ask one run to save and stop, or take it out of a scheduler's queue; False where it neither runs nor waits there.

    Raises LaunchError for a scheduler that does not answer.
    """
    waited = sum(scheduler.withdraw(run.sweep, run.name) for scheduler in schedulers())
    if not waited and state_of(run) is not State.RUNNING:
        return False
    with writing(run.preempt):
        run.preempt.touch()  # for one that waited it says why it never began
    return True


def cancel_sweep(sweep: SweepDir) -> tuple[int, int]:
    """Stop the launchers and workers of `sweep`, take what waits out of a scheduler's queue, ask its runs to stop.

    Returns how many runs were asked and how many waited. Raises as `cancel_run`.
    """
    with writing(sweep.stop):
        sweep.stop.touch()
        waiting = sum(scheduler.withdraw(sweep) for scheduler in schedulers())
        running = [run for run in sweep.runs() if state_of(run) is State.RUNNING]
        for run in running:
            run.preempt.touch()
    return len(running), waiting
