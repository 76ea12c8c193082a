"""What observing costs a run: CPU time with observe=N against none, both taking turns.

    python scripts/benchmarks/observation.py [EXPERIMENT ...] [--steps 24] [--repeats 3]

Of the first run of each experiment (its baseline, fp32) --steps steps are trained unobserved, and the same with every
step observed; a third run of 2 steps takes the start away. Each is a process of one thread, and of --repeats the least
CPU time counts, since what else a machine does only adds. Printed, of each experiment: ms of a step, what an observed
one costs more in such steps, and what 8 and 16 observed steps are of the experiment's own number of steps.
"""

import argparse
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
START = 2  # steps of a run that is all start


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", default=EXPERIMENTS, metavar="EXPERIMENT")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    print(
        "| experiment | steps | ms a step | an observed one costs more, in steps | observe=8 | observe=16 |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in given.experiments:
        print(_row(name, given.steps, given.repeats), flush=True)
    return 0


def _row(experiment: str, steps: int, repeats: int) -> str:
    first = plan([f"exp={experiment}", "format=fp32", "aps=false", "device=cpu"]).runs[0].config
    kinds = {"start": (START, 0), "plain": (steps, 0), "observed": (steps, steps)}
    spent: dict[str, float] = {}
    for _ in range(repeats):
        for kind, (length, observe) in kinds.items():
            found = _in_a_process(first | {"max_steps": length, "observe": observe, "epochs": 10**6})
            spent[kind] = min(spent.get(kind, float("inf")), found["cpu_s"])
    # `found` is of the observed run
    of_all = first["max_steps"] or first["epochs"] * found["steps_an_epoch"]
    step_s = (spent["plain"] - spent["start"]) / (steps - START)
    more = (spent["observed"] - spent["plain"]) / steps / step_s
    shares = " | ".join(f"{min(n, of_all) * more / of_all:.1%}" for n in (8, 16))
    return f"| {experiment} | {of_all:,} | {1e3 * step_s:.1f} | {more:.2f} | {shares} |"


def _in_a_process(config: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder) / "run")
        run.path.mkdir()
        run.config.write_text(yaml.safe_dump(config))
        child = mp.get_context("fork").Process(target=_train, args=(run,))
        child.start()
        child.join()
        if child.exitcode:
            print(f"error: training ended with exit code {child.exitcode}", file=sys.stderr)
            sys.exit(1)
        return json.loads((run.path / "spent.json").read_text())


def _train(run: RunDir) -> None:
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


if __name__ == "__main__":
    sys.exit(main())
