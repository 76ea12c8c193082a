"""How every picture looks: one colour, marker and dash for each strategy, everywhere.

The colours are Okabe and Ito's, told apart by every common kind of colour blindness; marker and dash say the
same again for a printout in grey. Sizes are for a paper's column (3.5 in) at 7-8 pt.
"""

from dataclasses import dataclass
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


def look(aps: bool) -> Look:
    return WITH_APS if aps else WITHOUT_APS


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
