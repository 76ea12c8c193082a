"""Checks for data folders that do not exist, and suggestions of smaller experiments that do not need them.

No code of the run is executed. The contents of the folders, and whether a model accepts them, are checked before the
start in train/preflight/look.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpdrun.config.compose import Composer, resolve
from cpdrun.config.errors import ConfigError
from cpdrun.config.keys import flatten

# The suffix in the name of the smaller version of an experiment. This version compares the same formats at a smaller
# size.
SMALLER = "_small"
# An experiment that needs no data folder.
NEEDS_NOTHING = "exp=digits_bits"
# Keys of folders that cpdrun creates itself.
WRITTEN_BY_US = ("cache_dir",)


def missing_folders(config: Mapping[str, Any]) -> list[str]:
    """Return an override such as `data.data_dir=data/imagenet` for each data folder that does not exist."""
    data = config.get("data")
    return [
        f"data.{key}={value}"
        for key, value in flatten(data if isinstance(data, Mapping) else {})
        if _names_a_folder(key) and isinstance(value, str) and not Path(value).expanduser().is_dir()
    ]


def smaller_experiment(exp: str | None, config_dir: Path | None) -> str:
    """Return which experiment to run instead, such as `exp=resnet50_bits_small needs no data folder`.

    The suggestion is the experiment whose name has the suffix `_small`. If there is no such experiment, the suggestion
    is `exp=digits_bits`, which needs no data folder. If the experiment with the suffix needs folders that do not exist
    either, the text names both experiments.
    """
    name = f"{exp}{SMALLER}"
    try:
        with Composer(config_dir) as composer:
            if name not in composer.groups()["exp"]:
                return f"{NEEDS_NOTHING} needs no data folder"
            config = composer.compose({"exp": name})
            config.pop("sweep", None)
            data = resolve(config)["data"]
    except ConfigError:
        return f"{NEEDS_NOTHING} needs no data folder"
    if missing := missing_folders({"data": data}):
        return f"exp={name} needs only {' and '.join(missing)}, and {NEEDS_NOTHING} needs no data folder"
    ships = not any(_names_a_folder(key) for key, _ in flatten(data))
    return f"exp={name} needs {'no data folder' if ships else 'only data folders that exist'}"


def _names_a_folder(key: str) -> bool:
    return key.endswith("_dir") and key not in WRITTEN_BY_US
