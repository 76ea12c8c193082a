"""Read the yaml and text files of a record.

A run directory may come from an untrusted source, so the sizes of the files are limited.
"""

from collections.abc import Mapping
from typing import Any

from cpdrun.config.yaml_files import MOST_BYTES, parse_yaml
from cpdrun.record.files import read_record
from cpdrun.record.layout import RunDir, SweepDir
from cpdrun.record.version import NewerRecordError, newer

# The key of the expected total number of runs of a search, in the section `search` of sweep.yaml.
EXPECTED_RUNS = "expected_runs"
# The limits for a sweep.yaml are larger than those for a config by this factor, because sweep.yaml lists every run.
RUNS_LISTED = 16


def read_config(run: RunDir) -> dict[str, Any]:
    """Return the config of a run.

    Raises:
        ValueError: The file does not contain a config. The message is one line.
        OSError: The file cannot be read.
    """
    config = parse_yaml(read_record(run.config, MOST_BYTES))
    if not isinstance(config, dict) or "format" not in config:
        raise ValueError("does not contain a configuration")
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
    """Return the expected total number of runs of a sweep's search, or 0 if sweep.yaml does not contain it."""
    found = read_search(sweep).get(EXPECTED_RUNS)
    return found if isinstance(found, int) else 0


def read_overrides(run: RunDir) -> list[str]:
    """Return the lines of overrides.txt, which are the typed settings. The list is empty if it cannot be read."""
    try:
        return read_record(run.overrides, MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
