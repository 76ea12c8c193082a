"""Plot the metric against the bytes that a worker keeps in memory."""

from matplotlib.figure import Figure

from cpdrun.report.cost.axes import COSTS
from cpdrun.report.plots._costs import drawn
from cpdrun.study.study import Study

TITLE = "What a worker keeps"
QUESTION = "cost"
ALT = (
    "The metric of each format or recipe against the bytes that a worker keeps; "
    "a line through those that no other beats in both, its knee ringed."
)
# The plot shows both named cases and axes.
OF_CASES = None


def draw(study: Study) -> Figure:
    """Return the figure, or raise NotDrawnError if the kept bytes are unknown or the same for all groups."""
    return drawn(study, COSTS["kept"])
