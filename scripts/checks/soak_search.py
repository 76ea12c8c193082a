"""Check that a search which is killed repeatedly has the same result as an undisturbed search.

`soak.py --search N` runs this test. Ctrl-C interrupts the search once, after the first run of its baseline, which
determines the start of the search. Then the process of the command is killed at random moments: when a further run
begins or ends, or a little later. The command is started again immediately, while the engines and ranks of the killed
command are still ending. The test checks that

- the answer is that of an undisturbed search,
- the runs are the same, with the same weights, and all of them are in sweep.yaml,
- no run was started after it was finished, and none is left unfinished.

The caller checks that no process is left. Only one run is trained at a time. With several simultaneous runs, the order
in which they end would determine which further runs are started early.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak_processes import BrokenError, start

from cpdrun.errors import INTERRUPTED
from cpdrun.record import Ending, RunDir, SweepDir, read_manifest

NAME = "searched"
MOST_RUNS_BEFORE_KILL = 1  # the largest number of runs that may end between a start and a kill
LITTLE_LATER_S = 1.0
POLL_S = 0.01


@dataclass
class Search:
    """A search with the arguments `words`, in a separate folder."""

    folder: Path
    words: Sequence[str]
    patience_s: float = 300
    kills: int = 0
    _finished: dict[str, int] = field(default_factory=dict)  # when each run was finished, by name

    def start(self) -> subprocess.Popen:
        """Start the command, which prints its result to stdout as JSON."""
        words = [*self.words, "--jobs", "1", "--json", f"results_dir={self.folder}", f"name={NAME}"]
        return start(
            "search",
            words,
            self.folder / "log",
            stdout=subprocess.PIPE,
            process_group=0,  # A terminal sends Ctrl-C to a whole process group, so the search needs its own.
        )

    def interrupt(self) -> None:
        """Start the search, and press Ctrl-C when the first run of its baseline has ended."""
        with self.start() as process:
            self._wait(process, self._done)
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=self.patience_s)
        if process.returncode != INTERRUPTED:
            raise BrokenError(f"after Ctrl-C, the exit status is {process.returncode}: {self.folder / 'log'}")
        print(f"  interrupted, {len(self._done())} runs are finished", flush=True)

    def kill(self, kills: int, dice: random.Random) -> None:
        """Start and kill the search this many times. Raise BrokenError if it ends before that."""
        while self.kills < kills:
            moment, after = dice.choice(list(MOMENTS)), dice.randint(0, MOST_RUNS_BEFORE_KILL)
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
            print(f"  {self.kills:3d}  killed: {moment}, {len(self._done())} runs are finished", flush=True)

    def finish(self) -> dict[str, Any]:
        """Run the search to its end.

        Returns:
            The result of the search, with the weights of its finished runs and the runs in sweep.yaml.

        Raises:
            BrokenError: A run was finished twice, started after it was finished, or left unfinished.
        """
        with self.start() as process:
            output, _ = process.communicate(timeout=self.patience_s)
        if process.returncode != 0:
            raise BrokenError(f"the exit status is {process.returncode}: {self.folder / 'log'}")
        done = self._done()
        for run in done:
            self._check_once(run)
        if left := [run.name for run in self._runs() if run not in done]:
            raise BrokenError(f"runs that were started but not finished: {', '.join(left)}")
        found = json.loads(output)
        found.pop("sweep")
        weights = {run.name: run.result().weights_sha256 for run in done}
        return found | {"weights": weights, "listed": sorted(read_manifest(self._sweep)["runs"])}

    def _check_once(self, run: RunDir) -> None:
        attempts = run.attempts()
        outcomes = [outcome.status if (outcome := attempt.outcome()) else None for attempt in attempts]
        written = run.done.stat().st_mtime_ns
        if self._finished[run.name] != written or outcomes.count(Ending.FINISHED) > 1:
            raise BrokenError(f"{run.name} was finished twice: {outcomes}")
        if attempts[-1].where.stat().st_mtime_ns > written:
            raise BrokenError(f"{run.name} was started after it was finished: {outcomes}")

    def _wait(self, process: subprocess.Popen, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + self.patience_s
        while process.poll() is None and not condition():
            if time.monotonic() > until:
                process.kill()
                raise BrokenError(
                    f"the search made no progress for {self.patience_s:.0f} s: {self.folder / 'log'}"
                )
            time.sleep(POLL_S)

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


CALL_KEYS = (
    "summaries",
)  # the keys that describe the runs of a single call. All other keys describe the search.


# Functions that return whether the moment of a kill has come. Their arguments are the search, the number of finished
# runs and the number of attempts when the search was started.
MOMENTS: dict[str, Callable[[Search, int, int], bool]] = {
    "a run begins": lambda search, done, begun: search._attempts() > begun,
    "a run ends": lambda search, done, begun: len(search._done()) > done,
    "a little later": lambda search, done, begun: search._attempts() > begun,
}


def soak(words: Sequence[str], kills: int, seed: int, folder: Path, patience_s: float = 300) -> str:
    """Run an undisturbed search, and a search that is interrupted once and killed `kills` times.

    Returns:
        The answer, in one line.

    Raises:
        BrokenError: The two searches differ.
    """
    expected = Search(folder / "undisturbed", words, patience_s).finish()
    struck = Search(folder / "struck", words, patience_s)
    struck.interrupt()
    struck.kill(kills, random.Random(seed))
    found = struck.finish()
    for key, value in expected.items():
        if key not in CALL_KEYS and found[key] != value:
            raise BrokenError(f"{key} is {found[key]} instead of {value}")
    answers = " ".join(found["says"][:-1])
    return f"Ctrl-C and {kills} kills changed neither the answer nor one of {len(found['weights'])} runs: {answers}"
