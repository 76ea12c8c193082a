"""Where everything lies. Only this module spells a file name of the record.

<results_dir>/<sweep>/sweep.yaml                  axes, overrides, runs, git commit, versions
<results_dir>/<sweep>/.lock                       held while the sweep's own files are written anew
<results_dir>/<sweep>/report/                     what `cpdrun report` writes
<results_dir>/<sweep>/allocation.yaml              which bits go where, by `cpdrun search --allocate`
<results_dir>/<sweep>/screen/exp/NAME*.yaml        its runs, and the allocation, as experiments: a --config-dir
<results_dir>/<sweep>/calibration.json            what `cpdrun doctor --calibrate` measured, for the cost model
<results_dir>/<sweep>/predict/                    what `cpdrun predict` asked: effects-*.json; runs/ of its own
<results_dir>/<sweep>/array.sbatch  slurm.json    what was handed to Slurm; its own logs are in slurm/
<results_dir>/<sweep>/runs/<slug>-<hash10>/
  config.yaml  overrides.txt  format.json         what the run is, and the bits of its format
  env.json  code.diff                             with what it was trained; code that was not committed
  metrics.jsonl  ckpt/{last,previous}.pt          how far it is; ckpt/unreadable.pt was damaged
  status.json                                     progress
  observed.npz                                    what was seen of its tensors (observe=N)
  example_outcomes.bin                            which examples of the test set it answered right
  attempts/<n>/{agent.log,rank<k>.log}            what each attempt said
  attempts/<n>/{where.json,exit.json}             where it ran, how it went
  attempts/<n>/lost.jsonl                         what ranks that were killed cost it, where it went on (elastic)
  done.json                                       finished: its presence, and nothing else, says so
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cpdrun.config.identity import hash_in
from cpdrun.record.entries import EpochRow, LoggedRow, Lost, Outcome, Progress, Result, Where
from cpdrun.record.files import append_json_line, read_json, read_json_lines

OBSERVED_LAYOUT = (
    2  # of observed.npz, which the trainer writes and the report reads; the first had wrong extremes
)
MAX_ROWS = 50_000  # of a curve; of a longer one, evenly spaced rows are read
_ATTEMPT = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run: `attempts/<number>/`."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def agent_log(self) -> Path:
        return self.path / "agent.log"

    @property
    def where(self) -> Path:
        """Host, process and Slurm job of the attempt; touched while its agent lives."""
        return self.path / "where.json"

    @property
    def exit(self) -> Path:
        return self.path / "exit.json"

    @property
    def lost(self) -> Path:
        return self.path / "lost.jsonl"

    def losses(self) -> list[Lost]:
        """The lines of lost.jsonl; one that is damaged is passed over."""
        return [row for line in read_json_lines(self.lost) if (row := Lost.read(line)) is not None]

    def whereabouts(self) -> Where:
        """What where.json says."""
        return Where.read(read_json(self.where)) or Where()

    def outcome(self) -> Outcome | None:
        """What exit.json says; None while the attempt runs, and where its agent was killed with it."""
        return Outcome.read(read_json(self.exit))

    @property
    def pulse(self) -> Path:
        """Touched as the run gets on."""
        return self.path / ".pulse"

    @property
    def asks(self) -> Path:
        """Touched when a user's script first asks whether it should stop."""
        return self.path / ".asks"

    @property
    def told(self) -> Path:
        """Touched when a user's script was told that it should stop."""
        return self.path / ".told"

    @property
    def left_running(self) -> Path:
        """Processes that a user's script left running, one per line. The agent copies them to exit.json."""
        return self.path / ".left_running"

    def rank_log(self, rank: int) -> Path:
        return self.path / f"rank{rank}.log"


@dataclass(frozen=True)
class RunDir:
    """The directory of one run."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def sweep(self) -> "SweepDir":
        return SweepDir(self.path.absolute().parent.parent)

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def overrides(self) -> Path:
        return self.path / "overrides.txt"

    @property
    def format_facts(self) -> Path:
        """Name, bits and exponent bits of the run's format, written when it is launched: a reader imports no module
        that a record names. Absent in records from before."""
        return self.path / "format.json"

    @property
    def env(self) -> Path:
        return self.path / "env.json"

    @property
    def code_diff(self) -> Path:
        """How the repository of the user's folder differed from its commit; absent where it did not."""
        return self.path / "code.diff"

    @cached_property  # asked for between a script's steps
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def observed(self) -> Path:
        """Tables and samples of its tensors, of the steps that `observe` asks for; absent where it asks for none."""
        return self.path / "observed.npz"

    @property
    def observed_parts(self) -> Path:
        """What was seen since observed.npz was last written, a file for each checkpoint; gone when the run ends."""
        return self.path / "observed.parts"

    @property
    def example_outcomes(self) -> Path:
        """Which examples of the test set the run answered right (`cpdrun.record.example_outcomes`). Absent where its
        task has no such outcomes, as in records from before."""
        return self.path / "example_outcomes.bin"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def done(self) -> Path:
        return self.path / "done.json"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def holder(self) -> Path:
        """Stands for the lock where the file system has none."""
        return self.path / ".holder"

    @property
    def checkpoint(self) -> Path:
        return self.path / "ckpt" / "last.pt"

    def saved_at(self) -> float:
        """When the last checkpoint was written, or what else a script saved beside where it would be; seconds since
        1970, 0 where there is none."""
        folder = self.checkpoint.parent
        files = folder.rglob("*") if folder.is_dir() else ()
        return max((file.stat().st_mtime for file in files if file.suffix != ".tmp"), default=0.0)

    @property
    def preempt(self) -> Path:
        """Asks the ranks to save and stop at the next step boundary; whoever asks creates it."""
        return self.path / ".preempt"

    def result(self) -> Result | None:
        """What done.json says; None where it is absent or holds no result."""
        return Result.read(read_json(self.done))

    def progress(self) -> Progress | None:
        """What status.json says; None before the first epoch."""
        return Progress.read(read_json(self.status))

    def rows(self) -> Iterator[EpochRow]:
        """Yield the epochs of metrics.jsonl, at most about MAX_ROWS of them; damaged lines are skipped."""
        for line in read_json_lines(self.metrics, MAX_ROWS):
            if (row := EpochRow.read(line)) is not None:
                yield row

    def logged(self) -> Iterator[LoggedRow]:
        """Yield what a user's script logged to metrics.jsonl, as `rows` does."""
        for line in read_json_lines(self.metrics, MAX_ROWS):
            if (row := LoggedRow.read(line)) is not None:
                yield row

    def append_row(self, row: LoggedRow) -> None:
        """Add a line to metrics.jsonl."""
        append_json_line(self.metrics, row.as_json(), to_disk=False)

    def attempts(self) -> list[Attempt]:
        """Return every attempt so far, oldest first. Links and folders with other names are ignored."""
        folder = self.path / "attempts"
        if folder.is_symlink() or not folder.is_dir():
            return []
        found = (
            p for p in folder.iterdir() if _ATTEMPT.fullmatch(p.name) and not p.is_symlink() and p.is_dir()
        )
        return sorted(map(Attempt, found), key=lambda attempt: attempt.number)

    def last_attempt(self) -> Attempt | None:
        attempts = self.attempts()
        return attempts[-1] if attempts else None

    @property
    def attempts_so_far(self) -> int:
        last = self.last_attempt()
        return last.number if last else 0

    def new_attempt(self) -> Attempt:
        """Create the folder of the next attempt. Only the holder of the claim may call this."""
        attempt = Attempt(self.path / "attempts" / str(self.attempts_so_far + 1))
        attempt.path.mkdir(parents=True)
        return attempt


@dataclass(frozen=True)
class SweepDir:
    """The directory of one sweep."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name or self.path.absolute().name  # of `.`

    @property
    def manifest(self) -> Path:
        return self.path / "sweep.yaml"

    @property
    def lock(self) -> Path:
        """Held for the moment in which the sweep's own files are read and written anew."""
        return self.path / ".lock"

    @property
    def report(self) -> Path:
        return self.path / "report"

    @property
    def calibration(self) -> Path:
        return self.path / "calibration.json"

    @property
    def allocation(self) -> Path:
        return self.path / "allocation.yaml"

    @property
    def screen(self) -> Path:
        """A folder of yaml for --config-dir, with experiments that `cpdrun search --allocate` writes."""
        return self.path / "screen"

    @property
    def prediction(self) -> "SweepDir":
        """What `cpdrun predict` keeps beside the sweep: no sweep itself, with runs where it needs runs of its own."""
        return SweepDir(self.path / "predict")

    def effects(self, digest: str) -> Path:
        """What formats would do to the tensors of the observation of that digest."""
        return self.prediction.path / f"effects-{digest}.json"

    @property
    def stop(self) -> Path:
        """Touched to ask every launcher of the sweep to stop gently."""
        return self.path / ".stop"

    @property
    def slurm(self) -> Path:
        """Which array elements of Slurm were given which runs."""
        return self.path / "slurm.json"

    @property
    def slurm_logs(self) -> Path:
        return self.path / "slurm"

    def array_script(self, number: int) -> Path:
        """The sbatch script of the sweep; runs that need other resources than the first have a second one."""
        return self.path / ("array.sbatch" if number == 1 else f"array-{number}.sbatch")

    @property
    def runs_folder(self) -> Path:
        return self.path / "runs"

    def run(self, name: str) -> RunDir:
        return RunDir(self.runs_folder / name)

    def find(self, name: str) -> RunDir:
        """Return the run with this name. If it has no folder, return the run whose folder has the same hash, if any."""
        run = self.run(name)
        return run if run.path.exists() else self.run(self.names_by_hash().get(hash_in(name), name))

    def names_by_hash(self) -> dict[str, str]:
        """Return the names of all folders of runs, by the hash in the name.

        The hash alone identifies a run, because the slug may be that of a former version of cpdrun. If several folders
        have the same hash, a finished one takes precedence.
        """
        try:
            names = sorted(path.name for path in self.runs_folder.iterdir())
        except OSError:
            return {}
        found: dict[str, str] = {}
        for name in names:
            digest = hash_in(name)
            if digest and (digest not in found or self.run(name).done.exists()):
                found[digest] = name
        return found

    @property
    def is_there(self) -> bool:
        """Whether this is the folder of a sweep: one that holds a folder runs/ of its own."""
        try:
            return self.runs_folder.is_dir() and not self._leads_out(self.runs_folder)
        except OSError:  # such as a name that is too long for the file system
            return False

    def runs(self) -> Iterator[RunDir]:
        """Yield every run on disk, sorted by name. Links that lead out of the sweep's folder are ignored."""
        if self.is_there:
            for path in sorted(self.runs_folder.iterdir()):
                if path.is_dir() and not self._leads_out(path):
                    yield RunDir(path)

    def _leads_out(self, path: Path) -> bool:
        return path.is_symlink() and not path.resolve().is_relative_to(self.path.resolve())
