"""How every picture looks: one colour, marker and dash for each strategy, everywhere.

The colours are Okabe and Ito's, told apart by every common kind of colour blindness; marker and dash say the
same again for a printout in grey. Sizes are for a paper's column (3.5 in) at 7-8 pt.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

COLUMN_IN = 3.5  # one column of a two-column paper
PNG_DPI = 300


@dataclass(frozen=True)
class Look:
    label: str
    color: str
    marker: str
    dash: str | tuple


FP32 = Look("fp32", "#555555", "D", "solid")
WITH_APS = Look("with APS", "#0072B2", "o", "solid")
WITHOUT_APS = Look("without APS", "#D55E00", "s", (0, (4, 1.5)))


_OTHERS = (  # scaling rules beyond the two, in the order in which a study names them
    ("#009E73", "^", "solid"),
    ("#CC79A7", "v", (0, (6, 1, 1, 1))),
    ("#E69F00", "P", (0, (2, 1))),
    ("#56B4E9", "X", "solid"),
)

OTHER_COLORS = [WITH_APS.color, WITHOUT_APS.color, *(color for color, _, _ in _OTHERS)]


def looks(strategies: Iterable[str]) -> dict[str, Look]:
    """The look of each of a study's strategies, by its name; plain last."""
    names, usual = set(strategies), {look.label: look for look in (WITH_APS, WITHOUT_APS)}
    others = cycle(_OTHERS)
    rules = {name: Look(name, *next(others)) for name in sorted(names - usual.keys())}
    return {name: look for name, look in (rules | usual).items() if name in names}


def shades(count: int) -> list[str]:
    """Colours for an ordered series, dark first, that stay apart in grey and for the colour-blind."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.25 + 0.6 * i / max(count - 1, 1))) for i in range(count)]


NAME = {"fontweight": "bold", "fontsize": 6.5}  # of a line
FIGURE_SIZE = 5.5  # of a number at a point
CAPTION = {"fontsize": 5.5, "color": "#666666"}
TITLE = {"color": "#333333"}

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 7,
    "axes.labelsize": 7.5,
    "axes.titlesize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.0,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "cpdrun",  # the same runs give the same file
    "text.parse_math": False,  # a name may hold dollar signs
    "figure.facecolor": "white",
}
