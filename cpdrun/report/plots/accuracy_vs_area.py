"""Plot the metric against the transistors of a multiply-accumulate unit, averaged over the operations of a step."""

from matplotlib.figure import Figure

from cpdrun.report.cost.axes import COSTS
from cpdrun.report.plots._costs import drawn
from cpdrun.study.study import Study

TITLE = "Area of a multiply-accumulate unit"
QUESTION = "cost"
ALT = (
    "The metric of each format or recipe against the transistors of the unit that multiplies and accumulates; "
    "a line through those that no other beats in both, its knee ringed."
)
# The plot shows both named cases and axes.
OF_CASES = None


def draw(study: Study) -> Figure:
    """Return the figure, or raise NotDrawnError if the area is unknown or the same for all groups."""
    return drawn(study, COSTS["area"])
