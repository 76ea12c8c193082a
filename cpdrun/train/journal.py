"""What the trainer writes into its run directory: metrics, progress, environment, the end.

Rank 0 alone writes.
"""

import json
import platform
import socket
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from cpdrun.record import RunDir, append_json_line, read_json_lines, write_json, write_text

STATUS_EVERY_S = 1.0
PACKAGES = ("cpdrun", "torch", "torchvision", "numpy", "hydra-core", "omegaconf")


class Journal:
    """The record of one attempt, as its ranks see it. On ranks other than 0 writing does nothing."""

    def __init__(self, run: RunDir, rank: int, epochs: int):
        self.run, self.writes, self.epochs = run, rank == 0, epochs
        self.started = time.time()
        self._status_written = 0.0

    def environment(self, device: torch.device) -> None:
        """env.json: versions, machine, device, and the commit of the folder the user works in."""
        if self.writes:
            write_json(self.run.env, environment(device))

    def restart_at(self, epoch: int) -> None:
        """Drop the metrics of epochs after `epoch`, which will be trained again."""
        if self.writes and self.run.metrics.exists():
            kept = [row for row in read_json_lines(self.run.metrics) if row.get("epoch", 0) <= epoch]
            write_text(self.run.metrics, "".join(json.dumps(row) + "\n" for row in kept))

    def epoch_done(self, row: dict[str, Any]) -> None:
        """One line of metrics.jsonl; status.json at most once a second."""
        if not self.writes:
            return
        append_json_line(self.run.metrics, row)
        now = time.time()
        if now - self._status_written >= STATUS_EVERY_S or row["epoch"] == self.epochs:
            self._status_written = now
            progress = {key: row[key] for key in ("epoch", "step", "test_accuracy")}
            write_json(self.run.status, {**progress, "epochs": self.epochs, "updated": now})

    def stop_requested(self) -> bool:
        return self.writes and self.run.preempt.exists()

    def done(self, result: dict[str, Any]) -> None:
        """done.json: from here on the run is finished."""
        if self.writes:
            write_json(self.run.done, {**result, "wall_seconds": time.time() - self.started})


def environment(device: torch.device) -> dict[str, Any]:
    """Where and with what a run was trained."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "custom_fp_backend": _backend(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "git_commit": _git_commit(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _backend() -> str:
    import custom_fp

    return custom_fp.backend()


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _git_commit() -> str | None:
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
