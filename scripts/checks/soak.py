"""Check that sweeps which are killed, interrupted and stopped at random give the same results as undisturbed ones.

This is the nightly test.

    python scripts/checks/soak.py                          # 200 signals, seed 0: about an hour on two cores
    python scripts/checks/soak.py --signals 10 --seed 3    # a few minutes
    python scripts/checks/soak.py --kills                  # only kill -9
    python scripts/checks/soak.py --script                 # runs of soak_script.py instead of the built-in loop
    python scripts/checks/soak.py --search 20              # then a search that is killed 20 times (soak_search.py)
    python scripts/checks/soak.py --fuzz 10000             # then 10,000 override strings and YAML files

A sweep of digits, or of a user's script, is trained without signals. Then sweeps of the same runs, alternately with 1
and 2 ranks, receive signals. Each signal is sent to the launcher, the warm process, an engine, an agent, a rank, or a
whole process group. The signals are KILL, INT, TERM or HUP (once or twice), and STOP with a later CONT. If the launcher
ends, it is started again. The test checks that

- all final weights and metrics are those of the undisturbed sweep,
- no launch fails that did not receive a signal,
- no run is finished twice,
- no process is left,
- no launcher prints a traceback,
- the sweep ends within --patience seconds.

The same seed selects the same signals, but the processes that receive them depend on the machine. Every signal is
printed. If a property does not hold, the script prints it and keeps the folder, and the exit status is 1.
"""

import argparse
import contextlib
import hashlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import soak_search
from soak_processes import BrokenError, find_roles, start, wait_until_alone

from cpdrun.record import Result, RunDir, SweepDir

RUNS = ["exp=digits_bits", "format=e4m3,e3m0", "aps=true,false", "seed=0,1", "epochs=6", "device=cpu"]
SCRIPT = Path(__file__).with_name("soak_script.py")
SCRIPT_RUNS = [
    f"script={SCRIPT}",
    "script_args=--seed {seed} --out {run_dir}/weights.pt",
    *("format=e4m3,e3m0", "aps=true,false", "seed=0,1", "world_size=2", "device=cpu"),
]
ROLES = ("launcher", "warm process", "engine", "agent", "rank", "group")
SIGNALS = ("KILL", "INT", "INT twice", "TERM", "TERM twice", "HUP", "HUP twice", "STOP")
KILL_SHARE = 0.4
SEARCH = [
    "exp=digits_search",
    "world_size=2",
    "batch_size=32",
    "epochs=2",
    "model.width=4",
    "search.tolerance=4",
    "device=cpu",
]
STARTING_S = (
    2.0  # the time before the first signal, so that not all signals reach a launcher that is still importing
)
PAUSE_S = (0.0, 0.6)  # the time between signals
TWICE_S = (0.0, 0.25)  # the time between two signals of the same kind
STOPPED_S = (0.05, 3.0)  # the time between STOP and CONT
AFTER_RANK_S = (0.0, 3.0)  # the time between the start of the first rank and a signal
WAIT_FOR_ROLE_S = 10.0
TRAINING_SHARE = 0.75  # with --kills, the share of signals that are sent only after a rank has started
SIGNALS_PER_SWEEP = 20  # the largest number of signals per sweep, so that sweeps with 1 and 2 ranks alternate
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\w[\w.]*)", re.MULTILINE)


@dataclass
class Soak:
    """Sweeps that receive signals, and their expected results.

    Attributes:
        folder: The folder of all sweeps.
        dice: The random generator that selects roles, signals and pauses.
        patience_s: The time after the last signal in which a sweep must end, in seconds.
        of_script: Whether the runs are those of a user's script.
        only_kills: Whether KILL is the only signal.
        expected: The weights and metrics of the undisturbed sweep, by run.
        struck: The number of signals that were sent so far.
    """

    folder: Path
    dice: random.Random
    patience_s: float
    of_script: bool = False
    only_kills: bool = False
    expected: dict[str, Any] = field(default_factory=dict)
    struck: int = 0

    def calm(self) -> None:
        """Train the undisturbed sweep."""
        launcher = self._launch("calm", nproc=1)
        if launcher.wait(self.patience_s) != 0:
            raise BrokenError(f"the undisturbed sweep ended with exit status {launcher.returncode}")
        self.expected = self._results("calm")
        print(f"undisturbed: {len(self.expected)} runs", flush=True)

    def storm(self, name: str, nproc: int, most: int) -> None:
        """Run one sweep from start to end and send signals to it, until `most` signals were sent in total."""
        finished: dict[str, int] = {}
        until = time.monotonic() + self.patience_s
        while True:
            launcher, struck_before = self._launch(name, nproc), self.struck
            time.sleep(self.dice.uniform(0, STARTING_S))
            while launcher.poll() is None:
                self._check_finished_once(name, finished)
                if self.struck < most:
                    time.sleep(self.dice.uniform(*PAUSE_S))
                    if self._strike(launcher, name):
                        until = time.monotonic() + self.patience_s
                else:
                    time.sleep(0.05)
                if time.monotonic() > until:
                    raise BrokenError(f"{name} did not end within {self.patience_s:.0f} s of the last signal")
            wait_until_alone(self.folder / name, self.patience_s)
            self._check_finished_once(name, finished)
            self._check_output(name)
            if launcher.returncode == 0:
                break
            status = f"exit status {launcher.returncode}"
            if self.struck == struck_before:
                raise BrokenError(f"{name}: a launch that received no signal ended with {status}")
            if time.monotonic() > until:
                raise BrokenError(f"{name} ends with {status} again and again")
        found = self._results(name)
        if found != self.expected:
            wrong = [run for run, weights in self.expected.items() if found.get(run) != weights]
            raise BrokenError(f"{name}: the weights or metrics of {', '.join(wrong)} differ")
        print(f"{name}, {nproc} ranks: {len(found)} equal runs after {self.struck} signals", flush=True)

    def _launch(self, name: str, nproc: int) -> subprocess.Popen:
        runs = SCRIPT_RUNS if self.of_script else RUNS
        words = [*runs, f"nproc={nproc}", f"results_dir={self.folder / name}"]
        return start("sweep", words, self.folder / f"{name}.log", start_new_session=True)

    def _strike(self, launcher: subprocess.Popen, name: str) -> bool:
        """Send a random signal to a random role. Return False if no process gets that role in time."""
        role, words = self.dice.choice(ROLES), self._choose_signal()
        gaps = [self.dice.uniform(*TWICE_S), self.dice.uniform(*STOPPED_S)]
        until = time.monotonic() + WAIT_FOR_ROLE_S
        if self.only_kills and self.dice.random() < TRAINING_SHARE:
            until = time.monotonic() + self.patience_s / 2
            while "rank" not in find_roles(launcher) and launcher.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(self.dice.uniform(*AFTER_RANK_S))
        while not (victims := find_roles(launcher).get("agent" if role == "group" else role, [])):
            if launcher.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(0.02)
        victims = [launcher.pid, *victims] if role == "group" else victims
        victim = self.dice.choice(victims)
        send = _signal_group if role == "group" else os.kill
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self.struck += 1
            print(f"  {self.struck:3d}  {name}  {words} to {role} {victim}", flush=True)
            first, *more = words.split()
            number = signal.Signals[f"SIG{first}"]
            send(victim, number)
            if more:
                time.sleep(gaps[0])
                send(victim, number)
            if number == signal.SIGSTOP:
                time.sleep(gaps[1])
                send(victim, signal.SIGCONT)
        return True

    def _choose_signal(self) -> str:
        is_kill = self.only_kills or self.dice.random() < KILL_SHARE
        return SIGNALS[0] if is_kill else self.dice.choice(SIGNALS[1:])

    def _check_finished_once(self, name: str, finished: dict[str, int]) -> None:
        """Check that no done.json was written a second time, and store the times at which new ones were written."""
        for run in self._sweep(name).runs():
            with contextlib.suppress(FileNotFoundError):
                when = run.done.stat().st_mtime_ns
                if finished.setdefault(run.name, when) != when:
                    raise BrokenError(f"{name}: {run.name} was finished twice")

    def _check_output(self, name: str) -> None:
        log = (self.folder / f"{name}.log").read_text(errors="replace")
        errors = set(TRACEBACK.findall(log)) - {"KeyboardInterrupt"}  # SIGINT raises a KeyboardInterrupt.
        if errors:
            raise BrokenError(f"{name}: {name}.log has a traceback of {', '.join(errors)}")

    def _sweep(self, name: str) -> SweepDir:
        return SweepDir(self.folder / name / (SCRIPT.stem if self.of_script else "digits_bits"))

    def _results(self, name: str) -> dict[str, Any]:
        """Return the weights and metrics of each run, or None for a run that is not finished.

        The names of runs do not include the hash, because the hash of a script's run depends on the number of ranks.
        """
        runs = {run.name.rpartition("-")[0]: run for run in self._sweep(name).runs()}
        return {
            short: (done := run.result()) and (_digest(run, done), done.metrics)
            for short, run in runs.items()
        }


def _digest(run: RunDir, done: Result) -> str | None:
    """Return the digest of the final weights, which a script saves itself."""
    file = run.path / "weights.pt"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else done.weights_sha256


def _signal_group(pid: int, number: int) -> None:
    os.killpg(os.getpgid(pid), number)


def fuzz(tries: int) -> int:
    """Run tests/config/test_fuzz*.py with `tries` random inputs per test, and return pytest's exit code."""
    tests = map(str, sorted((Path(__file__).parents[2] / "tests" / "config").glob("test_fuzz*.py")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "0", *tests]
    return subprocess.run(command, env={**os.environ, "CPDRUN_FUZZ": str(tries)}).returncode


def search(kills: int, seed: int, patience_s: float, folder: Path) -> str | None:
    """Return a description of the property that does not hold, or None."""
    try:
        answer = soak_search.soak(SEARCH, kills, seed, folder, patience_s)
        wait_until_alone(folder / "struck", patience_s)
        print(answer, flush=True)
    except BrokenError as error:
        print(f"BROKEN: {error} (--seed {seed}; {folder})", flush=True)
        return str(error)
    return None


def soak(run: Soak, signals: int, seed: int) -> str | None:
    """Return a description of the property that does not hold, or None."""
    try:
        run.calm()
        for number in itertools.count(1):
            run.storm(
                f"storm{number}", nproc=2 - number % 2, most=min(signals, run.struck + SIGNALS_PER_SWEEP)
            )
            if run.struck >= signals:
                return None
    except BrokenError as error:
        return f"{error} (signal {run.struck}, --seed {seed}; {run.folder})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--signals",
        "--blows",
        type=int,
        default=200,
        help="signals in total (default: 200; 0: skip the sweeps)",
    )
    add("--kills", action="store_true", help="send KILL only")
    add("--script", action="store_true", help="run a user's script instead of the built-in training loop")
    add("--search", type=int, default=0, metavar="N", help="then kill a search N times")
    add("--seed", type=int, default=0)
    add("--patience", type=float, default=300, help="seconds without a signal until a sweep must have ended")
    add("--folder", type=Path, help="folder of the sweeps (default: a temporary one)")
    add("--fuzz", type=int, default=0, metavar="N", help="then try N override strings and YAML files")
    arguments = parser.parse_args()
    folder = (arguments.folder or Path(tempfile.mkdtemp(prefix="cpdrun-soak-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    broken = []
    if arguments.signals:
        dice = random.Random(arguments.seed)
        run = Soak(folder, dice, arguments.patience, arguments.script, arguments.kills)
        error = soak(run, arguments.signals, arguments.seed)
        print(f"BROKEN: {error}" if error else f"{arguments.signals} signals changed nothing", flush=True)
        broken.append(error)
    if arguments.search:
        broken.append(search(arguments.search, arguments.seed, arguments.patience, folder))
    if arguments.fuzz:
        broken.append(fuzz(arguments.fuzz))
    return 1 if any(broken) else 0


if __name__ == "__main__":
    sys.exit(main())
