"""Find missing data folders, and suggest smaller experiments that do not need them.

No code of the run is executed. train/preflight/check.py checks the contents of the folders before the start.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpdrun.config.compose import Composer, resolve
from cpdrun.config.errors import ConfigError
from cpdrun.config.keys import flatten

SMALLER = "_small"  # the suffix of an experiment that compares the same formats at a smaller size
NEEDS_NOTHING = "exp=digits_bits"
WRITTEN_BY_US = ("cache_dir",)  # cpdrun creates these folders itself


def missing_folders(config: Mapping[str, Any]) -> list[str]:
    """Return an override such as `data.data_dir=data/imagenet` for each missing data folder."""
    data = config.get("data")
    return [
        f"data.{key}={value}"
        for key, value in flatten(data if isinstance(data, Mapping) else {})
        if _names_a_folder(key) and isinstance(value, str) and not Path(value).expanduser().is_dir()
    ]


def smaller_experiment(exp: str | None, config_dir: Path | None) -> str:
    """Return a suggestion such as `exp=resnet50_bits_small needs no data folder`.

    The suggestion is the experiment with the suffix `_small`. If there is none, or if it needs missing folders as well,
    `exp=digits_bits` is suggested.
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
