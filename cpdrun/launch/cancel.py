"""Stopping from another shell: running runs save and stop at their next step, waiting ones never start."""

from cpdrun.launch.slurm import executor as slurm
from cpdrun.record import RunDir, State, SweepDir, state_of


def cancel_run(run: RunDir) -> bool:
    """Ask one run to save and stop, or take it out of Slurm's queue; False where it neither runs nor waits there."""
    if not slurm.cancel_waiting(run.sweep, run.name) and state_of(run) is not State.RUNNING:
        return False
    run.preempt.touch()  # for one that waited it says why it never began
    return True


def cancel_sweep(sweep: SweepDir) -> tuple[int, int]:
    """Stop the launchers of `sweep`, take its waiting elements out of Slurm's queue, ask its runs to stop.

    Returns how many runs were asked and how many waiting elements were cancelled.
    """
    sweep.stop.touch()
    waiting = slurm.cancel_waiting(sweep)
    running = [run for run in sweep.runs() if state_of(run) is State.RUNNING]
    for run in running:
        run.preempt.touch()
    return len(running), waiting
