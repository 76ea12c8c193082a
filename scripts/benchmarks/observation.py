"""Measure the CPU time that it costs to observe a run (observe=N).

    python scripts/benchmarks/observation.py [EXPERIMENT ...] [--steps 24] [--repeats 3]

For the baseline (fp32) of each experiment, `--steps` steps are trained without observation, and the same steps with
every step observed. A third run of two steps measures the startup time, which is subtracted. Each run is a process with
one thread. The three runs take turns, and the smallest CPU time of each counts, because other programs can only
increase it.

The columns are

- the milliseconds of a step,
- the additional time of an observed step, in units of unobserved steps,
- the additional time of 8 and of 16 observed steps, as a share of all steps of the experiment.

The script takes about five minutes. cpdrun/whatif chooses the number of observed steps based on the result.
"""

import json
import multiprocessing as mp
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from harness import Report, make_parser

from cpdrun.record import RunDir
from cpdrun.sweep import plan
from cpdrun.train.rank import run_rank
from cpdrun.whatif.collect.observation import Observation

EXPERIMENTS = (
    "digits_bits",
    "digits_workers",
    "fashion_bits",
    "resnet18_cifar10_bits_small",
    "transformer_bits_small",
    "llama_recipes_small",
)
START_STEPS = 2  # the number of steps of the run that measures the startup time


def measure(experiment: str, steps: int, repeats: int) -> tuple[str, ...]:
    """Return the row of an experiment."""
    first = plan([f"exp={experiment}", "format=fp32", "aps=false", "device=cpu"]).runs[0].config
    kinds = {"start": (START_STEPS, 0), "plain": (steps, 0), "observed": (steps, steps)}
    spent: dict[str, float] = {}
    for _ in range(repeats):
        for kind, (length, observe) in kinds.items():
            found = train_in_process(first | {"max_steps": length, "observe": observe, "epochs": 10**6})
            spent[kind] = min(spent.get(kind, float("inf")), found["cpu_s"])
    # `found` now contains the result of the observed run, which is the last of the three kinds.
    all_steps = first["max_steps"] or first["epochs"] * found["steps_an_epoch"]
    step_s = (spent["plain"] - spent["start"]) / (steps - START_STEPS)
    more = (spent["observed"] - spent["plain"]) / steps / step_s
    shares = [f"{min(n, all_steps) * more / all_steps:.1%}" for n in (8, 16)]
    return experiment, f"{all_steps:,}", f"{1e3 * step_s:.1f}", f"{more:.2f}", *shares


def train_in_process(config: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder) / "run")
        run.path.mkdir()
        run.config.write_text(yaml.safe_dump(config))
        child = mp.get_context("fork").Process(target=train, args=(run,))
        child.start()
        child.join()
        if child.exitcode:
            print(f"error: training ended with exit code {child.exitcode}", file=sys.stderr)
            sys.exit(1)
        return json.loads((run.path / "spent.json").read_text())


def train(run: RunDir) -> None:
    torch.set_num_threads(1)
    log = os.open(run.path / "log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    began = time.process_time()
    code = run_rank(str(run.path))
    found: dict[str, Any] = {"cpu_s": time.process_time() - began}
    if run.observed.is_file():
        found["steps_an_epoch"] = Observation.load(run.observed).about["steps_an_epoch"]
    (run.path / "spent.json").write_text(json.dumps(found))
    os._exit(code)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("experiments", nargs="*", default=EXPERIMENTS, metavar="EXPERIMENT")
    parser.add_argument("--steps", type=int, default=24, help="steps of a run (default: 24)")
    parser.add_argument("--repeats", type=int, default=3, help="number of runs of each kind (default: 3)")
    options = parser.parse_args()
    heads = (
        "experiment",
        "steps",
        "ms a step",
        "cost of observing a step, in steps",
        "observe=8",
        "observe=16",
    )
    with Report(options.output) as report:
        report.add_table(
            heads, (measure(name, options.steps, options.repeats) for name in options.experiments)
        )


if __name__ == "__main__":
    main()
