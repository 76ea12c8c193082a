"""The plots of a report.

Each module whose name has no leading underscore defines `PLOTS`, a list of `Plot`. To add a plot, append an entry to
such a list or add a module. The module `_axes` has the table of quantities that plots draw along an axis.
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


# The questions that a reader asks, keyed by their short names, in the order of the page.
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
    """The error that is raised if a picture would be empty. Its message says which data is missing."""


@dataclass(frozen=True)
class Plot:
    """A kind of plot that a report can contain.

    Attributes:
        name: The name of the plot, which is also the name of its files.
        title: The heading on the page. `{metric}` is replaced by the metric's name.
        alt: Sentences that describe the picture to readers who cannot see it. `{metric}` is replaced here, too.
        needs: The data that the runs must have for the plot to be drawn.
        draw: The function that draws a study and returns the figure. If the runs lack the data that the plot needs, it
            raises NotDrawnError with a reason for the user.
        question: The key in QUESTIONS of the question that the plot answers. If it is "", the plot comes last.
        of_cases: Whether the plot shows named cases (True), other runs (False), or all runs (None).
    """

    name: str
    title: str
    alt: str
    needs: str
    draw: "Callable[[Study], Figure]"
    question: str = ""
    of_cases: bool | None = False

    def for_metric(self, metric: "Metric") -> "Plot":
        """Return a copy of the plot whose title and description contain the name of the metric."""
        texts = (text.replace("{metric}", metric.words) for text in (self.title, self.alt))
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
