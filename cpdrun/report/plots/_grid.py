"""Arrange a figure with one panel for each facet of a study, such as a world size or a model."""

import math
import textwrap
from collections.abc import Iterator

from matplotlib.figure import Figure, SubFigure

from cpdrun.report.style import CAPTION, HEADING
from cpdrun.study.groups.group import Facet

_MOST_PANELS = 12


def grid(
    facets: list[Facet], width_in: float, height_in: float, columns: int = 2
) -> tuple[Figure, Iterator[tuple[SubFigure, Facet]]]:
    """Return a figure, and its panels with their facets. Only the first 12 facets get a panel.

    Args:
        facets: The facets to draw.
        width_in: The width of a panel in inches.
        height_in: The height of a panel in inches.
        columns: The largest number of panels in a row.
    """
    shown = facets[:_MOST_PANELS]
    columns = min(len(shown), columns)
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(width_in * columns, height_in * rows + 0.15), layout="constrained")
    figure.get_layout_engine().set(hspace=0.0, h_pad=0.02)
    parts = figure.subfigures(rows, columns, squeeze=False).flat
    return figure, zip(parts, shown, strict=False)


def caption(figure: Figure, facets: list[Facet], *parts: str) -> None:
    """Write a caption in small letters below the picture, and say how many facets have no panel."""
    left_out = len(facets) - _MOST_PANELS
    more = [f"{left_out} more panels are left out: see the table"] if left_out > 0 else []
    width = int(24 * figure.get_figwidth())
    text = "; ".join([part for part in parts if part] + more)
    figure.supxlabel("\n".join(textwrap.wrap(text, width)), **CAPTION)


def title(part: SubFigure, facet: Facet, study_facets: list[Facet], above: int = 0) -> None:
    """Write the facet's label above a panel if there are several facets.

    Args:
        part: The panel.
        facet: The facet of the panel.
        study_facets: All facets of the figure.
        above: The number of empty lines below the label, for a legend or the titles of subpanels.
    """
    if len(study_facets) > 1:
        lines = textwrap.wrap(facet.label, 50, max_lines=3) + [" "] * above
        part.axes[0].set_title("\n".join(lines), loc="left", **HEADING)
