"""Make the committed references, results/reference/NAME, from one clean commit.

    python scripts/references.py                                      # all references of references.yaml
    python scripts/references.py digits_workers resnet50_bits_small   # only these
    python scripts/references.py --runs-of COMMIT digits_workers      # report again on the runs of COMMIT

All references together take many core-hours. Runs are stored in results/references-COMMIT, so that all runs belong to
the code that is checked out. To continue after an interruption, run the same command again. The files of each reference
are prepared in the same folder: the stored parts of the report, a values.csv (one row for each run; see
scripts/research/claims/values.py) and a made_by.txt (commands, commit, versions, processor, time). They are copied to
results/reference after all requested references are made. The README.md there is written by hand and does not change.
The script rejects a working tree that differs from its commit, because the commit would not identify the code, and runs
that were trained by other code.
"""

import argparse
import ctypes
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from research.claims.values import VALUES, write_values

from cpdrun.record import SweepDir, git, git_commit, read_object, write_text
from cpdrun.report import ReportError

DATA = Path(__file__).with_suffix(".yaml")
MADE_BY = "made_by.txt"
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class NotMadeError(Exception):
    """Raised if a reference could not be made."""


@dataclass(frozen=True)
class Part:
    """A sweep or search that is part of a reference, with its arguments and the report files to keep."""

    command: str
    words: list[str]
    report: list[str]
    keep: dict[str, str]
    calibrate: list[str]

    @property
    def sweep(self) -> str:
        """The name of the sweep."""
        named = dict(word.split("=", 1) for word in self.words if word.startswith(("exp=", "name=")))
        return named.get("name", named["exp"])


def read_parts(path: Path) -> dict[str, list[Part]]:
    """Read references.yaml: the parts of each reference."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {
        name: [_part(name, part) for part in about.get("parts", [about])] for name, about in content.items()
    }


def _part(name: str, about: Mapping[str, Any]) -> Part:
    keep = about["keep"]
    command = "search" if "search" in about else "sweep"
    return Part(
        command=command,
        words=list(about.get(command, [f"exp={name}"])),
        report=list(about.get("report", [])),
        keep=dict(keep) if isinstance(keep, Mapping) else {file: file for file in keep},
        calibrate=list(about.get("calibrate", [])),
    )


class Maker:
    """Makes the references of one commit.

    Attributes:
        commit: The commit whose code trains the runs, or has trained them.
        reporting: The commit that is checked out. Its code writes the reports.
        work: The folder of the runs and of the finished references that are not copied yet.
    """

    def __init__(
        self, commit: str, reporting: str, results_dir: Path, config_dir: Path | None, jobs: str | None
    ):
        self.commit, self.reporting = commit, reporting
        self.work = results_dir / f"references-{commit[:10]}"
        self.config_dir = ["--config-dir", str(config_dir)] if config_dir else []
        self.jobs = ["--jobs", jobs] if jobs else []
        self.started = time.monotonic()

    def is_made(self, name: str) -> bool:
        """Return whether the reference is complete. `made_by.txt` is its last file to be written."""
        return (self.made(name) / MADE_BY).exists()

    def made(self, name: str) -> Path:
        return self.work / f"made-{self.reporting[:10]}" / name

    def make(self, name: str, parts: list[Part]) -> None:
        self.started = time.monotonic()
        folder = self.made(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        typed = []
        for part in parts:
            typed += [self._train(part), *self._calibrate(part), self._report(part, folder)]
        sweeps = [SweepDir(self.work / part.sweep) for part in parts]
        write_values(sweeps, folder / VALUES)
        self._check_code(sweeps)
        files = sorted(path.name for path in folder.iterdir())
        write_text(folder / MADE_BY, self._made_by(typed, sweeps, [*files, MADE_BY]))

    def _train(self, part: Part) -> str:
        return self._cpdrun(part.command, [*part.words, *self.config_dir], self.jobs)

    def _calibrate(self, part: Part) -> list[str]:
        if not part.calibrate:
            return []
        if SweepDir(self.work / part.sweep).calibration.exists():
            return [shlex.join(["cpdrun", "doctor", "--calibrate", *part.calibrate])]
        return [self._cpdrun("doctor", ["--calibrate", *part.calibrate, *self.config_dir])]

    def _report(self, part: Part, folder: Path) -> str:
        typed = self._cpdrun("report", [part.sweep, *part.report])
        found = {file: self._written(part, file) for file in part.keep}
        if missing := [file for file, path in found.items() if path is None]:
            raise NotMadeError(f"the report on {part.sweep} wrote no {', '.join(missing)}")
        for file, name in part.keep.items():
            shutil.copyfile(found[file], folder / name)
            if name.endswith(".md"):  # Commands in the report need not name the folder of this machine.
                text = (folder / name).read_text(encoding="utf-8")
                write_text(folder / name, re.sub(r" '?results\\?_dir=[^\s']+'?", "", text))
        return typed

    def _written(self, part: Part, file: str) -> Path | None:
        """Return the path of a file of the report. Files of a metric other than the default are in a subfolder."""
        report = SweepDir(self.work / part.sweep).report
        metric = part.report[part.report.index("--metric") + 1] if "--metric" in part.report else ""
        return next((path for path in (report / metric / file, report / file) if path.is_file()), None)

    def _cpdrun(self, command: str, words: list[str], of_this_machine: Sequence[str] = ()) -> str:
        """Run a command, which stops when this script is killed. Return the command as a user would type it."""
        typed = shlex.join(["cpdrun", command, *words])
        print(f"$ {typed}", flush=True)
        argv = [
            sys.executable,
            "-m",
            "cpdrun.cli",
            command,
            *words,
            *of_this_machine,
            f"results_dir={self.work}",
        ]
        code = subprocess.run(argv, preexec_fn=_end_with_parent).returncode
        if code in (INTERRUPTED, -signal.SIGINT):
            raise KeyboardInterrupt
        if code != OK:
            raise NotMadeError(f"`{typed}` ended with {code}. Run this script again to continue")
        return typed

    def _check_code(self, sweeps: list[SweepDir]) -> None:
        """Check that the record of every run names this commit, without uncommitted changes."""
        for sweep in sweeps:
            for run in sweep.runs():
                env = read_object(run.env) or {}
                if env.get("git_commit") != self.commit or env.get("git_diff") != "none":
                    raise NotMadeError(f"{run.path} was not trained by commit {self.commit[:10]}. Remove it")

    def _made_by(self, typed: list[str], sweeps: list[SweepDir], files: list[str]) -> str:
        runs = {run.name: run for sweep in sweeps for run in sweep.runs()}
        environments = [read_object(run.env) or {} for run in runs.values()]
        packages = {json.dumps(env.get("packages"), sort_keys=True) for env in environments}
        versions = ["; ".join(f"{k} {v}" for k, v in json.loads(text).items()) for text in sorted(packages)]
        devices = sorted({str(env.get("device")) for env in environments})
        pythons = sorted({str(env.get("python")) for env in environments})
        trained = sum(((done := run.result()) and done.wall_seconds) or 0 for run in runs.values())
        lines = [
            *(f"command    {line}" for line in typed),
            f"commit     {self.commit}",
            *([] if self.reporting == self.commit else [f"reported   {self.reporting}"]),
            f"python     {', '.join(pythons)}",
            *(f"versions   {line}" for line in versions),
            *(f"processor  {line}" for line in devices),
            f"runs       {len(runs)}, {trained:.0f} s of training together",
            f"wall time  {time.monotonic() - self.started:.0f} s since the last start",
            f"files      {' '.join(files)}",
        ]
        return "\n".join(lines) + "\n"


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: the sweep saves its runs and stops


def _make_all(maker: Maker, parts: Mapping[str, list[Part]]) -> bool:
    """Make all references and return whether all succeeded. A failed reference does not stop the others."""
    failed = []
    for i, name in enumerate(parts, start=1):
        print(f"{name}: {i} of {len(parts)}", flush=True)
        try:
            maker.make(name, parts[name])
        except (NotMadeError, ReportError) as error:
            print(f"error: {name}: {error}", file=sys.stderr, flush=True)
            failed.append(name)
    return not failed


def put(made: Path, kept: Path) -> None:
    """Copy a finished reference to the committed folder, and delete files that the new reference does not have."""
    kept.mkdir(parents=True, exist_ok=True)
    before = _files(kept / MADE_BY)
    now = sorted(path.name for path in made.iterdir())
    for name in now:
        shutil.copyfile(made / name, kept / f".{name}.new")
        (kept / f".{name}.new").replace(kept / name)
    for name in set(before) - set(now):
        (kept / name).unlink(missing_ok=True)
    others = sorted(path.name for path in kept.iterdir() if path.name not in (*now, "README.md"))
    if others:
        print(f"{kept}: not made by this script, and not changed: {', '.join(others)}")


def _files(made_by: Path) -> list[str]:
    """Return the names of files that a made_by.txt lists, without those of other folders."""
    if not made_by.is_file():
        return []
    last = [line for line in made_by.read_text(encoding="utf-8").splitlines() if line.startswith("files ")]
    return [name for line in last for name in line.split()[1:] if Path(name).name == name]


def main() -> int:
    arguments = _arguments()
    parts = read_parts(arguments.data)
    names = arguments.names or list(parts)
    if unknown := [name for name in names if name not in parts]:
        return _refuse(f"no reference {unknown[0]!r}; there are: {', '.join(parts)}")
    commit = git_commit()
    if commit is None:
        return _refuse("not in a git repository, but a reference names its commit")
    trained_by = git("rev-parse", "--verify", "--quiet", f"{arguments.runs_of or commit}^{{commit}}")
    if not trained_by:
        return _refuse(f"--runs-of {arguments.runs_of}: no commit of this repository")
    maker = Maker(trained_by.strip(), commit, arguments.results_dir, arguments.config_dir, arguments.jobs)
    to_make = [name for name in names if not maker.is_made(name)]
    changed = git("status", "--porcelain") if to_make else ""
    if changed:
        return _refuse(
            f"the working tree differs from commit {commit[:10]}:\n{changed.rstrip()}\nCommit first."
        )
    try:
        if not _make_all(maker, {name: parts[name] for name in to_make}):
            print(f"not all references could be made, so none were copied; finished ones are in {maker.work}")
            return FAILED
        for name in names:
            put(maker.made(name), arguments.out / name)
    except (ReportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted; run it again to continue", file=sys.stderr)
        return INTERRUPTED
    return OK


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"references of {DATA.name} (default: all)")
    parser.add_argument("--results-dir", type=Path, default=Path("results"), help="folder of the runs")
    parser.add_argument(
        "--out", type=Path, default=Path("results/reference"), help="folder of the committed references"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="the description of all references")
    parser.add_argument(
        "--config-dir", type=Path, help="a folder of YAML files that takes precedence over conf/"
    )
    parser.add_argument(
        "--runs-of", metavar="COMMIT", help="report on the runs that this commit trained (default: HEAD)"
    )
    parser.add_argument("--jobs", help="number of runs at the same time")
    return parser.parse_args()


def _refuse(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
