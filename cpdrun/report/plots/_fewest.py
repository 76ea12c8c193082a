"""A y axis for the fewest bits that are enough, with a row of its own for where no format was."""

import math

from matplotlib.axes import Axes

from cpdrun.study.axes import formats
from cpdrun.study.study import Study

_APART = 2  # rows between the largest format tried and the row of those that needed more


class BitsAxis:
    """The same for every panel of a study: ticks at the sizes that were tried, and `none`, the height of the row above
    them for where none was enough: it is no number of bits."""

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
        axes.set_ylabel("fewest bits that are enough")
