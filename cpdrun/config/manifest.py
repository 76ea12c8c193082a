"""Read and write sweep.yaml, the manifest in a sweep's folder.

The manifest is optional in records of other tools. A report judges the question in `search`, unless its command sets
another one. You can also write this section by hand: `search: {baseline: {format: bf16}}` compares with bf16.

Keys:
    record: The version of the record. The default is 1.
    sweep: The name of the sweep.
    overrides: What was typed.
    axes: The values of each axis.
    runs: The names of the requested runs. The report counts those that do not exist yet.
    git_commit: The commit of the code that wrote the file.
    versions: The versions of that code and its libraries.
    written_by: The function that wrote the file, if it was not a command that trains.
    search: The question of the last search, or of a sweep with `search.tolerance`, `search.confidence` or
        `search.metric`.

A cell is a set of runs that differ only in the seed.

Keys of `search`:
    tolerance: The margin: how much worse than the baseline is still good enough, in the unit in which the metric is
        shown (percentage points for a share), or a percentage such as `2%` of the baseline's final value or of its
        improvement, whichever is smaller.
    confidence: In percent.
    metric: The metric to judge by.
    baseline: The settings that identify the baseline, such as `{format: bf16}`.
    baseline_values: The same with the keys of config.yaml, if a setting is the choice of a group: `{aps: false}` for
        `{scaling: none}`.
    axis: The axis of bits that was searched, if it is not `format`, such as `precision.weights`.
    ledger: The hypotheses that were tested, append-only. Each of `hypotheses` has its `metric`, its `candidate` and
        `baseline` (names of cells), the cells of which one must be certified first (`opened_by`), its `weight` (its
        share of the error probability) and, once fixed, the `prior` of its spread (`deviation` and `degrees`). `cells`
        maps the cells of tuned candidates to the names that were typed. Sweeps of earlier versions have `family`
        instead: the numbers of chains and of formats.
    start: The start of a search that begins at a prediction (`search.start`), once it is known. `chain` maps the name
        of each chain to the `bits` that are tested first, `aside` (the seed that is in no pair, because the prediction
        used it), and `cells` (the names of its candidates' runs with seed 0). Without it, each chain starts at its
        widest format. The next search in the folder with the same tolerance and baseline starts there, too, unless
        `search.start=` is typed.
    expected_runs: The number of runs that the search is likely to take in total, given the evidence so far. `cpdrun
        status` estimates the remaining time from it.
    chose: The seeds with which an earlier search in the folder tuned. Their runs are in no pair.
    tune: What was tuned for each format first: the `values` of each key, and the `seeds` that were used.
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
