"""Completion in the shell for experiments, keys, the choices of groups, and the names of sweeps and runs.

Users turn it on in their shell with: eval "$(register-python-argcomplete cpdrun)"
"""

import argparse
import contextlib
from pathlib import Path
from typing import Any

from cpdrun.config.compose import SCRIPT_ROOT, Composer
from cpdrun.config.errors import ConfigError
from cpdrun.config.keys import flatten
from cpdrun.config.scaling import with_short_form
from cpdrun.config.script import SHORT_FORMS, is_of_script
from cpdrun.record.find import DEFAULT_RESULTS_DIR, sweeps_in


def overrides(prefix: str, parsed_args: argparse.Namespace | None = None, **_: Any) -> list[str]:
    """Return the completions of an override.

    Before the equals sign, they are `key=` for every key and group. After `group=`, they are the choices of the group.
    The words that were already typed determine which keys exist. Yaml files in the folder of an earlier --config-dir
    are included.
    """
    typed = getattr(parsed_args, "overrides", None) or []
    with contextlib.suppress(ConfigError), Composer(getattr(parsed_args, "config_dir", None)) as composer:
        if any(is_of_script(word) for word in typed):
            composer.use(SCRIPT_ROOT)
        groups = composer.groups()
        key, equals, _value = prefix.partition("=")
        if equals:
            return [f"{key}={choice}" for choice in groups.get(key, [])]
        chosen = dict(word.split("=", 1) for word in typed if "=" in word)
        choices = {group: chosen[group] for group in groups if chosen.get(group) in groups[group]}
        keys = {
            key
            for key, _ in flatten(composer.compose(with_short_form(composer, choices)))
            if not key.startswith("sweep.")
        }
        return [
            f"{key}=" for key in sorted(keys | set(groups) | set(SHORT_FORMS)) if not key.endswith("_target_")
        ]
    return []


def sweeps(**_: Any) -> list[str]:
    """Return the names of the sweeps in the default results directory."""
    return [sweep.name for sweep in sweeps_in(Path(DEFAULT_RESULTS_DIR))]


def sweeps_and_runs(**_: Any) -> list[str]:
    """Return the names of the sweeps and runs in the default results directory."""
    found = sweeps_in(Path(DEFAULT_RESULTS_DIR))
    return [sweep.name for sweep in found] + [run.name for sweep in found for run in sweep.runs()]


def formats(**_: Any) -> list[str]:
    """Return the names of the listed number formats."""
    from custom_fp.facts import listed

    return [fmt.name for fmt in listed()]
