"""Report what this machine has for training, as a JSON object: `python -m cpdrun.train.preflight.probe`.

`cpdrun doctor` runs this module in a separate process, because the command line imports no torch. If a part is so
broken that it ends the interpreter, doctor can still report the others.
"""

import importlib.util
import json
import warnings
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml


def probe() -> dict[str, Any]:
    """Return versions, devices, the backend of custom_fp and the state of each dataset of conf/data.

    A value under "errors" explains why a part is missing.
    """
    found: dict[str, Any] = {"errors": {}}
    probes = dict.fromkeys(("torch", "cupy", "custom_fp", "numpy"), _import_version)
    for name, probe_version in (probes | {"torchvision": _torchvision, "sklearn": _sklearn}).items():
        try:
            found[name] = probe_version(name)
        except Exception as error:  # A broken wheel may raise any exception.
            found["errors"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
    if "torch" in found:
        found["cuda"] = _cuda()
    if "custom_fp" in found:
        found["backend"] = _backend()
    found["data"] = _data()
    return found


def _import_version(name: str) -> str:
    return getattr(importlib.import_module(name), "__version__", "present")


def _torchvision(name: str) -> str:
    """Return the version if torchvision's libraries can be loaded. Importing it takes longer than importing torch."""
    import torch

    for library in sorted(_folder(name).glob("_C*.so")):
        torch.ops.load_library(str(library))
    return version(name)


def _sklearn(name: str) -> str:
    """Return the version without importing scikit-learn, which takes as long as importing torch."""
    _folder(name)
    return version("scikit-learn")


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}")
    return Path(spec.origin).parent


def _cuda() -> dict[str, Any]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"built_for": torch.version.cuda, "available": torch.cuda.is_available(), "devices": names}


def _backend() -> str:
    import custom_fp

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # The table of `cpdrun doctor` contains the information of the warning.
        return custom_fp.backend()


def _data() -> dict[str, str | None]:
    """Return, for each dataset of conf/data with a class, None if it can be read, or what is missing.

    Datasets that write their own files on first use are not made. Only the folder with their sources is checked.
    """
    from cpdrun.train.build import BuildError, build_data

    state: dict[str, str | None] = {}
    for choice in sorted((resources.files("cpdrun.conf") / "data").iterdir(), key=lambda file: file.name):
        spec = yaml.safe_load(choice.read_text()) if choice.name.endswith(".yaml") else None
        if not spec or "???" in spec.values() or "files_sha256" in spec:
            continue  # The user names the class or the files.
        spec.pop("defaults", None)  # its choice of a task
        name = choice.name.removesuffix(".yaml")
        if "cache_dir" in spec:
            folder = Path(spec.get("data_dir") or ".").expanduser()
            state[name] = (
                None if folder.is_dir() else f"the folder of its source files does not exist: {folder}"
            )
            continue
        try:
            build_data({"data": spec})
            state[name] = None
        except BuildError as error:
            state[name] = str(error)
    return state


if __name__ == "__main__":
    print(json.dumps(probe()))
