"""A y axis for the fewest bits that are certified or open, with a row of its own for where all formats are refuted."""

import math

from matplotlib.axes import Axes

from cpdrun.study.axes import formats
from cpdrun.study.study import Study

_APART = 2  # rows between the largest format tried and the row of those that needed more


class FewestBitsAxis:
    """The same axis for every panel of a study.

    It has ticks at the sizes that were tried. `none` is the height of the row above them, for chains in which no format
    is certified or likely to be. It is no number of bits.
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
        return bits if math.isfinite(bits) else self.none

    def apply(self, axes: Axes) -> None:
        axes.set_yticks([*self.sizes, self.none], [*(f"{size:g}" for size in self.sizes), "none tried"])
        axes.axhline(self.none - _APART / 2, color="#666666", linewidth=0.6, dashes=(1, 2))
        axes.set_ylim(self.sizes[0] - 1, self.none + 0.9)
        axes.set_ylabel("fewest bits")


def markers_text(study: Study, baseline: str = "") -> list[str]:
    """Return the parts of a caption that explain the markers; `baseline` says which of several it is."""
    certified = f"certified at most {study.margin_text} worse than {study.baseline_name}{baseline}"
    return [
        f"filled: {certified} ({study.ci:g} %)",
        "hollow: open, the fewest bits that are likely",
        "cross: no format tried is certified or likely",
    ]
