"""Compute the Pareto front of cost and quality, and its knee.

The knee is the point of the front that lies furthest above the chord between the ends of the front. Both coordinates
are scaled to the range 0 to 1 over the front. Cost is measured as a logarithm, because costs are compared as ratios and
drawn on a logarithmic axis.

This is the maximum of the difference curve of Satopaa, Albrecht, Irwin and Raghavan, "Finding a 'Kneedle' in a
Haystack" (ICDCS workshops 2011, section III). The fronts here have few points, so they are not smoothed, and the
largest difference is the knee. Up to a factor, it is also the greatest distance from the chord of Das, "On
characterizing the 'knee' of the Pareto curve" (Structural Optimization 18, 1999).
"""

import math
from collections.abc import Sequence

# The cost, which is above 0, and the quality, of which more is better.
Point = tuple[float, float]

# The knee must lie further above the chord than this height. A smaller height is a rounding error.
_ABOVE = 1e-9


def front(points: Sequence[Point]) -> list[int]:
    """Return the indices of the points that no other point beats, cheapest first.

    One point beats another if it costs no more and has no less quality, unless the two points are equal.
    """
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    best = float("-inf")
    chosen: list[int] = []
    for i in order:
        if points[i][1] > best or (chosen and points[i] == points[chosen[-1]]):
            best = points[i][1]
            chosen.append(i)
    return chosen


def knee(points: Sequence[Point]) -> int | None:
    """Return the index of the knee of a front, or None if no point lies above the chord.

    Args:
        points: The points of the front, cheapest first. A front of fewer than three points has no knee.
    """
    if len(points) < 3 or points[0][0] == points[-1][0] or points[0][1] == points[-1][1]:
        return None
    (first, low), (last, high) = points[0], points[-1]
    above = [
        (quality - low) / (high - low) - math.log(cost / first) / math.log(last / first)
        for cost, quality in points
    ]
    best = max(range(len(points)), key=lambda i: above[i])
    return best if above[best] > _ABOVE else None
