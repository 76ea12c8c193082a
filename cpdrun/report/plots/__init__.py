"""The pictures, one a file. A module here is a plot of its name. It states

TITLE     its heading on the page
QUESTION  which of QUESTIONS it answers; one that names none stands last
ALT       what it shows, in a sentence, for those who cannot see it
draw      draw(study) -> Figure; raises NotDrawnError with the reason, in words for the user, where the runs do not
          hold what it needs
OF_CASES  True where it is for studies of named cases, None where it is for all; the others are for the rest
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cpdrun.study.study import Study


# what a reader asks, in that order
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
    """This picture would be empty; the message says what is missing."""


@dataclass(frozen=True)
class Plot:
    name: str  # of its file
    title: str
    question: str
    alt: str
    of_cases: bool | None
    draw: "Callable[[Study], Figure]"


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def available() -> Iterator[Plot]:
    """Every plot, by name."""
    for name in names():
        module = importlib.import_module(f"{__name__}.{name}")
        question, of_cases = getattr(module, "QUESTION", ""), getattr(module, "OF_CASES", False)
        yield Plot(name, module.TITLE, question, module.ALT, of_cases, module.draw)
