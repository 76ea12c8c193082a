"""Shell completion of experiments, keys, values, sweeps and runs.

Users turn it on with: eval "$(register-python-argcomplete cpdrun)"

Completion must take less than 0.3 s, so this module reads the yaml files of conf/ itself instead of composing them with
Hydra.
"""

import argparse
import contextlib
import glob
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpdrun.config.script import SHORT_FORMS
from cpdrun.config.yaml_files import EXPERIMENT, ROOT, SCRIPT_ROOT, yaml_packages

if TYPE_CHECKING:
    from cpdrun.record import SweepDir


def overrides(prefix: str, parsed_args: argparse.Namespace | None = None, **_: Any) -> list[str]:
    """Return the completions of an override: `key=`, or the values of the key.

    The existing keys depend on the overrides that were typed before, and on --config-dir.
    """
    words = getattr(parsed_args, "overrides", None) or []
    chosen = dict(word.split("=", 1) for word in words if "=" in word)
    folders = _folders(getattr(parsed_args, "config_dir", None))
    key, equals, typed = prefix.partition("=")
    if not equals:
        is_script = any(word.split("=")[0] in SHORT_FORMS for word in words)
        keys = {*_keys(folders, chosen, SCRIPT_ROOT if is_script else ROOT), *SHORT_FORMS}
        return [f"{name}=" for name in sorted(keys)]
    earlier, comma, _last = typed.rpartition(",")
    return [f"{key}={earlier}{comma}{value}" for value in _values(key, typed, folders)]


def sweeps(**_: Any) -> list[str]:
    return [sweep.name for sweep in _sweeps()]


def sweeps_and_runs(**_: Any) -> list[str]:
    return [*sweeps(), *(run.name for sweep in _sweeps() for run in sweep.runs())]


def formats(**_: Any) -> list[str]:
    from custom_fp.properties import listed

    return [fmt.name for fmt in listed()]


def _sweeps() -> "list[SweepDir]":
    from cpdrun.record.find import DEFAULT_RESULTS_DIR, sweeps_in

    return sweeps_in(Path(DEFAULT_RESULTS_DIR))


def _folders(config_dir: Path | None) -> list[Path]:
    """Return all folders of yaml files: the user's, if any, and those of cpdrun and other installed packages."""
    found = [config_dir] if config_dir else []
    with contextlib.suppress(ImportError):  # The command itself reports this error.
        for package in yaml_packages():
            spec = find_spec(package)
            found += [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    return found


def _values(key: str, typed: str, folders: list[Path]) -> list[str]:
    """Return the values of a key. `typed` is the text after the equals sign."""
    if key in ("script", "script.path"):
        return _scripts(typed)
    if key == "format":
        return formats()
    if key == "aps":
        return ["false", "true"]
    return sorted({file.stem for folder in folders for file in folder.glob(f"{key}/*.yaml")} if key else ())


def _scripts(typed: str) -> list[str]:
    """Return the folders and Python files whose paths start with the typed text."""
    paths = sorted(Path(path) for path in glob.glob(f"{glob.escape(typed)}*"))  # noqa: PTH207 (keeps "./")
    return [
        f"{path}/" if path.is_dir() else str(path) for path in paths if path.is_dir() or path.suffix == ".py"
    ]


def _keys(folders: list[Path], chosen: Mapping[str, str], root: str) -> set[str]:
    """Return all groups, and the keys of a config with the chosen groups."""
    names = [root, *([f"{EXPERIMENT}/{chosen[EXPERIMENT]}"] if EXPERIMENT in chosen else [])]
    bodies = [body for name in names for body in _read(folders, name)]
    defaults = [entry for body in bodies for entry in body.get("defaults", ())]
    choices: dict[str, Any] = {EXPERIMENT: None}
    for entry in defaults:
        if isinstance(entry, dict):
            for group, choice in entry.items():
                choices[group.split()[-1].lstrip("/").partition("@")[0]] = choice
    choices["scaling"] = "aps"  # The user may still type aps=true, which adds these keys.
    found = {key for body in bodies for key in _flat(body) if key.split(".")[0] not in ("defaults", "sweep")}
    for group, choice in {**choices, **{key: chosen[key] for key in choices if key in chosen}}.items():
        if group != EXPERIMENT and choice:
            parts = _read(folders, f"{group}/{choice}")
            found |= {f"{group}.{key}" for part in parts for key in _flat(part) if key != "defaults"}
    return {key for key in found | set(choices) if not key.endswith("_target_")}


def _read(folders: list[Path], name: str) -> Iterator[dict[str, Any]]:
    """Yield the content of a yaml file and of the files in its defaults list."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    file = next((path for folder in folders if (path := folder / f"{name}.yaml").is_file()), None)
    try:
        body = None if file is None else yaml.load(file.read_text(encoding="utf-8"), loader)
    except (OSError, ValueError, yaml.YAMLError):  # The command itself reports this error.
        return
    if isinstance(body, dict):
        yield body
        for entry in body.get("defaults") or ():
            if isinstance(entry, str) and entry != "_self_":
                yield from _read(folders, f"{name.rpartition('/')[0]}/{entry}".lstrip("/"))


def _flat(body: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in body.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
