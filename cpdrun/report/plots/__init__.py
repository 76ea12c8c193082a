"""The pictures, one a file. A module here with a function `draw(study) -> Figure` is a plot of that name.

A plot whose module says `OF_CASES = True` is for studies of named cases, the others are for the rest. `draw` raises
NotDrawnError with the reason, in words for the user, where the runs do not hold what it needs.
"""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cpdrun.report.read.study import Study


class NotDrawnError(Exception):
    """This picture would be empty; the message says what is missing."""


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def part_for(draw: "Callable[[Study], Figure]", study: "Study") -> "Study":
    """What a plot is for: the facets of named cases, or the others."""
    return study.of_facets(getattr(sys.modules.get(draw.__module__), "OF_CASES", False))


def available() -> Iterator[tuple[str, "Callable[[Study], Figure]"]]:
    """Every plot's name and its draw function, by name."""
    for name in names():
        yield name, importlib.import_module(f"{__name__}.{name}").draw
