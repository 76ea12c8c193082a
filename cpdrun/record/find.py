"""Find the sweeps and runs that are named on the command line."""

import os
from collections.abc import Sequence
from pathlib import Path

from cpdrun.config.overrides import RESULTS_DIR, results_dir_of
from cpdrun.errors import UserError
from cpdrun.record.layout import RunDir, SweepDir

DEFAULT_RESULTS_DIR = "results"


class NotFoundError(UserError):
    """Raised if a sweep or run does not exist, or if a name matches several. The message lists existing ones."""


def find_sweeps(words: Sequence[str]) -> list[SweepDir]:
    """Return the sweeps with these names or folders. Without arguments, return the sweep that was started last.

    Names are looked up in the folder of `results_dir=PATH`.

    Raises:
        NotFoundError: A sweep does not exist.
    """
    results_dir, names = split_results_dir(words)
    known = sweeps_in(results_dir)
    if not names:
        if not known:
            raise NotFoundError(
                f"there is no sweep in {results_dir}/ yet. Start one first, such as cpdrun sweep exp=digits_bits"
            )
        return [max(known, key=lambda sweep: sweep.runs_folder.stat().st_mtime)]
    sweeps = []
    for name in names:
        if (sweep := _sweep(name, results_dir)) is None:
            there = ", ".join(sweep.name for sweep in known) or "none"
            raise NotFoundError(f"no sweep {name!r}; in {results_dir}/ there are: {there}")
        sweeps.append(sweep)
    return sweeps


def find_runs(words: Sequence[str]) -> list[RunDir]:
    """Return the runs with these folders, names, or parts of names.

    Raises:
        NotFoundError: A run does not exist, or a part of a name matches several runs.
    """
    results_dir, names = split_results_dir(words)
    return [_run(name, results_dir) for name in names]


def find_sweeps_or_runs(words: Sequence[str]) -> tuple[list[SweepDir], list[RunDir]]:
    """Return the sweeps with these names or folders, and the runs for all other words, as `find_runs` does."""
    results_dir, names = split_results_dir(words)
    sweeps = {name: _sweep(name, results_dir) for name in names}
    runs = [_run(name, results_dir) for name in names if sweeps[name] is None]
    return [sweep for sweep in sweeps.values() if sweep is not None], runs


def sweeps_in(results_dir: Path) -> list[SweepDir]:
    """Return every sweep in `results_dir`, sorted by name. A sweep is a folder that contains a folder runs/."""
    try:
        folders = sorted(results_dir.iterdir())
    except OSError:
        return []
    return [sweep for path in folders if (sweep := SweepDir(path)).is_there]


def split_results_dir(words: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the PATH of the last `results_dir=PATH` among the words, and all other words."""
    folders = [results_dir_of(word) for word in words if word.startswith(RESULTS_DIR)]
    names = [word for word in words if not word.startswith(RESULTS_DIR)]
    return Path(folders[-1] if folders else DEFAULT_RESULTS_DIR), names


def _sweep(word: str, results_dir: Path) -> SweepDir | None:
    for path in (results_dir / word, Path(word)):
        if SweepDir(path).is_there:
            return SweepDir(path)
    return None


def _run(word: str, results_dir: Path) -> RunDir:
    if os.path.lexists(RunDir(Path(word)).config):
        return RunDir(Path(word))
    found = [run for sweep in sweeps_in(results_dir) for run in sweep.runs() if word in run.name]
    exact = [run for run in found if run.name == word]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if not found:
        raise NotFoundError(f"no run {word!r} in {results_dir}/. `cpdrun status` lists the runs")
    names = ", ".join(sorted({run.name for run in found})[:4])
    raise NotFoundError(
        f"{word!r} may be any of {len(found)} runs: {names}{', ...' if len(found) > 4 else ''}"
    )
