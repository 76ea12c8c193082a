"""Recording of a script's metrics in its run, and requests to the script to stop.

    recorder = Recorder.from_environment()      # None if the script is not part of a run
    recorder.log({"epoch": 3, "val_loss": 0.41})
    if recorder.should_stop():                  # The run is preempted: save in recorder.checkpoint_dir and end.
        ...

Each call of `log` on rank 0 writes a row of metrics.jsonl. Every rank may call all methods.
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
    """Records the metrics of one rank of a script, and requests the script to stop."""

    def __init__(self, run_dir: Path, *, rank: int = 0, attempt_dir: Path | None = None) -> None:
        self.run, self.rank = RunDir(Path(run_dir)), rank
        self.attempt = self.run.last_attempt() if attempt_dir is None else Attempt(Path(attempt_dir))
        self._has_asked = False
        self._group: Any = None  # the process group in which ranks agree to stop

    @classmethod
    def from_environment(cls) -> "Recorder | None":
        """Return a recorder for the run and the rank in the environment variables, or None outside of a run."""
        if not (run_dir := os.environ.get(RUN_DIR)):
            return None
        attempt_dir = os.environ.get(ATTEMPT_DIR)
        rank = int(os.environ.get("RANK", "0"))
        return cls(Path(run_dir), rank=rank, attempt_dir=Path(attempt_dir) if attempt_dir else None)

    @property
    def checkpoint_dir(self) -> Path:
        """The folder for the script's checkpoints, which is created if necessary.

        Only this run uses the folder. It is kept when the run is preempted or fails, and is emptied when the run starts
        from the beginning again (--rerun).
        """
        folder = self.run.checkpoint.parent
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log(self, values: Mapping[str, Any]) -> None:
        """Record metrics.

        Args:
            values: Numbers or tensors of one element, by name. The names `epoch` and `step` are reserved for the
                progress of the script. NaN and infinities are recorded, too. A run whose metric is not finite has
                diverged.

        Raises:
            UserError: A value is not a number.
        """
        numbers: dict[str, Any] = {str(name): _number(str(name), value) for name, value in values.items()}
        heartbeat.beat()
        if self.rank != 0:
            return
        places = {name: numbers.pop(name) for name in PLACES if name in numbers}
        if places.get("step") is not None:
            places["step"] = int(places["step"])
        if numbers:
            self.run.append_row(LoggedRow(**places, metrics=numbers))

    def should_stop(self) -> bool:
        """Return whether the script should save and end, because the run was canceled or its machine is needed.

        If the script then ends with exit code 0 or 75, the run counts as preempted and is started again later. All
        ranks get the same answer. If torch.distributed has several ranks, all of them must call this method at the same
        step. A script that never calls this method receives SIGTERM instead.
        """
        heartbeat.beat()
        if not self._has_asked and self.attempt is not None:
            self._has_asked = True
            self.attempt.polls_stop.touch()
        stop = self._agree(self.run.preempt.exists())
        if stop and self.attempt is not None:
            self.attempt.stop_delivered.touch()
        return stop

    def _agree(self, mine: bool) -> bool:
        """Return whether `mine` is true on any rank. The ranks communicate with gloo, which never waits for a GPU."""
        import torch
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return mine
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        vote = torch.tensor([int(mine)], dtype=torch.int32)
        dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=self._group)
        return bool(vote.item())


def _number(name: str, value: Any) -> int | float:
    """Return the value as an int or a float. Integers stay integers."""
    try:
        if hasattr(value, "item"):  # The value is a tensor or an array of one element.
            value = value.item()
        if isinstance(value, int | float):
            return int(value) if isinstance(value, bool) else value
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"run.log({name}={value!r}): must be a number, or a tensor of one element") from None
