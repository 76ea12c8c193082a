"""What the trainer writes into its run directory: metrics, progress, environment, the end.

Rank 0 alone writes.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from cpdrun.record import (
    EpochRow,
    ExampleOutcomes,
    Lost,
    Progress,
    Result,
    RunDir,
    append_json_line,
    read_object,
    remove,
    write_example_outcomes,
    write_json,
    write_text,
)
from cpdrun.train.ranks.torch_settings import numerics_facts
from cpdrun.train.ranks.vote import Wish
from cpdrun.train.state import checkpoint, kept
from cpdrun.train.state.provenance import write_environment

STATUS_EVERY_S = 1.0


class Journal:
    """The record of one attempt, as its ranks see it. On ranks other than 0 writing does nothing."""

    def __init__(self, run: RunDir, rank: int):
        self.run, self.writes = run, rank == 0
        self.run_name = run.path.resolve().name  # of `.` too
        self.started = time.time()
        self._kept = kept.of_this_run() if self.writes else None
        self._status_written = 0.0
        self._progress: Progress | None = None

    def environment(
        self,
        device: torch.device,
        data: Any,
        config: Mapping[str, Any],
        products: Mapping[str, list[str]] | None,
    ) -> None:
        """env.json: versions, machine, device, dataset, code, and which products an accumulator does not reach."""
        if self.writes:
            write_environment(self.run, device, data, config, products)

    def goes_on(self, epoch: int, step: int) -> None:
        """From there: drop the metrics of later epochs, which will be trained again. step: of the run."""
        self.restart_at(epoch)
        if self._kept is not None and (board := self._kept.goes_on(step)).deaths:
            print(f"goes on from step {step}; step {board.step} had been reached", flush=True)

    def restart_at(self, epoch: int) -> None:
        """Drop the metrics of epochs after `epoch`, which will be trained again."""
        if self.writes and self.run.metrics.exists():
            rows = [row for row in self.run.rows() if row.epoch <= epoch]
            write_text(self.run.metrics, "".join(json.dumps(row.as_json()) + "\n" for row in rows))

    def step_done(self, step: int) -> None:
        """So many steps of the run are complete."""
        if self._kept is not None and (lost := self._kept.stepped(step)) is not None:
            self._say_lost(lost)

    def _say_lost(self, lost: Lost) -> None:
        if (attempt := self.run.last_attempt()) is not None:
            append_json_line(attempt.lost, lost.as_json())
        print(f"step {lost.step} is reached again: {lost.description}", flush=True)

    def save(self, state: dict[str, Any], began: float, *, on_disk: bool) -> None:
        """A checkpoint, or what a rank that dies does not take along. began: of time.monotonic(), the gathering."""
        if on_disk:
            checkpoint.save(self.run.checkpoint, state, self.run_name)
            if self._kept is not None:
                self._kept.is_on_disk()
        elif self._kept is not None:
            self._kept.keep(state, began)

    def epoch_done(self, row: EpochRow, epochs: int) -> None:
        """One line of metrics.jsonl and of the log; status.json at most once a second. epochs: of the run."""
        if not self.writes:
            return
        append_json_line(self.run.metrics, row.as_json())
        shown = (f"{k} {v:.4g}" for k, v in row.metrics.items() if k.startswith(("train_loss", "test_")))
        print(f"epoch {row.epoch}/{epochs}: {', '.join(shown)}", flush=True)
        now = time.time()
        self._progress = Progress(row.epoch, row.step, row.metrics.get("test_accuracy"), epochs, updated=now)
        if now - self._status_written >= STATUS_EVERY_S or row.epoch == epochs:
            self._status_written = now
            self._write_status()

    def final_outcomes(self, outcomes: ExampleOutcomes | None) -> None:
        """Write which examples the last evaluation of the run answered right, if its task has such outcomes."""
        if not self.writes:
            return
        if outcomes is None:
            remove(self.run.example_outcomes)
        else:
            write_example_outcomes(self.run, outcomes)

    def wish(self) -> Wish:
        """What this rank would have all do."""
        if self.writes and self.run.preempt.exists():
            return Wish.STOP
        return Wish.KEEP if self._kept is not None and self._kept.is_due() else Wish.GO_ON

    def done(self, result: Result, device: torch.device) -> None:
        """Write done.json, after which the run is finished. env.json gets the facts that training has shown."""
        if self.writes:
            self._write_status()
            if device.type == "cuda":
                write_json(self.run.env, {**(read_object(self.run.env) or {}), **numerics_facts(device)})
            whole = replace(result, wall_seconds=time.time() - self.started)
            write_json(self.run.done, whole.as_json())

    def _write_status(self) -> None:
        if self._progress is not None:
            write_json(self.run.status, self._progress.as_json())
            self._progress = None
