"""The Pareto front of cost and quality, and its knee.

The knee is the point of the front that lies furthest above the chord between the front's ends, cost as a logarithm and
quality as it is, each from 0 to 1 over the front: the largest of the difference curve of Satopaa, Albrecht, Irwin and
Raghavan, "Finding a 'Kneedle' in a Haystack" (ICDCS workshops 2011, section III), for a front of few points, which
need no smoothing and whose largest difference is the knee; up to a factor the greatest distance from the chord of Das,
"On characterizing the 'knee' of the Pareto curve" (Structural Optimization 18, 1999). The logarithm, since costs are
compared as ratios, and as they are drawn.
"""

import math
from collections.abc import Sequence

Point = tuple[float, float]  # cost above 0; quality, more is better

_ABOVE = 1e-9  # of the chord; less is rounding


def front(points: Sequence[Point]) -> list[int]:
    """Indices of the points that no other point beats, the cheapest first.

    A point is beaten by one with no more cost and no less quality, unless they are the same in both.
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
    """Of a front, the cheapest first: the index of its knee; None where no point lies above the chord, as of two."""
    if len(points) < 3 or points[0][0] == points[-1][0] or points[0][1] == points[-1][1]:
        return None
    (first, low), (last, high) = points[0], points[-1]
    above = [
        (quality - low) / (high - low) - math.log(cost / first) / math.log(last / first)
        for cost, quality in points
    ]
    best = max(range(len(points)), key=lambda i: above[i])
    return best if above[best] > _ABOVE else None
