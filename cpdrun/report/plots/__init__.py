"""Provide the plots of a report.

Each module without a leading underscore is a plot and defines these names:

TITLE     The heading on the page.
QUESTION  The key of the question in QUESTIONS that the plot answers. A plot without it comes last.
ALT       A sentence that describes the picture for readers who cannot see it.
draw      A function draw(study) -> Figure. It raises NotDrawnError with a reason for the user if the runs lack the
          data that the plot needs.
OF_CASES  True for a plot of named cases, None for a plot of all runs, False (the default) for a plot of runs that
          are not named cases.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cpdrun.study.study import Study


# The questions of a reader by key, in the order of the page.
QUESTIONS = {
    "enough": "How many bits are enough?",
    "sure": "How sure is that?",
    "workers": "And with more workers, in other orders of summation?",
    "cost": "What does it cost?",
    "time": "How fast is a step?",
    "why": "Why?",
    "training": "How did they train?",
    "": "Other pictures",
}


class NotDrawnError(Exception):
    """An error that says which data is missing, raised if a picture would be empty."""


@dataclass(frozen=True)
class Plot:
    """A plot, with the names that its module defines.

    Attributes:
        name: The name of the module and of the file.
        title: The heading on the page.
        question: The key of the question that the plot answers, or "".
        alt: A sentence that describes the picture.
        of_cases: Whether the plot is for named cases, or None if it is for all runs.
        draw: The function that draws a study.
    """

    name: str
    title: str
    question: str
    alt: str
    of_cases: bool | None
    draw: "Callable[[Study], Figure]"


def names() -> list[str]:
    """Return the names of all plots, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def available() -> Iterator[Plot]:
    """Yield every plot, sorted by name."""
    for name in names():
        module = importlib.import_module(f"{__name__}.{name}")
        question, of_cases = getattr(module, "QUESTION", ""), getattr(module, "OF_CASES", False)
        yield Plot(name, module.TITLE, question, module.ALT, of_cases, module.draw)
