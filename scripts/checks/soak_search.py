"""A search that is killed again and again ends as if nothing had been; soak.py --search does it.

Ctrl-C stops it once, after the first run of its baseline, which decides where the search starts. Then the process that
was typed is killed, by KILL, at moments that a seeded generator draws: so many runs after its
start, as a further one begins, or ends, or a little later. It is typed again at once, while its engines and ranks
are still dying. It must show: the answer of an undisturbed search, the same runs with the same weights, all of them
in sweep.yaml, no run begun after it was done, none left undone; who calls it looks for processes that are left. One
run at a time: with several, which are asked for ahead of need hangs on which ends first.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpdrun.errors import INTERRUPTED
from cpdrun.launch.attempt.connection import MODULE_VARIABLE
from cpdrun.record import Ending, RunDir, SweepDir, read_manifest

NAME = "searched"
MOST_RUNS_BEFORE = 1  # that may end between a start and a kill
LITTLE_LATER_S = 1.0
LOOK_S = 0.01


class BrokenError(Exception):
    """What did not hold."""


@dataclass
class Search:
    """A search typed as `words` into a folder of its own."""

    folder: Path
    words: Sequence[str]
    patience_s: float = 300
    kills: int = 0
    _finished: dict[str, int] = field(default_factory=dict)  # when a run was done, by its name

    def start(self) -> subprocess.Popen:
        """The words typed; what it finds goes to its stdout as JSON."""
        command = [sys.executable, "-m", "cpdrun.cli", "search", *self.words, "--jobs", "1", "--json"]
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, f"results_dir={self.folder}", f"name={NAME}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={key: value for key, value in os.environ.items() if key != MODULE_VARIABLE},
                process_group=0,  # a terminal sends Ctrl-C to the whole group
            )

    def interrupt(self) -> None:
        """Start it, and press Ctrl-C when the first run of its baseline has ended. Raises BrokenError."""
        with self.start() as process:
            self._wait(process, self._done)
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=self.patience_s)
        if process.returncode != INTERRUPTED:
            raise BrokenError(f"Ctrl-C ended it with {process.returncode}: {self.folder / 'log'}")
        print(f"  interrupted, {len(self._done())} runs are done", flush=True)

    def kill(self, kills: int, dice: random.Random) -> None:
        """Start it, and kill it, so many times. Raises BrokenError where it is over before."""
        while self.kills < kills:
            moment, after = dice.choice(list(MOMENTS)), dice.randint(0, MOST_RUNS_BEFORE)
            later_s = dice.uniform(0, LITTLE_LATER_S)
            done, begun = len(self._done()), self._attempts()
            with self.start() as process:
                self._wait(process, lambda d=done, n=after: len(self._done()) >= d + n)
                self._wait(process, lambda m=moment, d=done, b=begun: MOMENTS[m](self, d, b))
                if moment == "a little later":
                    time.sleep(later_s)
                if process.poll() is not None:
                    raise BrokenError(f"the search ended after {self.kills} kills, before the next one")
                process.send_signal(signal.SIGKILL)
            self.kills += 1
            print(f"  {self.kills:3d}  killed: {moment}, {len(self._done())} runs are done", flush=True)

    def finish(self) -> dict[str, Any]:
        """Type it once more: what it finds, the runs that are done with their weights, and those of sweep.yaml. Raises
        BrokenError for a run that was done twice, begun when it was done, or left undone."""
        with self.start() as process:
            said, _ = process.communicate(timeout=self.patience_s)
        if process.returncode != 0:
            raise BrokenError(f"it ended with {process.returncode}: {self.folder / 'log'}")
        done = self._done()
        for run in done:
            self._check_once(run)
        if left := [run.name for run in self._runs() if run not in done]:
            raise BrokenError(f"runs that were begun and not done: {', '.join(left)}")
        found = json.loads(said)
        found.pop("sweep")
        weights = {run.name: run.result().weights_sha256 for run in done}
        return found | {"weights": weights, "listed": sorted(read_manifest(self._sweep)["runs"])}

    def _check_once(self, run: RunDir) -> None:
        attempts = run.attempts()
        outcomes = [outcome.status if (outcome := attempt.outcome()) else None for attempt in attempts]
        written = run.done.stat().st_mtime_ns
        if self._finished[run.name] != written or outcomes.count(Ending.FINISHED) > 1:
            raise BrokenError(f"{run.name} was done twice: {outcomes}")
        if attempts[-1].where.stat().st_mtime_ns > written:
            raise BrokenError(f"{run.name} was begun when it was done: {outcomes}")

    def _wait(self, process: subprocess.Popen, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + self.patience_s
        while process.poll() is None and not condition():
            if time.monotonic() > until:
                process.kill()
                raise BrokenError(f"waited {self.patience_s:.0f} s in vain: {self.folder / 'log'}")
            time.sleep(LOOK_S)

    def _done(self) -> list[RunDir]:
        done = [run for run in self._runs() if run.done.exists()]
        for run in done:
            self._finished.setdefault(run.name, run.done.stat().st_mtime_ns)
        return done

    def _attempts(self) -> int:
        return sum(len(run.attempts()) for run in self._runs())

    def _runs(self) -> list[RunDir]:
        return list(self._sweep.runs())

    @property
    def _sweep(self) -> SweepDir:
        return SweepDir(self.folder / NAME)


OF_A_CALL = ("summaries",)  # what one call launched, where all else is of the search


# By name: whether it has come, from how many runs were done and attempts begun when the search was started.
MOMENTS: dict[str, Callable[[Search, int, int], bool]] = {
    "a run begins": lambda search, done, begun: search._attempts() > begun,
    "a run is done": lambda search, done, begun: len(search._done()) > done,
    "a little later": lambda search, done, begun: search._attempts() > begun,
}


def soak(words: Sequence[str], kills: int, seed: int, folder: Path, patience_s: float = 300) -> str:
    """Run an undisturbed search, and one that is interrupted once and killed `kills` times.

    Returns:
        What was found, in a line.

    Raises:
        BrokenError: The two searches differ.
    """
    expected = Search(folder / "undisturbed", words, patience_s).finish()
    struck = Search(folder / "struck", words, patience_s)
    struck.interrupt()
    struck.kill(kills, random.Random(seed))
    found = struck.finish()
    for key, value in expected.items():
        if key not in OF_A_CALL and found[key] != value:
            raise BrokenError(f"{key}: {found[key]} in place of {value}")
    answers = " ".join(found["says"][:-1])
    return f"Ctrl-C and {kills} kills changed neither the answer nor one of {len(found['weights'])} runs: {answers}"
