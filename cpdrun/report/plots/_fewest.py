"""Provide a y axis for the fewest bits that are certified or open, with a separate row for chains without an answer."""

import math

from matplotlib.axes import Axes

from cpdrun.study import formats
from cpdrun.study.study import Study

# The distance between the widest format that was tried and the separate row, in bits.
_APART = 2


class FewestBitsAxis:
    """A y axis that is the same for every panel of a study.

    Attributes:
        sizes: The bit widths that were tried, at which the axis has ticks.
        none: The height of the row above the ticks, for chains in which no format is certified or likely to be. It is
            not a number of bits.
    """

    def __init__(self, study: Study):
        tried = {
            size
            for facet in study.facets
            for groups in facet.strategies.values()
            for group in groups
            if (size := formats.bits(group.format)) is not None and size < 32
        }
        self.sizes: list[float] = []
        for size in sorted(tried or {1}):
            if not self.sizes or size - self.sizes[-1] >= 0.5:
                self.sizes.append(size)
        self.none = max(tried, default=1) + _APART

    def height(self, bits: float) -> float:
        """Return the height at which bits are drawn, which is `none` for infinite or NaN bits."""
        return bits if math.isfinite(bits) else self.none

    def apply(self, axes: Axes) -> None:
        """Set the ticks, limits and label of the y axis of a panel, and draw a line below the row `none`."""
        axes.set_yticks([*self.sizes, self.none], [*(f"{size:g}" for size in self.sizes), "none tried"])
        axes.axhline(self.none - _APART / 2, color="#666666", linewidth=0.6, dashes=(1, 2))
        axes.set_ylim(self.sizes[0] - 1, self.none + 0.9)
        axes.set_ylabel("fewest bits")


def markers_text(study: Study, baseline: str = "") -> list[str]:
    """Return the parts of a caption that explain the markers.

    Args:
        study: The study that is drawn.
        baseline: A phrase that says which of several baselines is meant, such as " in the same order".
    """
    certified = f"certified at most {study.margin_text} worse than {study.baseline_name}{baseline}"
    return [
        f"filled: {certified} ({study.ci:g} %)",
        "hollow: open, the fewest bits that are likely",
        "cross: no format tried is certified or likely",
    ]
