"""Define the style of all pictures. Each strategy has one color, one marker, and one dash in every picture.

The colors are those of Okabe and Ito, which readers with common kinds of color blindness can distinguish. In a
grayscale printout, the markers and dashes distinguish the strategies. Sizes are chosen for a
paper's column (3.5 in), in which labels have 7 to 8 pt.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpdrun.study.study import Study

# The width of one column in a two-column paper.
COLUMN_IN = 3.5
PNG_DPI = 300


@dataclass(frozen=True)
class Style:
    """The style of a line or a point.

    Attributes:
        label: The name in a legend.
        color: The color as #rrggbb.
        marker: The matplotlib marker.
        dash: The matplotlib line style.
    """

    label: str
    color: str
    marker: str
    dash: str | tuple

    @property
    def ink(self) -> str:
        """The color for small text that belongs to the line. It is dark enough to read on white."""
        return ink(self.color)


FP32 = Style("fp32", "#555555", "D", "solid")
WITH_APS = Style("with APS", "#0072B2", "o", "solid")
WITHOUT_APS = Style("without APS", "#D55E00", "s", (0, (4, 1.5)))


# The color, marker, and dash of further strategies. They are assigned to the strategies in the order of their names.
_OTHERS: tuple[tuple[str, str, str | tuple], ...] = (
    ("#009E73", "^", "solid"),
    ("#CC79A7", "v", (0, (6, 1, 1, 1))),
    ("#E69F00", "P", (0, (2, 1))),
    ("#56B4E9", "X", "solid"),
)

OTHER_COLORS = [WITH_APS.color, WITHOUT_APS.color, *(color for color, _, _ in _OTHERS)]


def strategy_styles(study: "Study") -> dict[str, Style]:
    """Return the style of each strategy of a study, keyed by the strategy's name.

    Scaling rules come first, sorted by name. They are followed by `with APS` and `without APS`.
    """
    names = {group.strategy for group in study.groups if not group.is_baseline}
    usual = {look.label: look for look in (WITH_APS, WITHOUT_APS)}
    others = cycle(_OTHERS)
    rules = {}
    for name in sorted(names - usual.keys()):
        color, marker, dash = next(others)
        rules[name] = Style(name, color, marker, dash)
    return {name: look for name, look in (rules | usual).items() if name in names}


def shades(count: int) -> list[str]:
    """Return `count` colors for an ordered series, from dark to light.

    Readers can distinguish the colors in grayscale and with common kinds of color blindness.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.15 + 0.6 * i / max(count - 1, 1))) for i in range(count)]


# The styles of the method families (cpdrun.study.group), keyed by name. The colors are those of Okabe and Ito, and two
# of Tol. Each family has its own marker.
METHODS = {
    look.label: look
    for look in (
        WITH_APS,
        WITHOUT_APS,
        Style("top-k", "#009E73", "^", "solid"),
        Style("random-k", "#009E73", "<", "solid"),
        Style("QSGD", "#CC79A7", "v", "solid"),
        Style("min-max", "#CC79A7", ">", "solid"),
        Style("rounded messages", "#56B4E9", "d", "solid"),
        Style("sign", "#E69F00", "P", "solid"),
        Style("PowerSGD", "#56B4E9", "X", "solid"),
        Style("local steps", "#000000", "*", "solid"),
        Style("sharded", "#332288", "h", "solid"),
        Style("gossip", "#882255", "p", "solid"),
    )
}


def method_styles(families: Iterable[str]) -> dict[str, Style]:
    """Return the style of each method family, keyed by name.

    The families in `METHODS` come first. Other families are gray and share four markers, so a picture can distinguish
    at most four of them.
    """
    names, others = set(families), cycle(("8", "H", "1", "2"))
    rest = {name: Style(name, "#999999", next(others), "solid") for name in sorted(names - METHODS.keys())}
    return {name: look for name, look in (METHODS | rest).items() if name in names}


@cache
def readable(color: str, background: str, least: float) -> str:
    """Return `color`, changed as little as necessary for a contrast of at least `least` with `background`.

    If the contrast is too low, the color is mixed with black on a light background, or with white on a dark background,
    in steps of 5%. Colors are written as #rrggbb.
    """
    away = 0.0 if luminance(background) > 0.18 else 1.0
    parts = _parts(color)
    for share in range(21):
        mixed = [part + (away - part) * share / 20 for part in parts]
        found = "#" + "".join(f"{round(255 * part):02x}" for part in mixed)
        if contrast(found, background) >= least:
            break
    return found


def ink(color: str) -> str:
    """Return a line's color, darkened for small text on white to the contrast of 4.5 that WCAG 2.2 requires."""
    return readable(color, "#ffffff", 4.5)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colors (WCAG 2.2), from 1 for equal colors to 21 for black on white."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    """Return the relative luminance of an sRGB color (WCAG 2.2), from 0 to 1."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in _parts(color)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _parts(color: str) -> list[float]:
    return [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]


# The font in which a plot names its lines and points.
NAME: dict[str, Any] = {"fontweight": "bold", "fontsize": 6.5}
# The font size of the number next to a point, in typographic points.
FIGURE_SIZE = 5.5
CAPTION: dict[str, Any] = {"fontsize": 5.5, "color": "#666666"}
HEADING: dict[str, Any] = {"color": "#333333"}

RC: Any = {
    "font.family": "DejaVu Sans",  # matplotlib includes this font, so pictures are equal on every machine.
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
    "pdf.fonttype": 42,  # TrueType fonts are embedded. Journals reject the Type 3 fonts that are the default.
    "ps.fonttype": 42,
    "svg.hashsalt": "cpdrun",  # With a fixed salt, the same runs always give the same file.
    "text.parse_math": False,  # A name can contain dollar signs.
    "figure.facecolor": "white",
}
