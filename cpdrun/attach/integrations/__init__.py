"""Integrations of trainer libraries, so that scripts that use such a library need no changes to be part of a run.

Each library has one file, which is imported when the script imports the library. The metrics that the trainer logs are
recorded. When the run should stop, the trainer saves a checkpoint to the run's checkpoint_dir, and the script ends.
When the script is started again, the trainer resumes from the checkpoint with the same bits, because its checkpoints
contain the result of `Run.state_dict`.

OWN lists the modules that have an integration. An installed package can add an integration with an entry point in the
group `cpdrun.integrations`. The name of the entry point is the name of a module, and its value is a function that is
called with that module. Outside of a run, these integrations are never imported, because cpdrun has no entry point in a
group that other libraries load.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from cpdrun.attach.environment import RUN_DIR

GROUP = "cpdrun.integrations"
OWN = {
    "accelerate.accelerator": "accelerate:install",
    "lightning.pytorch.trainer.trainer": "lightning:install",
    "pytorch_lightning.trainer.trainer": "lightning:install",
    "lightning.fabric.fabric": "lightning:install_fabric",
    "lightning_fabric.fabric": "lightning:install_fabric",
    "transformers.trainer": "transformers:install",
}


def watch() -> Callable[[], None]:
    """Call each integration when its library is imported, or now if the library is already imported.

    Return a function that stops this.
    """
    waiting = {name: EntryPoint(name, f"{__name__}.{value}", GROUP) for name, value in OWN.items()}
    waiting |= {entry.name: entry for entry in entry_points(group=GROUP)}
    for name in [name for name in waiting if name in sys.modules]:
        _integrate(waiting.pop(name), sys.modules[name])
    finder = _Finder(waiting)
    sys.meta_path.insert(0, finder)
    return lambda: sys.meta_path.remove(finder)


def in_a_run() -> bool:
    """Return whether this process is part of a run."""
    return RUN_DIR in os.environ


def numbers_of(logged: Mapping[str, Any]) -> dict[str, Any]:
    """Return the logged values that are numbers, or tensors of one element."""
    return {name: value for name, value in logged.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, int | float):
        return not isinstance(value, bool)
    return getattr(value, "numel", lambda: 0)() == 1


def _integrate(entry: EntryPoint, module: ModuleType) -> None:
    """Call an integration. If it does not support the library's version, print a line, and let the script continue."""
    try:
        entry.load()(module)
    except (AttributeError, ImportError, TypeError) as error:
        print(
            f"cpdrun: {entry.value} does not support this version of {entry.name} ({error}). Log metrics with run.log",
            file=sys.stderr,
        )


class _Finder(MetaPathFinder):
    """Finds modules that have an integration in the usual way, and calls the integration after a module is loaded."""

    def __init__(self, waiting: dict[str, EntryPoint]) -> None:
        self.waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        entry = self.waiting.pop(name, None)
        spec = find_spec(name) if entry else None
        if entry is not None and spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, entry)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Any, entry: EntryPoint) -> None:
        self.loader, self.entry = loader, entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        _integrate(self.entry, module)
