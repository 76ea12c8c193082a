"""Reading and writing of sweep.yaml, the manifest in a sweep's folder.

The manifest contains the overrides and axes of the sweep, the names of its runs, and the settings of the last search,
such as its baseline and margin. The code calls these settings the question.
"""

import platform
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import yaml

from cpdrun import __version__
from cpdrun.config.errors import ConfigError
from cpdrun.config.secrets import mask_text, masked
from cpdrun.record import (
    VERSION,
    NewerRecordError,
    SweepDir,
    git_commit,
    locked,
    read_manifest,
    read_search,
    write_text,
)
from cpdrun.stats.ledger import Hypothesis, Ledger
from cpdrun.sweep.request import SEARCH
from cpdrun.sweep.runs import Plan

LEDGER = "ledger"


def read_ledger(directory: SweepDir) -> Ledger:
    """Return the ledger, which lists the hypotheses that were tested in a sweep's folder.

    The ledger is empty if the manifest has no hypotheses or cannot be read.
    """
    return _ledger(read_search(directory))


def write_ledger(directory: SweepDir, hypotheses: Collection[Hypothesis]) -> None:
    """Add hypotheses to the ledger in sweep.yaml. If the folder lists no runs, do nothing.

    Raises:
        OSError: The folder cannot be written.
        ConfigError: cpdrun did not write the existing sweep.yaml.
    """
    if not hypotheses or not listed(directory):
        return
    with locked(directory.lock):
        manifest = read_manifest(directory)
        block = manifest.get(SEARCH)
        block = dict(block) if isinstance(block, Mapping) else {}
        block[LEDGER] = _ledger(block).merged(hypotheses).as_yaml
        if block != manifest.get(SEARCH):
            _write(directory, {**manifest, SEARCH: block})


def _ledger(block: Mapping[str, Any]) -> Ledger:
    return Ledger.read(block.get(LEDGER), block.get("family"))


def write_manifest(sweep: Plan, search: Mapping[str, Any] | None = None) -> None:
    """Write sweep.yaml with the overrides, axes, and runs of a sweep.

    If the existing file already lists all runs, only the settings of the last search are updated. Runs that another
    command has created in the same folder stay listed. The settings of the last search stay, too, because a report uses
    them. If this sweep was given some of these settings, they replace the former values.

    Args:
        sweep: The planned sweep.
        search: The settings of the search that starts these runs, or None if no search does. They replace the settings
            of the last search.

    Raises:
        OSError: The folder cannot be written.
        ConfigError: cpdrun did not write the existing sweep.yaml.
    """
    sweep.directory.path.mkdir(parents=True, exist_ok=True)
    with locked(sweep.directory.lock):  # Two commands at the same time must keep each other's runs.
        _add_to_manifest(sweep, search)


def write_question(directory: SweepDir, search: Mapping[str, Any]) -> None:
    """Replace the settings of the last search in sweep.yaml. If the folder lists no runs, do nothing.

    Raises:
        OSError: The folder cannot be written.
        ConfigError: cpdrun did not write the existing sweep.yaml.
    """
    if listed(directory) and (there := read_manifest(directory)) != _asking(there, search):
        with locked(directory.lock):
            _write(directory, _asking(read_manifest(directory), search))


def _asking(manifest: Mapping[str, Any], search: Mapping[str, Any]) -> dict[str, Any]:
    return {**manifest, SEARCH: _with_earlier(manifest.get(SEARCH), search)}


def _with_earlier(before: Any, search: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a search, with the entries that earlier searches in the same folder have left.

    These entries are the ledger of tested hypotheses, and the seeds on which tuned values were chosen. Such seeds must
    not be used in pairs.
    """
    if not isinstance(before, Mapping):
        return dict(search)
    there, asked = _ledger(before), _ledger(search)
    if there.hypotheses or asked.hypotheses:
        cells = {**there.cells, **asked.cells}
        search = {**search, LEDGER: replace(there.merged(asked.hypotheses), cells=cells).as_yaml}
    elif "family" in before:
        search = {**search, "family": before["family"]}
    tune = before.get("tune")
    seeds = {*_seeds(before.get("chose")), *_seeds(tune.get("seeds") if isinstance(tune, Mapping) else None)}
    left = sorted(seeds - {*_seeds(search.get("tune", {}).get("seeds"))})
    return dict(search) | ({"chose": left} if left else {})


def _with_what_is_given(asked: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the last search, updated by the settings that the sweep was given.

    If the settings come from a search, its baseline is not updated, because the cells of the search and their shares of
    the error probability depend on the baseline.
    """
    is_of_search = "baseline" in asked
    return {**asked, **{key: v for key, v in given.items() if key != "baseline_values" or not is_of_search}}


def _seeds(value: object) -> list[int]:
    return [seed for seed in value if isinstance(seed, int)] if isinstance(value, list) else []


def _add_to_manifest(sweep: Plan, search: Mapping[str, Any] | None) -> None:
    """Write sweep.yaml as described in `write_manifest`. The caller holds the lock of the sweep."""
    names = [run.name for run in sweep.runs]
    before = listed(sweep.directory)
    there = read_manifest(sweep.directory) if before else {}
    asked = there.get(SEARCH)
    if search is not None:
        search = _with_earlier(asked, search)
    else:
        search = (
            _with_what_is_given(asked, sweep.question)
            if isinstance(asked, Mapping)
            else sweep.question or None
        )
    if names and set(names) <= set(before):
        if sweep.question and search != asked:
            _write(sweep.directory, {**there, SEARCH: search})
        return
    made = [name for name in before if name not in names and sweep.directory.run(name).path.exists()]
    manifest = {
        "record": VERSION,
        "sweep": sweep.directory.name,
        "overrides": [mask_text(word) for word in sweep.typed],
        "axes": masked(sweep.axes),
        "runs": [*made, *names],
        "git_commit": git_commit(),
        "versions": {"cpdrun": __version__, "python": platform.python_version(), "torch": version("torch")},
    }
    _write(sweep.directory, manifest | ({SEARCH: dict(search)} if isinstance(search, Mapping) else {}))


def _write(directory: SweepDir, manifest: Mapping[str, Any]) -> None:
    write_text(directory.manifest, yaml.safe_dump(dict(manifest), sort_keys=False))


def listed(directory: SweepDir) -> list[str]:
    """Return the names of the runs in the folder's sweep.yaml. If the file is missing or empty, return an empty list.

    Raises:
        ConfigError: The file cannot be read, was written by a newer version, or was not written by cpdrun.
    """
    path = directory.manifest
    try:
        manifest = read_manifest(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except NewerRecordError as error:
        raise ConfigError(f"{path} {error}") from None
    except ValueError:
        manifest = "no yaml"
    if manifest is None:
        return []
    runs = manifest.get("runs") if isinstance(manifest, Mapping) else None
    if not isinstance(runs, list):
        raise ConfigError(f"{path} is not cpdrun's: move it away, or choose another folder with name=NAME")
    return [str(name) for name in runs]
