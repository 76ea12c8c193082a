"""The pictures, one a file. A module here with a function `draw(study) -> Figure` is a plot of that name.

`draw` raises NotDrawnError with the reason, in words for the user, where the runs do not hold what it needs.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cpdrun.report.study import Study


class NotDrawnError(Exception):
    """This picture would be empty; the message says what is missing."""


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def available() -> Iterator[tuple[str, "Callable[[Study], Figure]"]]:
    """Every plot's name and its draw function, by name."""
    for name in names():
        yield name, importlib.import_module(f"{__name__}.{name}").draw
