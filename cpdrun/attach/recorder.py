"""What a script tells its run, and what the run tells the script.

    recorder = Recorder.from_environment()      # None where no run of cpdrun's is around the script
    recorder.log({"epoch": 3, "val_loss": 0.41})
    if recorder.should_stop():                  # preempted: save into recorder.checkpoint_dir and end
        ...

Rank 0 writes, a row of metrics.jsonl for each call. Every rank may call everything.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpdrun.attach.environment import ATTEMPT_DIR, RUN_DIR
from cpdrun.config.script import PLACES
from cpdrun.errors import UserError
from cpdrun.record import Attempt, LoggedRow, RunDir
from cpdrun.train.ranks import heartbeat


class Recorder:
    """The record of a run as one rank of its script sees it."""

    def __init__(self, run_dir: Path, *, rank: int = 0, attempt_dir: Path | None = None) -> None:
        self.run, self.rank = RunDir(Path(run_dir)), rank
        self.attempt = self.run.last_attempt() if attempt_dir is None else Attempt(Path(attempt_dir))
        self._asked = False
        self._votes: Any = None  # the process group in which ranks agree to stop

    @classmethod
    def from_environment(cls) -> "Recorder | None":
        """Of the run that CPDRUN_RUN_DIR names and the rank that RANK says; None outside of a run."""
        if not (run_dir := os.environ.get(RUN_DIR)):
            return None
        attempt_dir = os.environ.get(ATTEMPT_DIR)
        rank = int(os.environ.get("RANK", "0"))
        return cls(Path(run_dir), rank=rank, attempt_dir=Path(attempt_dir) if attempt_dir else None)

    @property
    def checkpoint_dir(self) -> Path:
        """A folder for the script's checkpoints, which is there: it outlives preemptions and failures of this run, is
        no other run's, and is emptied when the run is begun anew (--rerun)."""
        folder = self.run.checkpoint.parent
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log(self, values: Mapping[str, Any]) -> None:
        """Record metrics, numbers or tensors of one element, by their names; `epoch` and `step` among them say how
        far the script is, as it counts them. NaN and infinities are recorded as such: a run whose metric is not
        finite has diverged. Raises UserError for a value that is no number.
        """
        numbers = {str(name): _number(str(name), value) for name, value in values.items()}
        heartbeat.beat()
        if self.rank != 0:
            return
        places = {name: numbers.pop(name) for name in PLACES if name in numbers}
        if places.get("step") is not None:
            places["step"] = int(places["step"])
        if numbers:
            self.run.append_row(LoggedRow(**places, metrics=numbers))

    def should_stop(self) -> bool:
        """Whether the run is to save and end: it was cancelled, or its machine is wanted. Ending with exit code 0 or 75
        then counts as preempted, and the script is started again later.

        The same answer on all ranks: where torch.distributed has several, all of them must call it, at the same step.
        A script that never calls it gets SIGTERM instead.
        """
        heartbeat.beat()
        if not self._asked and self.attempt is not None:
            self._asked = True
            self.attempt.asks.touch()
        stop = self._agreed(self.run.preempt.exists())
        if stop and self.attempt is not None:
            self.attempt.told.touch()
        return stop

    def _agreed(self, mine: bool) -> bool:
        """Whether some rank says so. The ranks agree over gloo, which never waits for a GPU."""
        import torch
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return mine
        if self._votes is None:
            self._votes = dist.new_group(backend="gloo")
        vote = torch.tensor([int(mine)], dtype=torch.int32)
        dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=self._votes)
        return bool(vote.item())


def _number(name: str, value: Any) -> int | float:
    """`value` as a plain number; whole ones stay whole."""
    try:
        if hasattr(value, "item"):  # a tensor or array of one element
            value = value.item()
        if isinstance(value, int | float):
            return int(value) if isinstance(value, bool) else value
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"run.log({name}={value!r}): must be a number, or a tensor of one element") from None
