"""Ranks of runs with elastic=true are killed at random steps: what it costs, and that it changes no bit.

    nice python scripts/checks/soak_elastic.py                       # 20 kills: about three minutes on two cores
    python scripts/checks/soak_elastic.py --kills 100 --seed 3
    python scripts/checks/soak_elastic.py --overhead 5               # only: what a step costs more with elastic=true

Each case is trained undisturbed by one process that plays all workers, then by several ranks of which one is killed by
KILL, again and again. It must show: one attempt, the final weights of the undisturbed run, a line of lost.jsonl a kill.

Printed, a line a kill: the steps that had to be trained again; `lost`, seconds from the end of the last step that was
complete until it was complete again, as the run records it; `from the kill`, seconds until then as seen from here. The
exit status is 1 where something did not hold.
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

from cpdrun.record import RunDir, SweepDir

COMMON = [
    "exp=digits_bits",
    "format=e4m3",
    "seed=0",
    "device=cpu",
    "checkpoint.every_epochs=1000",
    "name=soaked",
]
CASES = {  # by name: what is typed, and the ranks
    "all_reduce, APS": (["aps=true"], 2),
    "all_reduce, error feedback": (["aps=true", "sync.error_feedback=true"], 4),
    "gossip_choco": (["sync=gossip_choco", "aps=false"], 2),
    "local steps": (["sync=local", "aps=true"], 2),
}
LOOK_S = 0.005
PATIENCE_S = 300.0


class BrokenError(Exception):
    """What did not hold."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=30, help="of a run: longer ones take more kills")
    parser.add_argument("--case", action="append", choices=CASES, help="only this one; may be given again")
    parser.add_argument(
        "--overhead", type=int, metavar="N", help="no kills: N pairs of undisturbed runs, side by side"
    )
    arguments = parser.parse_args()
    cases = {name: CASES[name] for name in arguments.case or CASES}
    with tempfile.TemporaryDirectory(prefix="soak-elastic-") as folder:
        if arguments.overhead:
            for name, (typed, ranks) in cases.items():
                overhead(
                    name,
                    [*typed, f"epochs={arguments.epochs}", f"nproc={ranks}"],
                    arguments.overhead,
                    Path(folder),
                )
            return 0
        return soak(cases, arguments, Path(folder))


def soak(cases: dict[str, tuple[list[str], int]], arguments: argparse.Namespace, folder: Path) -> int:
    dice, costs = random.Random(arguments.seed), []
    print(
        "| run | ranks | killed | at step | steps again | lost, s | from the kill, s |\n|---|---|---|---|---|---|---|"
    )
    for number, (name, (typed, ranks)) in enumerate(cases.items()):
        typed = [*typed, f"epochs={arguments.epochs}"]
        kills = arguments.kills // len(cases) + (number < arguments.kills % len(cases))
        calm = train(typed, folder / f"{number}-calm")
        calm.wait(PATIENCE_S)
        try:
            costs += strike(name, typed, ranks, kills, dice, folder / f"{number}-struck")
            check_same(run_of(folder / f"{number}-calm"), run_of(folder / f"{number}-struck"), kills)
        except BrokenError as error:
            print(f"{name}: {error}\n{(folder / f'{number}-struck' / 'log').read_text()[-2000:]}")
            return 1
    costs.sort()
    print(
        f"{len(costs)} kills: {statistics.median(costs):.2f} s of work lost in the median, {costs[-1]:.2f} s at most; "
        "every run ended in its first attempt with the weights of the undisturbed one"
    )
    return 0


def strike(
    name: str, typed: list[str], ranks: int, kills: int, dice: random.Random, folder: Path
) -> list[float]:
    """Kill a rank so many times, each when the run has recovered from the one before; the seconds each has cost."""
    process, costs = train([*typed, f"nproc={ranks}", "elastic=true"], folder), []
    try:
        run = wait_for(lambda: run_of(folder), process, "the run")
        wait_for(lambda: run.metrics.exists(), process, "the first epoch")
        for n in range(kills):
            time.sleep(dice.uniform(0.0, 1.0))
            rank = dice.randrange(ranks)
            victim = wait_for(lambda r=rank: process_of_rank(run, r), process, f"rank {rank}")
            os.kill(victim, signal.SIGKILL)
            killed = time.time()
            lost = wait_for(lambda n=n: run.attempts()[0].losses()[n:], process, "the step that was reached")[
                0
            ]
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
        raise BrokenError("its weights are not those of the undisturbed run")
    if len(struck.attempts()) != 1 or struck.attempts()[0].outcome().restarts != kills:
        raise BrokenError("it took another attempt, or another number of restarts than kills")


def overhead(name: str, typed: list[str], pairs: int, folder: Path) -> None:
    """The share that elastic=true adds to the time of training, each pair of runs one after the other."""
    ratios = []
    for pair in range(pairs):
        seconds = []
        for elastic in ("false", "true"):
            place = folder / f"{name}-{pair}-{elastic}".replace(" ", "-").replace(",", "")
            train([*typed, f"elastic={elastic}"], place).wait(PATIENCE_S)
            seconds.append(run_of(place).result().train_seconds)
        ratios.append(seconds[1] / seconds[0])
    print(
        f"{name}: training takes {statistics.median(ratios):.3f} times as long with elastic=true "
        f"({min(ratios):.3f} to {max(ratios):.3f} in {pairs} pairs)",
        flush=True,
    )


def train(typed: list[str], folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "cpdrun.cli", "sweep", *COMMON, *typed, f"results_dir={folder}"]
    folder.mkdir()
    with (folder / "log").open("w") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def run_of(folder: Path) -> RunDir | None:
    return next((run for run in SweepDir(folder / "soaked").runs() if run.attempts()), None)


def process_of_rank(run: RunDir, rank: int) -> int | None:
    """The process that writes the log of `rank`."""
    log = run.attempts()[0].rank_log(rank).resolve()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and (process / "fd" / "1").readlink() == log:
                return int(process.name)
        except OSError:
            continue
    return None


def wait_for(condition, process: subprocess.Popen, what: str):
    """Raises BrokenError where the sweep ends before, or it takes too long."""
    until = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        if process.poll() is not None or time.monotonic() > until:
            raise BrokenError(f"waited in vain for {what}")
        time.sleep(LOOK_S)
    return value


if __name__ == "__main__":
    sys.exit(main())
