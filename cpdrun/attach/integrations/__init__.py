"""Trainers that log, save and resume by themselves, so that a script of theirs needs no line for its run: one file a
library, imported when the script imports the library.

Their gradients are held as anybody's (`cpdrun.attach.hold`). Here the metrics that they log go into the run's record,
and where the run is to stop they save into the run's checkpoint_dir, end the script, and go on from there when it is
started again: to the same bits, for what the run remembers (`Run.state_dict`) goes into each of their checkpoints.

OWN lists the modules that are waited for. An installed package adds its own by an entry point of the group
`cpdrun.integrations`: its name is the module that is waited for, its value a function that is called with that module.
Outside of a run nothing here is imported: no entry point of cpdrun is of a group that another library loads.
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
    """Give each library its integration when it is imported, or now if it already is. Returns what undoes it."""
    waiting = {name: EntryPoint(name, f"{__name__}.{value}", GROUP) for name, value in OWN.items()}
    waiting |= {entry.name: entry for entry in entry_points(group=GROUP)}
    for name in [name for name in waiting if name in sys.modules]:
        _integrate(waiting.pop(name), sys.modules[name])
    finder = _Finder(waiting)
    sys.meta_path.insert(0, finder)
    return lambda: sys.meta_path.remove(finder)


def in_a_run() -> bool:
    """Whether this process is of one."""
    return RUN_DIR in os.environ


def numbers_of(logged: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a library's log entries that are numbers, or tensors of one element."""
    return {name: value for name, value in logged.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, int | float):
        return not isinstance(value, bool)
    return getattr(value, "numel", lambda: 0)() == 1


def _integrate(entry: EntryPoint, module: ModuleType) -> None:
    """A library that is not as its integration knows it trains all the same, and the log says what it lacks."""
    try:
        entry.load()(module)
    except (AttributeError, ImportError, TypeError) as error:
        print(
            f"cpdrun: {entry.name} is not as {entry.value} knows it: {error}; log by run.log", file=sys.stderr
        )


class _Finder(MetaPathFinder):
    """Finds nothing itself: the modules that are waited for are found as ever, and looked at once they are loaded."""

    def __init__(self, waiting: dict[str, EntryPoint]) -> None:
        self.waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        entry = self.waiting.pop(name, None)
        spec = find_spec(name) if entry else None
        if spec is not None and spec.loader is not None:
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
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        _integrate(self.entry, module)
