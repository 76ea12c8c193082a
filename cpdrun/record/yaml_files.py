"""Read the yaml and text files of a record.

A run directory may come from an untrusted source, so the sizes of the files are limited.
"""

from collections.abc import Mapping
from typing import Any

from cpdrun.config.yaml_files import MOST_BYTES, parse_yaml
from cpdrun.record.files import read_record
from cpdrun.record.layout import RunDir, SweepDir
from cpdrun.record.version import NewerRecordError, newer

# The key of the number of runs that a search is likely to take in total, in the block `search` of sweep.yaml.
EXPECTED_RUNS = "expected_runs"
# A sweep.yaml may be this many times as large as a config, because it lists every run.
RUNS_LISTED = 16


def read_config(run: RunDir) -> dict[str, Any]:
    """Return the config of a run.

    Raises:
        ValueError: The file does not contain a config. The message is one line.
        OSError: The file cannot be read.
    """
    config = parse_yaml(read_record(run.config, MOST_BYTES))
    if not isinstance(config, dict) or "format" not in config:
        raise ValueError("holds no configuration")
    return config


def read_manifest(sweep: SweepDir) -> Any:
    """Return the contents of sweep.yaml.

    Raises:
        NewerRecordError: A newer version of cpdrun wrote the file.
        ValueError: The file is not valid yaml.
        OSError: The file cannot be read.
    """
    manifest = parse_yaml(read_record(sweep.manifest, RUNS_LISTED * MOST_BYTES), RUNS_LISTED)
    if isinstance(manifest, Mapping) and (problem := newer(manifest)):
        raise NewerRecordError(problem)
    return manifest


def read_search(sweep: SweepDir) -> Mapping[str, Any]:
    """Return the `search` block of sweep.yaml. It is empty if the file has none or cannot be read."""
    try:
        manifest = read_manifest(sweep)
    except (OSError, ValueError):
        return {}
    block = manifest.get("search") if isinstance(manifest, Mapping) else None
    return block if isinstance(block, Mapping) else {}


def read_expected_runs(sweep: SweepDir) -> int:
    """Return the number of runs that the search of a sweep is likely to take in total; 0 if sweep.yaml has none."""
    found = read_search(sweep).get(EXPECTED_RUNS)
    return found if isinstance(found, int) else 0


def read_overrides(run: RunDir) -> list[str]:
    """Return the settings that were typed, which are the lines of overrides.txt. Empty if it cannot be read."""
    try:
        return read_record(run.overrides, MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
