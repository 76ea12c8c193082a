"""What the shell offers after <TAB>: experiments, keys, the choices of groups, names of sweeps and runs.

Switched on once in the user's shell: eval "$(register-python-argcomplete cpdrun)"
"""

from pathlib import Path
from typing import Any

from cpdrun.config.compose import Composer
from cpdrun.config.keys import flatten
from cpdrun.record.find import DEFAULT_RESULTS_DIR, sweeps_in


def overrides(prefix: str, **_: Any) -> list[str]:
    """`key=` for every key and group; behind `group=`, its choices."""
    with Composer() as composer:
        groups = composer.groups()
        key, equals, _value = prefix.partition("=")
        if equals:
            return [f"{key}={choice}" for choice in groups.get(key, [])]
        keys = {key for key, _ in flatten(composer.compose({}))}
        return [f"{key}=" for key in sorted(keys | set(groups)) if not key.endswith("_target_")]


def sweeps(**_: Any) -> list[str]:
    return [sweep.name for sweep in sweeps_in(Path(DEFAULT_RESULTS_DIR))]


def sweeps_and_runs(**_: Any) -> list[str]:
    found = sweeps_in(Path(DEFAULT_RESULTS_DIR))
    return [sweep.name for sweep in found] + [run.name for sweep in found for run in sweep.runs()]
