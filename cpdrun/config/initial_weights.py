"""The checkpoint from which runs start (`init_from`). Its content identifies the runs, not its path.

A script gets the path as {init_from} in its arguments. If an argument such as `--resume FILE` names a checkpoint that
exists, `init_from` is this checkpoint, although nobody typed the key.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.input_files import digest_folder, files_in, sha256_of
from cpdrun.config.script import SCRIPT, is_script, typed_words

INIT_FROM = "{init_from}"
# The options whose value is a checkpoint that a script reads. Names that could also mean an output file are left out,
# because a file that a run writes itself cannot identify the run.
READS_CHECKPOINT = re.compile(r"resume|restore|pretrained|init[-_]from|from[-_](checkpoint|ckpt)", re.I)


def find_initial_weights(config: dict[str, Any]) -> None:
    """Make `init_from` absolute and set `init_sha256`, in place. Without a checkpoint, change nothing.

    The path must be absolute because the run may be started in another folder.

    Raises:
        ConfigError: The file cannot be read, the config has another digest, or a script does not get the file.
    """
    given = config["init_from"]
    if is_script(config):
        named = _named_by_argument(config)
        has_placeholder = INIT_FROM in f"{config[SCRIPT]['launch_with']} {typed_words(config)}"
        if has_placeholder and given is None:
            raise ConfigError(f"the script's arguments have {INIT_FROM}. Type init_from=PATH, too")
        if given is not None and not has_placeholder and named != Path(given).expanduser().absolute():
            raise ConfigError(
                f"init_from={given}: the script is not given this file. Pass it to the script's own option, such as "
                f"script_args='--resume {INIT_FROM}'"
            )
        given = named if given is None else given
    if given is None:
        return
    path = Path(given).expanduser().absolute()
    digest = _digest(path, may_be_folder=is_script(config))
    if config["init_sha256"] not in (None, digest):
        raise ConfigError(
            f"init_sha256={config['init_sha256']} does not match: {path} has the digest {digest}"
        )
    config["init_from"], config["init_sha256"] = str(path), digest


def check_unchanged(config: Mapping[str, Any]) -> None:
    """Check that the checkpoint of a script's run is the one with which the run was planned.

    Raises:
        ConfigError: It is gone, or its content has changed.
    """
    if config.get("init_from") is None:
        return
    path = Path(config["init_from"])
    if _digest(path, may_be_folder=True) != config["init_sha256"]:
        raise ConfigError(
            f"{path} has changed since this run was planned. If the script saves there, make it save to "
            "{run_dir} instead. Otherwise, type the command again to plan new runs"
        )


def _named_by_argument(config: Mapping[str, Any]) -> Path | None:
    """Return the first existing file or folder that an option such as --resume names, or None.

    Values with placeholders are left out. If each seed has a checkpoint of its own, no single file identifies all runs,
    and runs do not share a file in the run's own folder.
    """
    folder, option = Path(config[SCRIPT]["work_dir"]), ""
    for word in typed_words(config):
        name, equals, value = word.partition("=")
        if not equals:
            name, value = ("", "") if word.startswith("-") else (option, word)
        option = word if word.startswith("-") else ""
        if value.strip("./") and "{" not in value and READS_CHECKPOINT.search(name):
            path = (folder / Path(value).expanduser()).absolute()
            if path.exists():
                return path
    return None


def _digest(path: Path, *, may_be_folder: bool) -> str:
    """Return the SHA-256 digest of a file, or of the names and contents of the files in a folder.

    Raises:
        ConfigError: A file cannot be read.
    """
    if not (may_be_folder and path.is_dir()):
        return sha256_of("init_from", path)
    return digest_folder("init_from", path, files_in(path))
