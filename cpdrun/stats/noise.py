"""What a fit leaves over, in two parts, and other draws of it: what the rows of a group have in common, and their own.

r_i = b_g(i) + e_i, as in an analysis of variance of one random effect (S. Searle, G. Casella and C. McCulloch, Variance
components, 1992, chapter 3), the squares divided by the degrees of freedom that the fit has left in each part:

    own      sum (r - m_g)^2 / (R - G - p_w)
    common   sum m_g^2 / (G - p_b) - own / (rows a group)     and not below 0

with m_g the mean of a group and p_b, p_w the traces of the fit's hat matrix on means of groups and within them. What is
left over of few groups says little of how large it is: each draw has a scale of its own, of the degrees of freedom over
a chi-square of as many, which makes normal noise one of Student's t. Where no degree is left in a part, one is counted.

Legend: R rows, P parameters, G groups. Arrays are float64; neither NaN nor inf is allowed in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_NULL = 1e-9  # a direction of so small a share of the largest is none


@dataclass(frozen=True)
class Noise:
    """place (R,): the group of each row. common, own: standard deviations; 0 where there is none. Degrees of freedom of
    both, at least 1."""

    place: NDArray[np.intp]
    common: float
    own: float
    common_freedom: float
    own_freedom: float

    @classmethod
    def of(cls, left_over: Array, slope: Array, groups: Sequence[object]) -> "Noise":
        """left_over (R,), slope (R, P): derivatives of the fit, in any scale of the parameters."""
        _, place = np.unique([str(group) for group in groups], return_inverse=True)
        sizes = np.bincount(place).astype(float)
        count, rows = len(sizes), len(left_over)
        between = np.equal.outer(place, place) / sizes[place]  # (R, R): the mean of each group
        hat = _hat(slope)
        of_means = float(np.sum(between * hat))
        own_freedom = max(1.0, rows - count - (float(np.trace(hat)) - of_means))
        common_freedom = max(1.0, count - of_means)
        means = np.bincount(place, left_over) / sizes
        own = float(np.sum((left_over - means[place]) ** 2)) / own_freedom if rows > count else 0.0
        common = float(np.sum(means**2)) / common_freedom - own * float(np.mean(1 / sizes))
        return cls(place, np.sqrt(max(common, 0.0)), np.sqrt(own), common_freedom, own_freedom)

    def draw(self, rng: np.random.Generator) -> Array:
        """(R,): other noise of the same kind."""
        common, own = (
            scale * np.sqrt(freedom / rng.chisquare(freedom))
            for scale, freedom in ((self.common, self.common_freedom), (self.own, self.own_freedom))
        )
        of_groups = rng.normal(size=int(self.place.max()) + 1)
        return common * of_groups[self.place] + own * rng.normal(size=len(self.place))


def _hat(slope: Array) -> Array:
    """(R, R): the projection on what the parameters can move."""
    left, sizes, _ = np.linalg.svd(slope, full_matrices=False)
    kept = left[:, sizes > _NULL * max(sizes.max(initial=0.0), 1e-300)]
    return kept @ kept.T
