"""Plot the metric against the bit operations of a worker's step."""

from matplotlib.figure import Figure

from cpdrun.report.cost.axes import COSTS
from cpdrun.report.plots._costs import drawn
from cpdrun.study.study import Study

TITLE = "Bit operations of a step"
QUESTION = "cost"
ALT = (
    "The metric of each format or recipe against the bit operations of a step; "
    "a line through those that no other beats in both, its knee ringed."
)
# The plot shows both named cases and axes.
OF_CASES = None


def draw(study: Study) -> Figure:
    """Return the figure, or raise NotDrawnError if the bit operations are unknown or the same for all groups."""
    return drawn(study, COSTS["bitops"])
