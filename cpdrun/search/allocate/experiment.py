"""Write an experiment with cases in place of its axes, as a file that any command reads with --config-dir.

The file says what the experiment's own file says, except for `sweep:`. A user's folder of yaml is copied next to the
file, because a command takes only one folder.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cpdrun.config.compose import EXPERIMENT, Composer
from cpdrun.config.keys import get_key, set_key
from cpdrun.record import write_text
from cpdrun.sweep.request import SCREEN, SEARCH

SWEEP = "sweep"


def body_of(experiment: str, config_dir: Path | None) -> dict[str, Any]:
    """Return what an experiment's file changes of the defaults, including what it takes from other files.

    The result has the file's choices of groups and its values, without the `sweep:` and `screen:` blocks.
    """
    with Composer(config_dir) as composer:
        composed = composer.compose({EXPERIMENT: experiment})
        given = composer.set_by(experiment)
        groups = [group for group in composer.groups() if group in given]
        choices = {group: composer.choice(group, {EXPERIMENT: experiment}) for group in groups}
    overrides = [{f"override /{group}": choice} for group, choice in choices.items() if choice is not None]
    body: dict[str, Any] = {"defaults": [*overrides, "_self_"]}
    for key in given:
        if key not in groups and key.split(".")[0] not in (SWEEP, SCREEN):
            set_key(body, key, get_key(composed, key))
    return body


def write_experiment(
    folder: Path,
    name: str,
    about: str,
    body: Mapping[str, Any],
    cases: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    search: Mapping[str, Any] | None = None,
) -> None:
    """Write an experiment to `folder`/exp/NAME.yaml.

    Args:
        folder: The config directory.
        name: The name of the experiment.
        about: The comment at the top of the file.
        body: The content of the experiment.
        cases: The values of each case.
        seeds: The seeds to list.
        search: A `search:` block in place of the body's, if given.

    Raises:
        OSError: The file cannot be written.
    """
    said = dict(body) | ({SEARCH: dict(search)} if search is not None else {})
    said["sweep"] = {"cases": {key: dict(values) for key, values in cases.items()}, "seed": list(seeds)}
    text = "".join(f"# {line}\n" for line in about.splitlines())
    path = folder / EXPERIMENT / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text + yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=120))


def copy_yaml(config_dir: Path | None, folder: Path) -> None:
    """Copy the user's yaml files to `folder`.

    Raises:
        OSError: A file cannot be copied.
    """
    for path in sorted(config_dir.rglob("*.yaml")) if config_dir is not None else ():
        if not path.resolve().is_relative_to(folder.resolve()):
            target = folder / path.relative_to(config_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
