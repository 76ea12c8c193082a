"""What a run needs that is not here, as far as that shows without running any code: folders of data, and twins that do
with less. What is in a folder, and whether a model takes it, is looked at before a start (train/preflight/look.py)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpdrun.config.compose import Composer, resolve
from cpdrun.config.errors import ConfigError
from cpdrun.config.keys import flatten

TWIN = "_small"  # of an experiment: the same question where nothing has to be fetched
NEEDS_NOTHING = "exp=digits_bits"
WRITTEN_BY_US = ("cache_dir",)


def missing_folders(config: Mapping[str, Any]) -> list[str]:
    """`data.data_dir=data/imagenet` for every folder of the data that is not there."""
    data = config.get("data")
    return [
        f"data.{key}={value}"
        for key, value in flatten(data if isinstance(data, Mapping) else {})
        if _names_a_folder(key) and isinstance(value, str) and not Path(value).expanduser().is_dir()
    ]


def twin(exp: str | None, config_dir: Path | None) -> str:
    """`exp=resnet50_bits_small needs nothing that is not here`: the experiment's twin or, where it has none that does
    without what is missing, the one that needs nothing anywhere."""
    name = f"{exp}{TWIN}"
    try:
        with Composer(config_dir) as composer:
            if name not in composer.groups()["exp"]:
                return f"{NEEDS_NOTHING} needs nothing"
            config = composer.compose({"exp": name})
            config.pop("sweep", None)
            data = resolve(config)["data"]
    except ConfigError:
        return f"{NEEDS_NOTHING} needs nothing"
    if missing := missing_folders({"data": data}):
        return f"exp={name} needs {' and '.join(missing)} alone, {NEEDS_NOTHING} nothing"
    ships = not any(_names_a_folder(key) for key, _ in flatten(data))
    return f"exp={name} needs {'nothing' if ships else 'nothing that is not here'}"


def _names_a_folder(key: str) -> bool:
    return key.endswith("_dir") and key not in WRITTEN_BY_US
