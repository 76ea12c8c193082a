"""Read and write sweep.yaml, the manifest in a sweep's folder.

The manifest contains the overrides, the axes, the names of the runs, and the question: the settings of the last search,
such as its baseline and margin.
"""

import platform
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import yaml

from cpdrun import __version__
from cpdrun.config.errors import ConfigError
from cpdrun.config.plan import Plan
from cpdrun.config.request import SEARCH
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

LEDGER = "ledger"


def read_ledger(directory: SweepDir) -> Ledger:
    """Return the ledger of the hypotheses that were tested in a sweep's folder.

    The ledger is empty if the manifest has no hypotheses or cannot be read.
    """
    return _ledger(read_search(directory))


def write_ledger(directory: SweepDir, hypotheses: Collection[Hypothesis]) -> None:
    """Add hypotheses to the ledger in sweep.yaml, unless the folder lists no runs.

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

    Runs that another command has created in the folder remain in the list. The settings of the last search, which a
    report uses, are also kept, unless this sweep sets them. If the file already lists all runs, only these settings are
    updated.

    Args:
        sweep: The planned sweep.
        search: The settings of the search that starts these runs, if any. They replace the settings of the last search.

    Raises:
        OSError: The folder cannot be written.
        ConfigError: cpdrun did not write the existing sweep.yaml.
    """
    sweep.directory.path.mkdir(parents=True, exist_ok=True)
    with locked(sweep.directory.lock):  # Another command may add runs at the same time.
        _add_to_manifest(sweep, search)


def write_question(directory: SweepDir, search: Mapping[str, Any]) -> None:
    """Replace the settings of the last search in sweep.yaml, unless the folder lists no runs.

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
    """Add the results of earlier searches in the same folder to the settings of a search.

    These are the ledger of tested hypotheses, and the seeds with which tuned values were chosen. Such seeds must not be
    used in pairs.
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


def _with_own_settings(asked: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Update the settings of the last search with those that this sweep sets.

    The baseline of the search is kept, because its cells and their shares of the error probability depend on it.
    """
    is_of_search = "baseline" in asked
    return {**asked, **{key: v for key, v in given.items() if key != "baseline_values" or not is_of_search}}


def _seeds(value: object) -> list[int]:
    return [seed for seed in value if isinstance(seed, int)] if isinstance(value, list) else []


def _add_to_manifest(sweep: Plan, search: Mapping[str, Any] | None) -> None:
    """Implement `write_manifest`. The caller must have locked the sweep."""
    names = [run.name for run in sweep.runs]
    before = listed(sweep.directory)
    there = read_manifest(sweep.directory) if before else {}
    asked = there.get(SEARCH)
    if search is not None:
        search = _with_earlier(asked, search)
    else:
        search = (
            _with_own_settings(asked, sweep.question)
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
    """Return the names of the runs in the folder's sweep.yaml, if it exists.

    Raises:
        ConfigError: The file cannot be read, or another program or a newer version wrote it.
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
        raise ConfigError(
            f"{path} was not written by cpdrun: move it away, or choose another folder with name=NAME"
        )
    return [str(name) for name in runs]
