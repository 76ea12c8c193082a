"""The plots of a report.

A module without a leading underscore defines `PLOTS`, a list of `Plot`. A new plot is a new entry or a new module. The
quantities on the axes are in the table of `_axes`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cpdrun.report.render import capital

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cpdrun.study.metric import Metric
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
    """A plot.

    Attributes:
        name: The name of the plot and of its file.
        title: The heading on the page. `{metric}` stands for the name of the metric.
        alt: Sentences that describe the picture for readers who cannot see it, also with `{metric}`.
        needs: What the runs must have for the plot to be drawn.
        draw: The function that draws a study. It raises NotDrawnError with a reason for the user if the runs lack the
            data that the plot needs.
        question: The key of the question in QUESTIONS that the plot answers. A plot without one comes last.
        of_cases: Whether the plot is for named cases, or None if it is for all runs.
    """

    name: str
    title: str
    alt: str
    needs: str
    draw: "Callable[[Study], Figure]"
    question: str = ""
    of_cases: bool | None = False

    def for_metric(self, metric: "Metric") -> "Plot":
        """Return the plot with the name of a metric in its title and its description."""
        texts = (text.replace("{metric}", metric.name.replace("_", " ")) for text in (self.title, self.alt))
        title, alt = map(capital, texts)
        return replace(self, title=title, alt=alt)


def names() -> list[str]:
    """Return the names of all plots, sorted."""
    return [plot.name for plot in available()]


def available() -> Iterator[Plot]:
    """Yield every plot, sorted by name."""
    modules = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    found = [plot for name in modules for plot in importlib.import_module(f"{__name__}.{name}").PLOTS]
    yield from sorted(found, key=lambda plot: plot.name)
