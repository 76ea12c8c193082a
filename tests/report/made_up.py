"""Run directories on disk, written as the launcher and the trainer write them."""

import random
from pathlib import Path
from typing import Any

import yaml

from cpdrun.record import RunDir, SweepDir, append_json_line, write_json, write_text

CONFIG: dict[str, Any] = {
    "exp": "digits_bits",
    "name": "digits_bits",
    "results_dir": "results",
    "format": "fp32",
    "aps": False,
    "world_size": 8,
    "seed": 0,
    "nproc": 1,
    "threads": 1,
    "device": "cpu",
    "epochs": 3,
    "batch_size": 8,
    "model": {"_target_": "cpdrun.models.convnet.ConvNet", "width": 16},
    "optim": {"_target_": "cpdrun.optim.sgd.SGD", "lr": 0.1, "betas": [0.9, 0.99]},
    "scaling": {"_target_": "cpdrun.comm.sums.scaling.aps.APS"},
    "launcher": {"kind": "local", "jobs": 2},
}


class Sweep:
    """A sweep under construction: `add` writes one run directory."""

    def __init__(self, path: Path):
        self.dir = SweepDir(path)

    def add(
        self,
        format: str = "fp32",
        *,
        aps: bool = False,
        seed: int = 0,
        accuracy: float | None = 0.98,
        status: str | None = "finished",
        outcome: str | None = None,
        wire_bytes: int | None = None,
        rows: list[dict[str, Any]] | None = None,
        env: dict[str, Any] | None = None,
        name: str | None = None,
        metrics: dict[str, Any] | None = None,
        done: dict[str, Any] | None = None,
        **config: Any,
    ) -> RunDir:
        """`status` None: not finished; `outcome`: how its one attempt ended; `done`: more of done.json."""
        full = CONFIG | {"name": self.dir.name, "format": format, "aps": aps, "seed": seed} | config
        run = self.dir.run(name or f"run-{len(list(self.dir.runs())):05d}")
        run.path.mkdir(parents=True)
        write_text(run.config, yaml.dump(full, Dumper=yaml.CSafeDumper, sort_keys=False))
        for row in rows or []:
            append_json_line(run.metrics, row)
        if env is not None:
            write_json(run.env, env)
        if outcome is not None:
            write_json(run.new_attempt().exit, {"outcome": outcome, "exit_code": 1, "reason": "it fell over"})
        if status is not None:
            record = {
                "status": status,
                "metrics": metrics or {"test_accuracy": accuracy, "test_loss": 0.1, "train_loss": 0.05},
                "wall_seconds": 3.0,
                "train_seconds": 2.5,
            }
            if wire_bytes is not None:
                record["wire"] = {"bytes_per_step_sent": wire_bytes, "bytes_per_step_real_worker": wire_bytes}
            write_json(run.done, record | (done or {}))
        return run


# What the prototype measured on digits, 8 workers (means; each seed scatters around them by 0.2 points).
DIGITS = {
    ("fp32", False): 0.989,
    ("e5m2", False): 0.986,
    ("e5m2", True): 0.988,
    ("e4m3", False): 0.987,
    ("e4m3", True): 0.989,
    ("e3m4", False): 0.112,
    ("e3m4", True): 0.988,
    ("e3m2", False): 0.110,
    ("e3m2", True): 0.987,
    ("e4m1", False): 0.972,
    ("e4m1", True): 0.986,
    ("e3m0", False): 0.090,
    ("e3m0", True): 0.984,
}


def fill_digits(sweep: Sweep, seeds: int = 3, **config: Any) -> Sweep:
    scatter = random.Random(0)
    for (format, aps), mean in DIGITS.items():
        for seed in range(seeds):
            sweep.add(format, aps=aps, seed=seed, accuracy=mean + scatter.gauss(0, 0.002), **config)
    return sweep
