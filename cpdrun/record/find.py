"""The sweep that a word on the command line means."""

from collections.abc import Sequence
from pathlib import Path

from cpdrun.record.layout import SweepDir

DEFAULT_RESULTS_DIR = "results"


class NoSweepError(Exception):
    """No such sweep; the message names those there are."""


def find_sweeps(words: Sequence[str]) -> list[SweepDir]:
    """Each word is a sweep's name or folder; `results_dir=PATH` says where names lie.

    Without a name, the sweep that was last started. Raises NoSweepError.
    """
    results_dir, names = Path(DEFAULT_RESULTS_DIR), []
    for word in words:
        if word.startswith("results_dir="):
            results_dir = Path(word.removeprefix("results_dir="))
        else:
            names.append(word)
    known = sweeps_in(results_dir)
    if not names:
        if not known:
            raise NoSweepError(f"no sweep in {results_dir}/ yet; run one first: cpdrun sweep exp=digits_bits")
        return [max(known, key=lambda sweep: sweep.runs_folder.stat().st_mtime)]
    return [_find(name, results_dir, known) for name in names]


def sweeps_in(results_dir: Path) -> list[SweepDir]:
    """Every sweep under `results_dir`, by name: a folder that holds runs/."""
    if not results_dir.is_dir():
        return []
    return [sweep for path in sorted(results_dir.iterdir()) if (sweep := SweepDir(path)).runs_folder.is_dir()]


def _find(word: str, results_dir: Path, known: list[SweepDir]) -> SweepDir:
    for path in (results_dir / word, Path(word)):
        if SweepDir(path).runs_folder.is_dir():
            return SweepDir(path)
    names = ", ".join(sweep.name for sweep in known) or "none"
    raise NoSweepError(f"no sweep {word!r}; in {results_dir}/ there are: {names}")
