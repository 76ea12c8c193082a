"""Figures with one panel per facet, and their titles, captions and names of points.

A facet is a set of groups that differ only in format and gradient scaling.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from cpdrun.costmodel import Calibration
from cpdrun.report.render import render_lines
from cpdrun.report.style import CAPTION, HEADING, NAME, ink
from cpdrun.report.svg import name_of, part_of
from cpdrun.stats.evidence import Verdict
from cpdrun.study.group import Facet, Group
from cpdrun.study.study import Study

MOST_PANELS = 12
ONE_SEED = "\N{SUPERSCRIPT ONE}"
# The number of letters per inch in a caption.
_LETTERS_PER_IN = 23


@dataclass(frozen=True)
class Name:
    """A name to write to the right of a panel, for a point or for the end of a line.

    `color` is the color of the point, which is darkened for the name until it is legible. `of` holds the descriptions
    of the groups that the point shows. A name with `is_key` is written even if there is no room for all names.
    """

    x: float
    y: float
    text: str
    color: str
    of: tuple[str, ...] = ()
    is_key: bool = True


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure whose layout leaves room for labels."""
    figure = Figure(figsize=(width_in, height_in), layout=ConstrainedLayoutEngine(w_pad=0.08))
    FigureCanvasAgg(figure)  # With this canvas, the size of a text is known before the figure is drawn.
    return figure


def grid(
    facets: Sequence[Facet], width_in: float, height_in: float, columns: int = 2
) -> tuple[Figure, Iterator[tuple[SubFigure, Facet]]]:
    """Return a figure and its (subfigure, facet) pairs.

    Only the first `MOST_PANELS` facets get a panel, with at most `columns` panels in a row. The width and height are
    those of a panel in inches.
    """
    shown = facets[:MOST_PANELS]
    columns = min(len(shown), columns)
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(width_in * columns, height_in * rows + 0.25)
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.02, hspace=0.0))
    parts = figure.subfigures(rows, columns, squeeze=False).flat
    return figure, zip(parts, shown, strict=False)


def caption(
    figure: Figure, study: Study | None, plot: str, facets: Sequence[Facet] = (), **values: Any
) -> None:
    """Write a caption in small letters below the figure.

    Args:
        figure: The figure.
        study: The study that is drawn; None if the caption needs none.
        plot: The caption's name in the template plot_captions.j2.
        facets: All facets of the figure. The caption counts those without a panel.
        values: Further variables of the template.
    """
    if study is not None:
        judgments = [judged.judgment for judged in study.judged.values()]
        margin = study.tolerance / study.metric.scale
        certified = [each.judgment for each in study.judged.values() if each.verdict is Verdict.CERTIFIED]
        values |= {
            "metric": study.metric.words,
            "margin": study.margin_text if study.tolerance > 0 else "",
            "baseline": study.baseline_name,
            "ci": f"{study.ci:g}",
            "one_seed": _one_seed(study),
            "has_intervals": any(math.isfinite(each.high - each.low) for each in judgments),
            "crosses_margin": any(math.isfinite(each.low) and each.low < -margin for each in certified),
        }
    left_out = max(0, len(facets) - MOST_PANELS)
    lines = render_lines("plot_captions.j2", plot=plot, left_out=left_out, **values)
    width = int(_LETTERS_PER_IN * figure.get_figwidth())
    figure.supxlabel("\n".join(textwrap.wrap(" ".join(lines), width)), **CAPTION)


def prediction_facts(calibration: Calibration) -> dict[str, str]:
    """Return the template variables that describe a calibration."""
    work = calibration.workload
    return {
        "parameters": f"{work.values:,}",
        "compute_ms": f"{1e3 * work.compute_s:.3g}",
        "device": str(calibration.about.get("device", "an unknown device")),
    }


def _one_seed(study: Study) -> str:
    """Return "all", "some" or "", depending on how many groups have a single seed."""
    single = [len(group.values) == 1 for group in study.groups if group.values]
    return "all" if single and all(single) else "some" if any(single) else ""


def seed_mark(study: Study, group: Group) -> str:
    """Mark a group with a single seed, unless every group has a single seed."""
    return ONE_SEED if len(group.values) == 1 and _one_seed(study) == "some" else ""


def title(part: SubFigure, facet: Facet, facets: Sequence[Facet], above: int = 0) -> None:
    """Write the facet's label above a panel, if the figure has several facets.

    `above` is the number of empty lines below the label, for a legend or subtitles.
    """
    if len(facets) > 1:
        lines = textwrap.wrap(facet.label, 50, max_lines=3) + [" "] * above
        part.axes[0].set_title("\n".join(lines), loc="left", **HEADING)


def write_names(axes: Axes, names: Sequence[Name], bold: bool = True) -> None:
    """Write names to the right of a panel, each with a thin line to its point.

    Names that would touch are moved apart. If there is no room for all, only those with `is_key` are written. Call this
    function after the limits of the axes are final.
    """
    size_pt = NAME["fontsize"] - (0 if bold else 0.5)
    line = 1.2 * size_pt / height_pt(axes)
    if len(names) * line > 1.1:
        names = [name for name in names if name.is_key]
    to_axes = (axes.transData + axes.transAxes.inverted()).transform
    points = [to_axes((name.x, name.y)) for name in names]
    places = spread([float(y) for _, y in points], line, 0.0, 1.0)
    for name, (x, y), place in zip(names, points, places, strict=True):
        (leader,) = axes.plot(
            [x, 1.02],
            [y, place],
            color=name.color,
            linewidth=0.35,
            alpha=0.5,
            transform=axes.transAxes,
            clip_on=False,
            in_layout=False,
        )
        text = axes.text(
            1.03, place, name.text, va="center", fontsize=size_pt, fontweight=NAME["fontweight"] if bold else "normal",
            color=ink(name.color), transform=axes.transAxes,
        )  # fmt: skip
        for artist in (leader, text):
            (part_of if len(name.of) == 1 else name_of)(artist, *name.of)


def height_pt(artist: Artist) -> float:
    """Return the height of an artist in typographic points."""
    return artist.get_window_extent().height * 72 / artist.figure.dpi


def spread(
    places: Sequence[float], least: float, low: float = -math.inf, high: float = math.inf
) -> list[float]:
    """Move places apart until neighbors have a distance of at least `least`.

    Places that are too close form a crowd, which is spread evenly around its mean and kept within `low` and `high`. The
    order of the result is that of `places`.
    """

    def middle(crowd: list[float]) -> float:
        half = least * (len(crowd) - 1) / 2
        return max(min(sum(crowd) / len(crowd), high - half), low + half)

    crowds: list[list[float]] = []
    order = sorted(range(len(places)), key=places.__getitem__)
    for i in order:
        crowds.append([places[i]])
        while len(crowds) > 1 and middle(crowds[-1]) - middle(crowds[-2]) < least * (
            len(crowds[-1]) / 2 + len(crowds[-2]) / 2
        ):
            last = crowds.pop()
            crowds[-1] += last
    moved = [
        middle(crowd) + least * (k - (len(crowd) - 1) / 2) for crowd in crowds for k in range(len(crowd))
    ]
    return [place for _, place in sorted(zip(order, moved, strict=True))]
