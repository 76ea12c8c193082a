"""The nightly test: sweeps that are killed, signalled and stopped at random end as if nothing had been.

    python scripts/checks/soak.py                          # 200 blows, seed 0: about an hour on two cores
    python scripts/checks/soak.py --blows 10 --seed 3      # a look at it
    python scripts/checks/soak.py --kills                  # only by kill -9
    python scripts/checks/soak.py --script                 # runs of soak_script.py instead of the built-in loop
    python scripts/checks/soak.py --search 20              # then a search that is killed so often: soak_search.py
    python scripts/checks/soak.py --fuzz 10000             # then that many override strings and yaml files

A sweep of digits, or of a user's script, is trained undisturbed. Then sweeps of the same runs, with 1 and with 2 ranks
in turn, are struck: a launcher, warm process, engine, agent, rank, or a whole group; by KILL, by INT, TERM or HUP once
or twice, or by STOP and later CONT. A launcher that ended is started again. It must show: every final weight and metric
as undisturbed, no failure of a launch that was not struck, no run finished twice, no process left, no traceback of a
launcher, an end within --patience seconds. The same seed chooses the same blows; what they meet depends on the machine.
Every blow is printed; what broke is named, its folder kept, and the exit status is 1.
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
from soak_search import BrokenError

from cpdrun.record import Result, RunDir, SweepDir

RUNS = ["exp=digits_bits", "format=e4m3,e3m0", "aps=true,false", "seed=0,1", "epochs=6", "device=cpu"]
SCRIPT = Path(__file__).with_name("soak_script.py")
SCRIPT_RUNS = [
    f"script={SCRIPT}",
    "script_args=--seed {seed} --out {run_dir}/weights.pt",
    *("format=e4m3,e3m0", "aps=true,false", "seed=0,1", "world_size=2", "device=cpu"),
]
ROLES = ("launcher", "warm process", "engine", "agent", "rank", "group")
BLOWS = ("KILL", "INT", "INT twice", "TERM", "TERM twice", "HUP", "HUP twice", "STOP")
KILL_SHARE = 0.4
SEARCHED = [
    "exp=digits_search",
    "world_size=2",
    "batch_size=32",
    "epochs=2",
    "model.width=4",
    "search.tolerance=4",
    "device=cpu",
]
STARTING_S = 2.0  # before the first blow, so that not all fall on a launcher that imports
PAUSE_S = (0.0, 0.6)  # between blows
TWICE_S = (0.0, 0.25)
STOPPED_S = (0.05, 3.0)
LATER_S = (0.0, 3.0)  # after the first rank
WAIT_FOR_A_ROLE_S = 10.0
TRAINING_SHARE = 0.75  # of kills alone: those that wait until some rank is there
MOST_A_STORM = 20  # so that 1 and 2 ranks come in turn
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\w[\w.]*)", re.MULTILINE)


@dataclass
class Soak:
    folder: Path
    dice: random.Random
    patience_s: float
    of_script: bool = False
    only_kills: bool = False
    expected: dict[str, Any] = field(default_factory=dict)
    struck: int = 0

    def calm(self) -> None:
        """The weights that every storm must end with."""
        launcher = self._launch("calm", nproc=1)
        if launcher.wait(self.patience_s) != 0:
            raise BrokenError(f"the undisturbed sweep ended with {launcher.returncode}")
        self.expected = self._weights("calm")
        print(f"undisturbed: {len(self.expected)} runs", flush=True)

    def storm(self, name: str, nproc: int, most: int) -> None:
        """One sweep from its start to its end, struck at most until `most` blows have fallen in all."""
        finished: dict[str, int] = {}
        until = time.monotonic() + self.patience_s
        while True:
            launcher, struck_before = self._launch(name, nproc), self.struck
            time.sleep(self.dice.uniform(0, STARTING_S))
            while launcher.poll() is None:
                self._look(name, finished)
                if self.struck < most:
                    time.sleep(self.dice.uniform(*PAUSE_S))
                    if self._strike(launcher, name):
                        until = time.monotonic() + self.patience_s
                else:
                    time.sleep(0.05)
                if time.monotonic() > until:
                    raise BrokenError(f"{name}: no end {self.patience_s:.0f} s after the last blow")
            wait_until_alone(self.folder / name, self.patience_s)
            self._look(name, finished)
            self._check_output(name)
            if launcher.returncode == 0:
                break
            if self.struck == struck_before:
                raise BrokenError(f"{name}: a launch that nobody struck ended with {launcher.returncode}")
            if time.monotonic() > until:
                raise BrokenError(f"{name}: ends with {launcher.returncode} again and again")
        found = self._weights(name)
        if found != self.expected:
            wrong = [run for run, weights in self.expected.items() if found.get(run) != weights]
            raise BrokenError(f"{name}: other weights in {', '.join(wrong)}")
        print(
            f"{name}, {nproc} ranks: {len(found)} runs as undisturbed; {self.struck} blows so far", flush=True
        )

    def _launch(self, name: str, nproc: int) -> subprocess.Popen:
        runs = SCRIPT_RUNS if self.of_script else RUNS
        command = [sys.executable, "-m", "cpdrun.cli", "sweep", *runs, f"nproc={nproc}"]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, f"results_dir={self.folder / name}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _strike(self, launcher: subprocess.Popen, name: str) -> bool:
        """One blow, as soon as somebody has the role that was drawn; none where nobody comes to have it."""
        role, blow = self.dice.choice(ROLES), self._blow()
        gaps = [self.dice.uniform(*TWICE_S), self.dice.uniform(*STOPPED_S)]
        until = time.monotonic() + WAIT_FOR_A_ROLE_S
        if self.only_kills and self.dice.random() < TRAINING_SHARE:
            until = time.monotonic() + self.patience_s / 2
            while "rank" not in roles(launcher) and launcher.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(self.dice.uniform(*LATER_S))
        while not (victims := roles(launcher).get("agent" if role == "group" else role, [])):
            if launcher.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(0.02)
        victims = [launcher.pid, *victims] if role == "group" else victims
        victim = self.dice.choice(victims)
        send = _to_group if role == "group" else os.kill
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self.struck += 1
            print(f"  {self.struck:3d}  {name}  {blow} to {role} {victim}", flush=True)
            first, *more = blow.split()
            number = signal.Signals[f"SIG{first}"]
            send(victim, number)
            if more:
                time.sleep(gaps[0])
                send(victim, number)
            if number == signal.SIGSTOP:
                time.sleep(gaps[1])
                send(victim, signal.SIGCONT)
        return True

    def _blow(self) -> str:
        is_kill = self.only_kills or self.dice.random() < KILL_SHARE
        return BLOWS[0] if is_kill else self.dice.choice(BLOWS[1:])

    def _look(self, name: str, finished: dict[str, int]) -> None:
        """A done.json, once there, is never written again."""
        for run in self._sweep(name).runs():
            with contextlib.suppress(FileNotFoundError):
                when = run.done.stat().st_mtime_ns
                if finished.setdefault(run.name, when) != when:
                    raise BrokenError(f"{name}: {run.name} was finished twice")

    def _check_output(self, name: str) -> None:
        said = (self.folder / f"{name}.log").read_text(errors="replace")
        ends = set(TRACEBACK.findall(said)) - {
            "KeyboardInterrupt"
        }  # which is what INT to one process alone gives
        if ends:
            raise BrokenError(f"{name}: a traceback of {', '.join(ends)} in {name}.log")

    def _sweep(self, name: str) -> SweepDir:
        return SweepDir(self.folder / name / (SCRIPT.stem if self.of_script else "digits_bits"))

    def _weights(self, name: str) -> dict[str, Any]:
        """The final weights and metrics of each run, None for one that is not done; by the run's name without its
        digest, which for a script depends on the number of ranks."""
        runs = {run.name.rpartition("-")[0]: run for run in self._sweep(name).runs()}
        return {
            short: (done := run.result()) and (_digest(run, done), done.metrics)
            for short, run in runs.items()
        }


def _digest(run: RunDir, done: Result) -> str | None:
    """Of the final weights, which a script saves itself."""
    file = run.path / "weights.pt"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else done.weights_sha256


def _to_group(pid: int, number: int) -> None:
    os.killpg(os.getpgid(pid), number)


def roles(launcher: subprocess.Popen) -> dict[str, list[int]]:
    """The processes of a sweep by what they are, from their command lines and who started whom."""
    parents, lines = {}, {}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                state, parent = (process / "stat").read_text().rsplit(")", 1)[1].split()[:2]
                if state != "Z":
                    pid = int(process.name)
                    parents[pid] = int(parent)
                    lines[pid] = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    found: dict[str, list[int]] = {"launcher": [launcher.pid]}
    above = {launcher.pid: "launcher"}
    for pid in _down_from(launcher.pid, parents):
        line = " ".join(lines[pid])
        if "cpdrun.launch.attempt.agent" in line:
            role = "agent"
        elif above[parents[pid]] == "launcher":
            role = "warm process"
        else:  # forked from the warm process, or started cold by an agent; ranks are forked from an engine
            role = "engine" if above[parents[pid]] in ("warm process", "agent") else "rank"
        above[pid] = role
        found.setdefault(role, []).append(pid)
    return found


def _down_from(root: int, parents: dict[int, int]) -> list[int]:
    """The descendants of `root`, parents before children."""
    found = [root]
    for pid in found:
        found += sorted(child for child, parent in parents.items() if parent == pid)
    return found[1:]


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line or open files name something under `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                names = [(process / "cmdline").read_bytes().decode(errors="replace")]
                names += [str(entry.readlink()) for entry in (process / "fd").iterdir()]
                if any(f"{folder}/" in name or name.endswith(str(folder)) for name in names):
                    found.append(int(process.name))
    return found


def wait_until_alone(folder: Path, patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while left := processes_of(folder):
        if time.monotonic() > until:
            raise BrokenError(f"{folder.name}: processes left: {left}")
        time.sleep(0.1)


def fuzz(tries: int) -> int:
    """tests/config/test_fuzz*.py with as many tries."""
    tests = map(str, sorted((Path(__file__).parents[2] / "tests" / "config").glob("test_fuzz*.py")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "0", *tests]
    return subprocess.run(command, env={**os.environ, "CPDRUN_FUZZ": str(tries)}).returncode


def search(kills: int, seed: int, patience_s: float, folder: Path) -> str | None:
    """What broke, or None."""
    try:
        said = soak_search.soak(SEARCHED, kills, seed, folder, patience_s)
        wait_until_alone(folder / "struck", patience_s)
        print(said, flush=True)
    except BrokenError as error:
        print(f"BROKEN: {error} (--seed {seed}; {folder})", flush=True)
        return str(error)
    return None


def soak(run: Soak, blows: int, seed: int) -> str | None:
    """Return what broke, or None."""
    try:
        run.calm()
        for number in itertools.count(1):
            run.storm(f"storm{number}", nproc=2 - number % 2, most=min(blows, run.struck + MOST_A_STORM))
            if run.struck >= blows:
                return None
    except BrokenError as error:
        return f"{error} (blow {run.struck}, --seed {seed}; {run.folder})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--blows", type=int, default=200, help="kills and signals in all (default 200; 0: none)"
    )
    parser.add_argument("--kills", action="store_true", help="kill -9 alone, and no other signal")
    parser.add_argument("--script", action="store_true", help="runs of a user's script")
    parser.add_argument("--search", type=int, default=0, metavar="N", help="kills of a search after")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=300, help="seconds without a blow until an end")
    parser.add_argument("--folder", type=Path, help="where the sweeps lie (default: a temporary one)")
    parser.add_argument(
        "--fuzz", type=int, default=0, metavar="N", help="strings and yaml files to try after"
    )
    arguments = parser.parse_args()
    folder = (arguments.folder or Path(tempfile.mkdtemp(prefix="cpdrun-soak-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    broken = []
    if arguments.blows:
        dice = random.Random(arguments.seed)
        run = Soak(folder, dice, arguments.patience, arguments.script, arguments.kills)
        fell = soak(run, arguments.blows, arguments.seed)
        print(f"BROKEN: {fell}" if fell else f"{arguments.blows} blows changed nothing", flush=True)
        broken.append(fell)
    if arguments.search:
        broken.append(search(arguments.search, arguments.seed, arguments.patience, folder))
    if arguments.fuzz:
        broken.append(fuzz(arguments.fuzz))
    return 1 if any(broken) else 0


if __name__ == "__main__":
    sys.exit(main())
