"""What training can count on here, as one JSON object on standard output: `python -m cpdrun.train.probe`.

`cpdrun doctor` runs it in a process of its own, since the command line imports no torch. Asked so, a part that
is broken enough to end the interpreter is one line of the table and not its end.
"""

import importlib
import json
import warnings
from importlib import resources
from typing import Any

import yaml


def probe() -> dict[str, Any]:
    """Versions, devices, the backend of custom_fp and the state of each dataset of conf/data.

    A value under "errors" says why a part is missing.
    """
    found: dict[str, Any] = {"errors": {}}
    for name in ("torch", "torchvision", "cupy", "custom_fp", "numpy", "sklearn"):
        try:
            found[name] = getattr(importlib.import_module(name), "__version__", "present")
        except Exception as error:  # a broken wheel raises anything
            found["errors"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
    if "torch" in found:
        found["cuda"] = _cuda()
    if "custom_fp" in found:
        found["backend"] = _backend()
    found["data"] = _data()
    return found


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
    """Each dataset of conf/data that names a class: None where it can be read, else what is missing."""
    from cpdrun.train.build import BuildError, build_data

    state: dict[str, str | None] = {}
    for choice in sorted((resources.files("cpdrun.conf") / "data").iterdir(), key=lambda file: file.name):
        spec = yaml.safe_load(choice.read_text()) if choice.name.endswith(".yaml") else None
        if not spec or "???" in spec.values():
            continue
        name = choice.name.removesuffix(".yaml")
        try:
            build_data({"data": spec})
            state[name] = None
        except BuildError as error:
            state[name] = str(error)
    return state


if __name__ == "__main__":
    print(json.dumps(probe()))
