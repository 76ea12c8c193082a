"""Compute the error of an accuracy difference that is due to the choice of the test examples.

The candidate and the baseline answer the same n examples. Let d_sj be 1 if only the candidate's run of seed s answers
example j correctly, -1 if only the baseline's run does, and 0 otherwise. The difference in accuracy is dbar, the mean
of d_sj over all seeds and examples. Let dbar_j be the mean over the seeds for example j. For the given runs, the choice
of the examples causes this standard error:

    standard_error^2 = sum_j (dbar_j - dbar)^2 / n^2

Part of it comes from the randomness of single runs, and averages out with more seeds. The rest remains with any number
of seeds. It is the variance component of the examples in a two-way analysis of variance without replication (H.
Scheffé, "The Analysis of Variance", 1959, chapter 7).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ExampleError:
    """A mean difference in accuracy, with its error due to the test examples.

    Attributes:
        mean: The mean of the differences over all seeds and examples.
        standard_error: The standard error of the mean for the given runs. 0 if all examples have the same mean.
        lasting: The part of the standard error that remains with any number of seeds. NaN for a single seed.
    """

    mean: float
    standard_error: float
    lasting: float

    def on_another_test_set(self, confidence: float) -> tuple[float, float]:
        """Return a prediction interval for the same runs on another test set of this size.

        Both test sets are random, so the variance is twice the squared standard error. Both ends are NaN if the
        standard error is 0, because equal answers contain no information about the spread. The confidence is a share,
        such as 0.95.
        """
        if not self.standard_error > 0:
            return math.nan, math.nan
        half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(2) * self.standard_error
        return self.mean - half, self.mean + half


def example_error(differences: Sequence["np.ndarray"]) -> ExampleError:
    """Return the mean difference in accuracy and its error due to the test examples.

    All sums are exact integer sums, so their order does not matter.

    Args:
        differences: For each seed, an int64 array of shape (n,) with d_sj. At least one. Examples have the same order.
    """
    seeds, n = len(differences), len(differences[0])
    by_example_n = sum(differences[1:], start=differences[0])
    of_seeds = [int(of_seed.sum()) for of_seed in differences]
    total = sum(of_seeds)
    squares = sum(int((of_seed**2).sum()) for of_seed in differences)
    squares_of_examples = int((by_example_n**2).sum())
    between = n * squares_of_examples - total**2  # seeds^2 n sum_j (dbar_j - dbar)^2
    standard_error = math.sqrt(between / n) / (seeds * n)
    lasting = math.nan
    if seeds > 1 and n > 1:
        rest = seeds * n * squares - n * squares_of_examples - seeds * sum(s**2 for s in of_seeds) + total**2
        mean_square = rest / (seeds * n * (seeds - 1) * (n - 1))
        lasting = math.sqrt(max(0.0, between / (seeds**2 * n * (n - 1)) - mean_square / seeds) / n)
    return ExampleError(total / (seeds * n), standard_error, lasting)
