"""Configurations that somebody else wrote: a run directory may come from anyone."""

from collections.abc import Mapping
from typing import Any

from cpdrun.config.bounded_yaml import read_yaml
from cpdrun.record.layout import RunDir, SweepDir
from cpdrun.record.version import NewerRecordError, newer

RUNS_LISTED = 16  # times as much as in a configuration may stand in a sweep.yaml, which names every run


def read_config(run: RunDir) -> dict[str, Any]:
    """The configuration of `run`. Raises ValueError, in a line, where it is none; OSError where it cannot be read."""
    config = read_yaml(run.config)
    if not isinstance(config, dict) or "format" not in config:
        raise ValueError("holds no configuration")
    return config


def read_manifest(sweep: SweepDir) -> Any:
    """What the sweep.yaml of `sweep` says. Raises as `read_config`; NewerRecordError, a ValueError, where a newer
    cpdrun wrote it."""
    said = read_yaml(sweep.manifest, RUNS_LISTED)
    if isinstance(said, Mapping) and (problem := newer(said)):
        raise NewerRecordError(problem)
    return said
