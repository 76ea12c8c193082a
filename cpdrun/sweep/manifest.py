"""sweep.yaml: what a sweep's folder was asked for, what a search there asks, and the names of its runs."""

import platform
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import yaml

from cpdrun import __version__
from cpdrun.config.errors import ConfigError
from cpdrun.config.secrets import mask_text, masked
from cpdrun.record import VERSION, NewerRecordError, SweepDir, git_commit, locked, read_manifest, write_text
from cpdrun.stats.ledger import Hypothesis, Ledger
from cpdrun.sweep.asked import SEARCH
from cpdrun.sweep.runs import Plan

LEDGER = "ledger"


def read_ledger(directory: SweepDir) -> Ledger:
    """Return the hypotheses that a sweep was asked; an empty ledger if there are none, or none that can be read."""
    try:
        manifest = read_manifest(directory)
    except (OSError, ValueError):
        return Ledger()
    block = manifest.get(SEARCH) if isinstance(manifest, Mapping) else None
    return _ledger(block) if isinstance(block, Mapping) else Ledger()


def write_ledger(directory: SweepDir, hypotheses: Collection[Hypothesis]) -> None:
    """Add hypotheses to the ledger in sweep.yaml. Raises as `write_manifest`."""
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
    """sweep.yaml: what was asked for. One that asks for all of it already is left as it is, and runs that another
    command has made in the same folder stay listed; so does the last search's question, `search`, for the report, but
    for what this sweep was given of it.
    Raises OSError where the folder cannot be written, and ConfigError for a sweep.yaml that is not ours to replace."""
    sweep.directory.path.mkdir(parents=True, exist_ok=True)
    with locked(sweep.directory.lock):  # two commands typed at once keep each other's runs
        _add_to_manifest(sweep, search)


def write_question(directory: SweepDir, search: Mapping[str, Any]) -> None:
    """Another search of the same runs: its question takes the place of the last one's in sweep.yaml, where there is
    one. Raises as `write_manifest`."""
    if listed(directory) and (there := read_manifest(directory)) != _asking(there, search):
        with locked(directory.lock):
            _write(directory, _asking(read_manifest(directory), search))


def _asking(manifest: Mapping[str, Any], search: Mapping[str, Any]) -> dict[str, Any]:
    return {**manifest, SEARCH: _with_earlier(manifest.get(SEARCH), search)}


def _with_earlier(before: Any, search: Mapping[str, Any]) -> dict[str, Any]:
    """Return the question with what earlier ones in the same folder leave behind: the ledger of hypotheses, and the
    seeds that chose tuned values, which are in no pair."""
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
    """A search's baseline stays: its cells and what they share of the error are of it."""
    is_of_search = "baseline" in asked
    return {**asked, **{key: v for key, v in given.items() if key != "baseline_values" or not is_of_search}}


def _seeds(value: object) -> list[int]:
    return [seed for seed in value if isinstance(seed, int)] if isinstance(value, list) else []


def _add_to_manifest(sweep: Plan, search: Mapping[str, Any] | None) -> None:
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
    """The runs of the folder's sweep.yaml; none where there is no such file, or nothing in it. Raises ConfigError for
    one that cpdrun did not write."""
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
