"""The paths of all files of a record. Only this module contains their names.

A report needs `config.yaml` and `done.json` of each run, and uses some of the other files. The rest serve `status`,
`logs`, `report RUN` and the launcher.

<results_dir>/<sweep>/sweep.yaml                  axes, overrides, runs, git commit, versions
<results_dir>/<sweep>/.lock                       the lock that is held while the sweep's own files are updated
<results_dir>/<sweep>/report/                     the output of `cpdrun report`
<results_dir>/<sweep>/allocation.yaml             the bits of each layer, by `cpdrun search --allocate`
<results_dir>/<sweep>/screen/exp/NAME*.yaml       its runs and the allocation as experiments, for --config-dir
<results_dir>/<sweep>/calibration.json            the measurements of `cpdrun doctor --calibrate`, for the cost model
<results_dir>/<sweep>/predict/                    the effects-*.json and the runs/ of `cpdrun predict`
<results_dir>/<sweep>/array.sbatch  slurm.json    what was submitted to Slurm, whose own logs are in slurm/
<results_dir>/<sweep>/runs/<slug>-<hash10>/
  config.yaml  overrides.txt  format.json         the resolved config, the overrides, and the bits of the format
  env.json  code.diff                             versions, device, and commit; uncommitted changes
  metrics.jsonl                                   the learning curve
  ckpt/last.pt  ckpt/previous.pt                  checkpoints; a damaged one becomes ckpt/unreadable.pt
  status.json                                     progress
  observed.npz  observed.parts/                   statistics of observed tensors (observe=N); those since the last write
  example_outcomes.bin                            which examples of the test set the run answered correctly
  attempts/<n>/{agent.log,rank<k>.log}            the logs of each attempt
  attempts/<n>/{where.json,exit.json}             where the attempt ran, and how it ended
  attempts/<n>/lost.jsonl                         the work that was lost when ranks were killed (elastic)
  done.json                                       the result; only its presence means that the run has finished

The name of a run's folder can be anything. If it ends with a hyphen and ten hexadecimal digits, they are taken for the
hash of its config.yaml, and the report says so if they do not match. Files whose names begin with a dot are locks and
signals.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cpdrun.config.identity import hash_in
from cpdrun.record.entries import EpochRow, LoggedRow, Lost, Outcome, Progress, Result, Where
from cpdrun.record.files import append_json_line, read_json, read_json_lines

# The version of observed.npz, which the trainer writes and the report reads. Files of version 1 contain wrong
# extremes.
OBSERVED_LAYOUT = 2
MAX_ROWS = 50_000  # the largest number of rows that are read. If there are more, evenly spaced rows are read.
_ATTEMPT = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Attempt:
    """The files of one attempt to train a run, in the folder `attempts/<number>/`."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def agent_log(self) -> Path:
        return self.path / "agent.log"

    @property
    def where(self) -> Path:
        """The host, process, and Slurm job of the attempt (`Where`). The agent touches the file while it is alive."""
        return self.path / "where.json"

    @property
    def exit(self) -> Path:
        return self.path / "exit.json"

    @property
    def lost(self) -> Path:
        return self.path / "lost.jsonl"

    def losses(self) -> list[Lost]:
        """Return the entries of lost.jsonl. Damaged lines are skipped."""
        return [row for line in read_json_lines(self.lost) if (row := Lost.read(line)) is not None]

    def whereabouts(self) -> Where:
        """Return the entry of where.json, or an empty one if there is none."""
        return Where.read(read_json(self.where)) or Where()

    def outcome(self) -> Outcome | None:
        """Return the entry of exit.json, or None while the attempt runs, or if its agent was killed."""
        return Outcome.read(read_json(self.exit))

    @property
    def pulse(self) -> Path:
        """A file that the run touches when it makes progress."""
        return self.path / ".pulse"

    @property
    def polls_stop(self) -> Path:
        """A file that is touched when a user's script calls `should_stop` for the first time."""
        return self.path / ".asks"

    @property
    def stop_delivered(self) -> Path:
        """A file that is touched when `should_stop` has returned True to a user's script."""
        return self.path / ".told"

    @property
    def left_running(self) -> Path:
        """A file with the processes that a user's script left running. The agent copies them to exit.json."""
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
        """The file with the name, bits, and exponent bits of the run's format.

        It is written when the run is launched or recorded. For custom formats, readers depend on this file,
        because they never import a module that a record names. Older records do not have it.
        """
        return self.path / "format.json"

    @property
    def env(self) -> Path:
        return self.path / "env.json"

    @property
    def code_diff(self) -> Path:
        """The uncommitted changes in the repository of the user's folder. Absent if there were none."""
        return self.path / "code.diff"

    @cached_property  # It is cached because it is used between the training steps of a script.
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def observed(self) -> Path:
        """The tables and samples of tensors at the steps that `observe` requests. Absent if it requests none."""
        return self.path / "observed.npz"

    @property
    def observed_parts(self) -> Path:
        """The folder of observations since observed.npz was last written, one file per checkpoint."""
        return self.path / "observed.parts"

    @property
    def example_outcomes(self) -> Path:
        """The outcomes of the test examples (`cpdrun.record.example_outcomes`).

        The file is absent in older records, and if the task has no such outcomes.
        """
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
        """The file that marks the run as claimed if the file system does not support flock, which the lock needs."""
        return self.path / ".holder"

    @property
    def checkpoint(self) -> Path:
        return self.path / "ckpt" / "last.pt"

    def saved_at(self) -> float:
        """Return the time at which the latest file in the folder of checkpoints was written, in seconds since 1970.

        This file may be any file that a script saved there. The result is 0 if there is no file.
        """
        folder = self.checkpoint.parent
        files = folder.rglob("*") if folder.is_dir() else ()
        return max((file.stat().st_mtime for file in files if file.suffix != ".tmp"), default=0.0)

    @property
    def preempt(self) -> Path:
        """A file whose presence requests the ranks to save and stop after the current step."""
        return self.path / ".preempt"

    def result(self) -> Result | None:
        """Return the result in done.json, or None if there is none."""
        return Result.read(read_json(self.done))

    def progress(self) -> Progress | None:
        """Return the progress in status.json, or None before the first epoch."""
        return Progress.read(read_json(self.status))

    def rows(self) -> Iterator[EpochRow]:
        """Yield the epochs of metrics.jsonl, at most about MAX_ROWS of them. Damaged lines are skipped."""
        for line in read_json_lines(self.metrics, MAX_ROWS):
            if (row := EpochRow.read(line)) is not None:
                yield row

    def logged(self) -> Iterator[LoggedRow]:
        """Yield the rows that a user's script logged to metrics.jsonl, as `rows` does."""
        for line in read_json_lines(self.metrics, MAX_ROWS):
            if (row := LoggedRow.read(line)) is not None:
                yield row

    def append_row(self, row: LoggedRow) -> None:
        """Add a line to metrics.jsonl."""
        append_json_line(self.metrics, row.as_json(), to_disk=False)

    def attempts(self) -> list[Attempt]:
        """Return all attempts so far, oldest first. Links and folders with other names are ignored."""
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
        return self.path.name or self.path.absolute().name  # The path may be `.`.

    @property
    def manifest(self) -> Path:
        return self.path / "sweep.yaml"

    @property
    def lock(self) -> Path:
        """The lock that is held while the sweep's own files are updated."""
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
        """The folder of `cpdrun predict`, with its effects and the runs that it trained. It is not itself a sweep."""
        return SweepDir(self.path / "predict")

    def effects(self, digest: str) -> Path:
        """Return the path of the cached effects of formats on the observed tensors with this digest."""
        return self.prediction.path / f"effects-{digest}.json"

    @property
    def stop(self) -> Path:
        """A file whose presence requests every launcher of the sweep to stop after its runs have saved."""
        return self.path / ".stop"

    @property
    def slurm(self) -> Path:
        """A file with the run of each element of each Slurm array."""
        return self.path / "slurm.json"

    @property
    def slurm_logs(self) -> Path:
        return self.path / "slurm"

    def array_script(self, number: int) -> Path:
        """Return the path of an sbatch script. Each number belongs to runs that need the same resources."""
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
        """Return the names of all folders of runs, keyed by the hash in the name.

        Only the hash identifies a run, because the slug may come from a former version of cpdrun. If several folders
        have the same hash, a finished run takes precedence.
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
        """Whether this is the folder of a sweep, which contains a folder runs/ that is not a link to another place."""
        try:
            return self.runs_folder.is_dir() and not self._leads_out(self.runs_folder)
        except OSError:  # The name may be too long for the file system.
            return False

    def runs(self) -> Iterator[RunDir]:
        """Yield every run on disk, sorted by name. Links that lead out of the sweep's folder are ignored."""
        if self.is_there:
            for path in sorted(self.runs_folder.iterdir()):
                if path.is_dir() and not self._leads_out(path):
                    yield RunDir(path)

    def _leads_out(self, path: Path) -> bool:
        return path.is_symlink() and not path.resolve().is_relative_to(self.path.resolve())
