"""Writes the record of a run while it trains: metrics, progress, environment and result. Only rank 0 writes."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from cpdrun.record import (
    EpochRow,
    ExampleOutcomes,
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
from cpdrun.train.ranks.consensus import Request
from cpdrun.train.ranks.torch_settings import numerics_facts
from cpdrun.train.state import checkpoint, memory_checkpoint
from cpdrun.train.state.provenance import write_environment

STATUS_EVERY_S = 1.0


class Journal:
    """The record of one attempt, as one rank sees it. On ranks other than 0, its methods write nothing."""

    def __init__(self, run: RunDir, rank: int):
        self.run, self.writes = run, rank == 0
        self.run_name = run.path.resolve().name  # resolved, because the path may be `.`
        self.started = time.time()
        self._snapshots = memory_checkpoint.current() if self.writes else None
        self._status_written = 0.0
        self._progress: Progress | None = None

    def environment(
        self,
        device: torch.device,
        data: Any,
        config: Mapping[str, Any],
        products: Mapping[str, list[str]] | None,
    ) -> None:
        """Write env.json.

        It describes the versions, machine, device, dataset and code, and lists the products without precision rules.
        """
        if self.writes:
            write_environment(self.run, device, data, config, products)

    def resume(self, epoch: int, step: int) -> None:
        """Prepare the record for training from `epoch` completed epochs and `step` completed steps of the run."""
        self.drop_rows_after(epoch)
        if self._snapshots is not None and (board := self._snapshots.resume(step)).deaths:
            print(
                f"continues from step {step}. Before the restart, step {board.step} was reached", flush=True
            )

    def drop_rows_after(self, epoch: int) -> None:
        """Drop the metrics of epochs after `epoch`, which will be trained again."""
        if self.writes and self.run.metrics.exists():
            rows = [row for row in self.run.rows() if row.epoch <= epoch]
            write_text(self.run.metrics, "".join(json.dumps(row.as_json()) + "\n" for row in rows))

    def step_done(self, step: int) -> None:
        """Record that `step` steps are complete and, once all lost steps are repeated, how much work was lost."""
        if self._snapshots is None or (lost := self._snapshots.record_step(step)) is None:
            return
        if (attempt := self.run.last_attempt()) is not None:
            append_json_line(attempt.lost, lost.as_json())
        print(f"step {lost.step} is reached again: {lost.description}", flush=True)

    def save(self, state: dict[str, Any], began: float, *, on_disk: bool) -> None:
        """Save the state to disk, or to memory that survives the death of a rank.

        Args:
            state: The whole state of the run.
            began: The time.monotonic() at which its collection from the ranks began.
            on_disk: Whether to write a checkpoint file.
        """
        if on_disk:
            checkpoint.save(self.run.checkpoint, state, self.run_name)
            if self._snapshots is not None:
                self._snapshots.checkpoint_written()
        elif self._snapshots is not None:
            self._snapshots.save(state, began)

    def epoch_done(self, row: EpochRow, epochs: int) -> None:
        """Append a line to metrics.jsonl and to the log, and update status.json at most once per second.

        Args:
            row: The metrics of the epoch.
            epochs: Number of epochs of the run.
        """
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
        """Write the outcomes of the test examples in the last evaluation, if the task has such outcomes."""
        if not self.writes:
            return
        if outcomes is None:
            remove(self.run.example_outcomes)
        else:
            write_example_outcomes(self.run, outcomes)

    def request(self) -> Request:
        """Return this rank's request about what all ranks should do next."""
        if self.writes and self.run.preempt.exists():
            return Request.STOP
        is_due = self._snapshots is not None and self._snapshots.is_due()
        return Request.SNAPSHOT if is_due else Request.CONTINUE

    def done(self, result: Result, device: torch.device) -> None:
        """Write done.json, which marks the run as finished. On a GPU, update env.json with facts from training."""
        if self.writes:
            self._write_status()
            if device.type == "cuda":
                write_json(self.run.env, {**(read_object(self.run.env) or {}), **numerics_facts(device)})
            result = replace(result, wall_seconds=time.time() - self.started)
            write_json(self.run.done, result.as_json())

    def _write_status(self) -> None:
        if self._progress is not None:
            write_json(self.run.status, self._progress.as_json())
            self._progress = None
