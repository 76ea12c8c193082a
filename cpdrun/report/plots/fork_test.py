"""Plot the gap of the training loss over the steps of a fork test, with a line per candidate."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpdrun.report.plots import NotDrawnError, Plot
from cpdrun.report.plots._panels import MOST_PANELS, Name, caption, new_figure, write_names
from cpdrun.report.style import COLUMN_IN, FP32, HEADING, shades
from cpdrun.study.fork_test import ForkTest, fork_tests
from cpdrun.study.study import Study


def draw(study: Study) -> Figure:
    """Draw a panel for each fork test.

    Raises:
        NotDrawnError: No run starts from a checkpoint, or such runs form no pairs.
    """
    tests = fork_tests(study)[:MOST_PANELS]
    if not tests:
        raise NotDrawnError(
            "no pairs of runs start from a checkpoint (init_from) and recorded a loss per step"
        )
    figure = new_figure(COLUMN_IN, 2.3 * len(tests) + 0.25)
    for axes, test in zip(figure.subplots(len(tests), 1, squeeze=False)[:, 0], tests, strict=True):
        _panel(axes, test)
    has_control = any(test.control for test in tests)
    caption(figure, study, "fork_test", has_control=has_control)
    return figure


def _panel(axes: Axes, test: ForkTest) -> None:
    """Draw the mean gap of each quarter with its interval, and the control as a gray band around 0."""
    middles = [(first + last) / 2 for first, last in test.steps]
    axes.axhline(0, color=FP32.color, linewidth=0.8)
    if test.control is not None:
        sizes = test.control.parts
        axes.fill_between(
            middles, [-size for size in sizes], sizes, color=FP32.color, alpha=0.15, linewidth=0
        )
    names = []
    for each, color in zip(test.candidates, shades(len(test.candidates)), strict=True):
        means = [gap.mean for gap in each.parts]
        axes.plot(middles, means, color=color, linewidth=1.1, marker="o", markersize=3)
        low, high = [gap.low for gap in each.parts], [gap.high for gap in each.parts]
        axes.fill_between(middles, low, high, color=color, alpha=0.15, linewidth=0)
        names.append(Name(middles[-1], means[-1], each.candidate, color))
    axes.set_xlabel("step")
    axes.set_ylabel(f"gap of {test.metric.replace('_', ' ')} to {test.baseline}")
    if test.setting:
        axes.set_title(test.setting, loc="left", **HEADING)
    # Reading the limits makes matplotlib compute them. `write_names` needs the final limits.
    axes.get_xlim(), axes.get_ylim()
    write_names(axes, names)


PLOTS = [
    Plot(
        "fork_test",
        "Gap over the steps",
        "The gap of the training loss to the baseline in each quarter of the steps of runs that start from one "
        "checkpoint, with a line for each candidate. Lower is worse.",
        "pairs of runs that start from a checkpoint (init_from) and recorded a loss per step",
        draw,
        "training",
        None,
    )
]
