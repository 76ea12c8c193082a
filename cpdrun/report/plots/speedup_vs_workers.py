"""Plot the predicted speed-up of each format against workers, with a panel per network.

The cost model (`cpdrun.costmodel`) predicts from the calibration that `cpdrun doctor --calibrate` wrote to the sweep's
folder. It assumes weak scaling, and a direct exchange after the backward pass as in cpdrun's training loop.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpdrun.costmodel import Calibration, CalibrationError, Network, Setup, speedup
from cpdrun.costmodel.crossover import calibration_of, known_networks
from cpdrun.report.plots import NotDrawnError, Plot
from cpdrun.report.plots._axes import AXES
from cpdrun.report.plots._panels import Name, caption, grid, prediction_facts, write_names
from cpdrun.report.style import COLUMN_IN, FP32, HEADING, Style, shades
from cpdrun.report.svg import hover
from cpdrun.study import formats
from cpdrun.study.collect import FORMAT
from cpdrun.study.group import Facet
from cpdrun.study.study import Study

WORKERS = [2**i for i in range(11)]
# The largest number of formats in addition to fp32. More lines could not be distinguished.
_MOST_LINES = 5


def draw(study: Study) -> Figure:
    """Draw the predicted speed-up of a study's calibrated formats.

    Raises:
        NotDrawnError: There is no usable calibration, or it has none of the study's formats.
    """
    try:
        calibration = calibration_of(study)
    except CalibrationError as error:
        raise NotDrawnError(str(error)) from None
    lines = _lines(study, calibration)
    if not lines:
        raise NotDrawnError(
            "the calibration has none of the sweep's formats. Measure them with `cpdrun doctor --calibrate --formats "
            "F,F`"
        )
    return picture(calibration, lines, study.networks)


def picture(
    calibration: Calibration,
    formats_and_aps: list[tuple[str, bool]],
    networks: dict[str, Network] | None = None,
) -> Figure:
    """Draw the predicted speed-up of some formats on some networks.

    `formats_and_aps` holds each line as a format's name and whether APS is used. By default, there is a panel for every
    named network and for the measured one.
    """
    lines = _with_styles(calibration, formats_and_aps)
    networks = networks or known_networks(calibration)
    panels = [Facet({"network": name}, []) for name in networks]
    figure, parts = grid(panels, COLUMN_IN, 2.1)
    for (part, _), (name, link) in zip(parts, networks.items(), strict=True):
        axes = part.subplots()
        _panel(axes, calibration, link, lines)
        axes.set_title(name, loc="left", **HEADING)
    caption(figure, None, "speedup_vs_workers", panels, prediction=prediction_facts(calibration))
    return figure


def _lines(study: Study, calibration: Calibration) -> list[tuple[str, bool]]:
    """Return one calibrated format per bit width, as (name, uses APS), narrowest first.

    Formats with APS are preferred, and at most `_MOST_LINES` are returned.
    """
    chosen: dict[float, tuple[str, bool]] = {}
    for group in sorted(study.groups, key=lambda group: (group.aps, formats.order(group.keys[FORMAT]))):
        name = str(group.keys[FORMAT])
        if name in calibration.codecs and not formats.is_baseline(name):
            chosen[calibration.codecs[name].bits] = (name, group.aps)
    return [chosen[bits] for bits in sorted(chosen)][:_MOST_LINES]


def _with_styles(
    calibration: Calibration, formats_and_aps: list[tuple[str, bool]]
) -> list[tuple[str, bool, Style]]:
    """Return the lines with their styles (dark for few bits), followed by fp32 if calibrated."""
    lines = [
        (name, aps, Style(f"{name}{' APS' if aps else ''}", color, "o", "solid"))
        for (name, aps), color in zip(formats_and_aps, shades(len(formats_and_aps)), strict=True)
    ]
    return lines + ([("fp32", False, FP32)] if "fp32" in calibration.codecs else [])


def _panel(axes: Axes, calibration: Calibration, link: Network, lines: list[tuple[str, bool, Style]]) -> None:
    names = []
    axes.plot(WORKERS, WORKERS, color=FP32.color, linestyle=":", linewidth=0.7)
    for name, aps, style in lines:
        found = [
            speedup(Setup(workers, calibration.workload, calibration.codecs[name], link, aps=aps))
            for workers in WORKERS
        ]
        axes.plot(WORKERS, found, color=style.color, linestyle=style.dash, zorder=3)
        for workers, times in zip(WORKERS, found, strict=True):
            (mark,) = axes.plot([workers], [times], ".", color=style.color, markersize=3, zorder=4)
            hover(mark, f"{style.label}, {workers} workers: {times:.3g} times one worker")
        names.append(Name(WORKERS[-1], found[-1], style.label, style.color))
    axes.set_yscale("log", base=2)
    AXES["workers"].apply_to_x(axes, WORKERS[::2], at_values=True)
    axes.yaxis.set_major_formatter(lambda y, _: AXES["speedup"].show(y))
    axes.set_ylabel(AXES["speedup"].title)
    axes.set_xlim(WORKERS[0] / 1.2, WORKERS[-1] * 1.2)
    axes.autoscale(enable=True, axis="y")
    write_names(axes, names)


PLOTS = [
    Plot(
        "speedup_vs_workers",
        "Predicted speed-up against workers",
        "The predicted speed-up against the number of workers, with a panel for each network and a line for each "
        "format.",
        "a calibration of the sweep (`cpdrun doctor --calibrate`)",
        draw,
        "time",
    )
]
