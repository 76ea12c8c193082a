"""Kill ranks of runs with elastic=true, to check that results keep the same bits and to measure the lost work.

    nice python scripts/checks/soak_elastic.py                       # 20 kills: about three minutes on two cores
    python scripts/checks/soak_elastic.py --kills 100 --seed 3
    python scripts/checks/soak_elastic.py --overhead 5               # only the cost of elastic=true without kills

Each case is first trained without kills by one process that emulates all workers. It is then trained by several ranks,
one of which is killed again and again. The test checks that the run ends in its first attempt, with the final weights
of the run without kills, and with one line in lost.jsonl for each kill. Otherwise, the exit status is 1.

For each kill, the script prints three numbers: the number of steps that were trained again; `lost`, the time in seconds
between the end of the last complete step and the end of its repetition, as recorded by the run; and `from the kill`,
the time in seconds between the kill and the end of the repetition, as measured here. The result is in
results/reference/elastic.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from soak_processes import BrokenError, find_rank, start, wait_for

from cpdrun.record import RunDir, SweepDir

COMMON = [
    "exp=digits_bits",
    "format=e4m3",
    "seed=0",
    "device=cpu",
    "checkpoint.every_epochs=1000",
    "name=soaked",
]
CASES = {  # the overrides and the number of ranks of each case
    "all_reduce, APS": (["aps=true"], 2),
    "all_reduce, error feedback": (["aps=true", "sync.error_feedback=true"], 4),
    "gossip_choco": (["sync=gossip_choco", "aps=false"], 2),
    "local steps": (["sync=local", "aps=true"], 2),
}
PATIENCE_S = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="kills in total (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--epochs",
        type=int,
        default=30,
        help="number of epochs of a run (default: 30). A longer run is killed more often.",
    )
    parser.add_argument("--case", action="append", choices=CASES, help="run only this case; can be repeated")
    parser.add_argument(
        "--overhead", type=int, metavar="N", help="time N pairs of undisturbed runs instead of killing ranks"
    )
    arguments = parser.parse_args()
    cases = {name: CASES[name] for name in arguments.case or CASES}
    with tempfile.TemporaryDirectory(prefix="soak-elastic-") as folder:
        if not arguments.overhead:
            return soak(cases, arguments, Path(folder))
        for name, (overrides, ranks) in cases.items():
            overrides = [*overrides, f"epochs={arguments.epochs}", f"nproc={ranks}"]
            measure_overhead(name, overrides, arguments.overhead, Path(folder))
        return 0


def soak(cases: dict[str, tuple[list[str], int]], arguments: argparse.Namespace, folder: Path) -> int:
    dice, costs = random.Random(arguments.seed), []
    print(
        "| run | ranks | killed | at step | steps again | lost, s | from the kill, s |\n|---|---|---|---|---|---|---|"
    )
    for number, (name, (overrides, ranks)) in enumerate(cases.items()):
        overrides = [*overrides, f"epochs={arguments.epochs}"]
        kills = arguments.kills // len(cases) + (number < arguments.kills % len(cases))
        calm = train(overrides, folder / f"{number}-calm")
        calm.wait(PATIENCE_S)
        try:
            costs += strike(name, overrides, ranks, kills, dice, folder / f"{number}-struck")
            check_same(run_of(folder / f"{number}-calm"), run_of(folder / f"{number}-struck"), kills)
        except BrokenError as error:
            print(f"{name}: {error}\n{(folder / f'{number}-struck' / 'log').read_text()[-2000:]}")
            return 1
    costs.sort()
    print(
        f"{len(costs)} kills: {statistics.median(costs):.2f} s of work lost (median), {costs[-1]:.2f} s at most; "
        "every run ended in its first attempt with the weights of the undisturbed run"
    )
    return 0


def strike(
    name: str, overrides: list[str], ranks: int, kills: int, dice: random.Random, folder: Path
) -> list[float]:
    """Kill a rank this many times, each time after the run has recovered. Return the lost seconds for each kill."""
    process, costs = train([*overrides, f"nproc={ranks}", "elastic=true"], folder), []
    try:
        run = wait_for(lambda: run_of(folder), "the run", PATIENCE_S, process)
        wait_for(lambda: run.metrics.exists(), "the first epoch", PATIENCE_S, process)
        for n in range(kills):
            time.sleep(dice.uniform(0.0, 1.0))
            rank = dice.randrange(ranks)
            victim = wait_for(lambda r=rank: find_rank(run, r), f"rank {rank}", PATIENCE_S, process)
            os.kill(victim, signal.SIGKILL)
            killed = time.time()
            losses = wait_for(lambda n=n: run.attempts()[0].losses()[n:], "the recovery", PATIENCE_S, process)
            lost = losses[0]
            again_s = time.time() - killed
            print(
                f"| {name} | {ranks} | {lost.rank} | {lost.step} | {lost.steps} | {lost.seconds:.2f} | {again_s:.2f} |",
                flush=True,
            )
            costs.append(again_s)
        if process.wait(PATIENCE_S) != 0:
            raise BrokenError("the sweep ended with an error")
        return costs
    finally:
        process.kill()
        process.wait()


def check_same(calm: RunDir | None, struck: RunDir | None, kills: int) -> None:
    expected, found = calm and calm.result(), struck and struck.result()
    if expected is None or found is None:
        raise BrokenError("a run was not finished")
    if expected.weights_sha256 != found.weights_sha256:
        raise BrokenError("the weights differ from those of the undisturbed run")
    if len(struck.attempts()) != 1 or struck.attempts()[0].outcome().restarts != kills:
        raise BrokenError("the run had a second attempt, or the numbers of restarts and kills differ")


def measure_overhead(name: str, overrides: list[str], pairs: int, folder: Path) -> None:
    """Print the ratio of the training times with and without elastic=true, from pairs of consecutive runs."""
    ratios = []
    for pair in range(pairs):
        seconds = []
        for elastic in ("false", "true"):
            place = folder / f"{name}-{pair}-{elastic}".replace(" ", "-").replace(",", "")
            train([*overrides, f"elastic={elastic}"], place).wait(PATIENCE_S)
            seconds.append(run_of(place).result().train_seconds)
        ratios.append(seconds[1] / seconds[0])
    print(
        f"{name}: training takes {statistics.median(ratios):.3f} times as long with elastic=true "
        f"({min(ratios):.3f} to {max(ratios):.3f} in {pairs} pairs)",
        flush=True,
    )


def train(overrides: list[str], folder: Path) -> subprocess.Popen:
    return start("sweep", [*COMMON, *overrides, f"results_dir={folder}"], folder / "log")


def run_of(folder: Path) -> RunDir | None:
    return next((run for run in SweepDir(folder / "soaked").runs() if run.attempts()), None)


if __name__ == "__main__":
    sys.exit(main())
