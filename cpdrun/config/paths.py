"""Names and paths that a file system takes."""

import os
from pathlib import Path

from cpdrun.config.errors import ConfigError

RESULTS_DIR = "results_dir="
MOST_NAME_BYTES = 255  # of a file, on the file systems of Linux
MOST_PATH_BYTES = 4096
DEEPEST_FILE_BYTES = 96  # of what lies in a run's folder, temporary names included


def results_dir_of(text: str) -> str:
    """Return the folder that `results_dir=PATH` names: any characters, in quotes or not."""
    value = text.removeprefix(RESULTS_DIR)
    is_quoted = len(value) > 2 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


def check_path(folder: Path) -> None:
    """Raise ConfigError for a run's folder whose files no file system would take."""
    name = folder.name
    size = len(os.fsencode(name))
    if size > MOST_NAME_BYTES:
        raise ConfigError(
            f"a run's folder would be called {name[:40]}..., {size} bytes; file systems take {MOST_NAME_BYTES}: "
            "shorten the name of the model's class or of the format"
        )
    size = len(os.fsencode(folder.absolute()))
    if size > MOST_PATH_BYTES - DEEPEST_FILE_BYTES:
        raise ConfigError(f"results_dir: the paths of runs would be {size} bytes long; choose a shorter one")
