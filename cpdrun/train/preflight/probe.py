"""What training can count on here, as one JSON object on standard output: `python -m cpdrun.train.preflight.probe`.

`cpdrun doctor` runs it in a process of its own, since the command line imports no torch. Asked so, a part that
is broken enough to end the interpreter is one line of the table and not its end.
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
    """Versions, devices, the backend of custom_fp and the state of each dataset of conf/data.

    A value under "errors" says why a part is missing.
    """
    found: dict[str, Any] = {"errors": {}}
    looks = dict.fromkeys(("torch", "cupy", "custom_fp", "numpy"), _imported)
    for name, look in (looks | {"torchvision": _torchvision, "sklearn": _sklearn}).items():
        try:
            found[name] = look(name)
        except Exception as error:  # a broken wheel raises anything
            found["errors"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
    if "torch" in found:
        found["cuda"] = _cuda()
    if "custom_fp" in found:
        found["backend"] = _backend()
    found["data"] = _data()
    return found


def _imported(name: str) -> str:
    return getattr(importlib.import_module(name), "__version__", "present")


def _torchvision(name: str) -> str:
    """Without its import, which takes longer than torch's: a wheel that does not fit torch cannot be loaded into it."""
    import torch

    for library in sorted(_folder(name).glob("_C*.so")):
        torch.ops.load_library(str(library))
    return version(name)


def _sklearn(name: str) -> str:
    """Without its import, which takes as long as torch's; that its digits can be read, the dataset of them shows."""
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
        warnings.simplefilter("ignore")  # its warning is what the table says
        return custom_fp.backend()


def _data() -> dict[str, str | None]:
    """Each dataset of conf/data that names a class: None where it can be read, else what is missing.

    One that writes what it reads, on its first use, is not made here: what it is written from says enough.
    """
    from cpdrun.train.build import BuildError, build_data

    state: dict[str, str | None] = {}
    for choice in sorted((resources.files("cpdrun.conf") / "data").iterdir(), key=lambda file: file.name):
        spec = yaml.safe_load(choice.read_text()) if choice.name.endswith(".yaml") else None
        if not spec or "???" in spec.values():
            continue
        spec.pop("defaults", None)  # the task that it chooses
        name = choice.name.removesuffix(".yaml")
        if "cache_dir" in spec:
            folder = Path(spec.get("data_dir") or ".").expanduser()
            state[name] = None if folder.is_dir() else f"it is written from the files of {folder}: not there"
            continue
        try:
            build_data({"data": spec})
            state[name] = None
        except BuildError as error:
            state[name] = str(error)
    return state


if __name__ == "__main__":
    print(json.dumps(probe()))
