"""How every picture looks: one colour, marker and dash for each strategy, everywhere.

The colours are Okabe and Ito's, told apart by every common kind of colour blindness; marker and dash say the
same again for a printout in grey. Sizes are for a paper's column (3.5 in) at 7-8 pt.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpdrun.study.study import Study

COLUMN_IN = 3.5  # one column of a two-column paper
PNG_DPI = 300


@dataclass(frozen=True)
class Look:
    label: str
    color: str
    marker: str
    dash: str | tuple

    @property
    def ink(self) -> str:
        """The colour of its name and figures."""
        return ink(self.color)


FP32 = Look("fp32", "#555555", "D", "solid")
WITH_APS = Look("with APS", "#0072B2", "o", "solid")
WITHOUT_APS = Look("without APS", "#D55E00", "s", (0, (4, 1.5)))


# scaling rules beyond the two, in the order in which a study names them
_OTHERS: tuple[tuple[str, str, str | tuple], ...] = (
    ("#009E73", "^", "solid"),
    ("#CC79A7", "v", (0, (6, 1, 1, 1))),
    ("#E69F00", "P", (0, (2, 1))),
    ("#56B4E9", "X", "solid"),
)

OTHER_COLORS = [WITH_APS.color, WITHOUT_APS.color, *(color for color, _, _ in _OTHERS)]


def strategy_looks(study: "Study") -> dict[str, Look]:
    """Return the look of each strategy of a study by its name, without scaling last."""
    names = {group.strategy for group in study.groups if not group.is_baseline}
    usual = {look.label: look for look in (WITH_APS, WITHOUT_APS)}
    others = cycle(_OTHERS)
    rules = {}
    for name in sorted(names - usual.keys()):
        color, marker, dash = next(others)
        rules[name] = Look(name, color, marker, dash)
    return {name: look for name, look in (rules | usual).items() if name in names}


def shades(count: int) -> list[str]:
    """Colours for an ordered series, dark first, that stay apart in grey and for the colour-blind."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.15 + 0.6 * i / max(count - 1, 1))) for i in range(count)]


# how workers exchange, by the family's name (cpdrun.study.axes.method): Okabe and Ito's colours again, and two of
# Tol's; no marker occurs twice
METHODS = {
    look.label: look
    for look in (
        WITH_APS,
        WITHOUT_APS,
        Look("top-k", "#009E73", "^", "solid"),
        Look("random-k", "#009E73", "<", "solid"),
        Look("QSGD", "#CC79A7", "v", "solid"),
        Look("min-max", "#CC79A7", ">", "solid"),
        Look("rounded messages", "#56B4E9", "d", "solid"),
        Look("sign", "#E69F00", "P", "solid"),
        Look("PowerSGD", "#56B4E9", "X", "solid"),
        Look("local steps", "#000000", "*", "solid"),
        Look("sharded", "#332288", "h", "solid"),
        Look("gossip", "#882255", "p", "solid"),
    )
}


def method_looks(families: Iterable[str]) -> dict[str, Look]:
    """The look of each family of methods, those of the table above first; others are told apart as far as looks go."""
    names, others = set(families), cycle(("8", "H", "1", "2"))
    rest = {name: Look(name, "#999999", next(others), "solid") for name in sorted(names - METHODS.keys())}
    return {name: look for name, look in (METHODS | rest).items() if name in names}


@cache
def readable(color: str, background: str, least: float) -> str:
    """`color` (#rrggbb), or as much darker or lighter as it takes for a contrast of `least` on `background`."""
    away = 0.0 if luminance(background) > 0.18 else 1.0
    parts = _parts(color)
    for share in range(21):
        mixed = [part + (away - part) * share / 20 for part in parts]
        found = "#" + "".join(f"{round(255 * part):02x}" for part in mixed)
        if contrast(found, background) >= least:
            break
    return found


def ink(color: str) -> str:
    """For small text on white in a line's colour: contrast 4.5, as the Web Content Accessibility Guidelines ask."""
    return readable(color, "#ffffff", 4.5)


def contrast(one: str, other: str) -> float:
    """1 (equal) to 21 (black on white): WCAG 2.2, "contrast ratio"."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    """0..1: WCAG 2.2, "relative luminance" of sRGB."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in _parts(color)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _parts(color: str) -> list[float]:
    return [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]


NAME = {"fontweight": "bold", "fontsize": 6.5}  # of a line
FIGURE_SIZE = 5.5  # of a number at a point
CAPTION = {"fontsize": 5.5, "color": "#666666"}
HEADING = {"color": "#333333"}

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
