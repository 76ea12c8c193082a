"""Stopping from another shell: running runs save and stop at their next step, waiting ones never start."""

from cpdrun.launch import slurm
from cpdrun.record import RunDir, State, SweepDir, state_of


def cancel_run(run: RunDir) -> bool:
    """Ask one running run to save and stop; False where it does not run."""
    if state_of(run) is not State.RUNNING:
        return False
    run.preempt.touch()
    return True


def cancel_sweep(sweep: SweepDir) -> tuple[int, int]:
    """Stop the launchers of `sweep`, take its waiting elements out of Slurm's queue, ask its runs to stop.

    Returns how many runs were asked and how many waiting elements were cancelled.
    """
    sweep.stop.touch()
    waiting = slurm.cancel_waiting(sweep)
    return sum(cancel_run(run) for run in sweep.runs()), waiting


def cancellation(sweep: SweepDir) -> int | None:
    """A value that changes whenever `cpdrun cancel` was used on `sweep`."""
    try:
        return sweep.stop.stat().st_mtime_ns
    except FileNotFoundError:
        return None
