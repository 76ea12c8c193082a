"""The weights with which workers mix, and how fast they agree with them: matrices W (N, N), float64.

neighbours: for each worker those that it receives from, without itself.
"""

import math
from collections.abc import Sequence

import numpy as np

MIXINGS = ("uniform", "metropolis")
TOLERANCE = 1e-9  # of sums of N float64 numbers below 1, for N up to millions


def uniform(neighbours: Sequence[Sequence[int]]) -> np.ndarray:
    """1 / (deg + 1) for the neighbours and for oneself."""
    weights = np.zeros((len(neighbours),) * 2)
    for i, of_i in enumerate(neighbours):
        weights[i, [i, *of_i]] = 1 / (len(of_i) + 1)
    return weights


def metropolis(neighbours: Sequence[Sequence[int]]) -> np.ndarray:
    """1 / (1 + max(deg_i, deg_j)), and for oneself what is left; of links that go both ways."""
    weights = np.zeros((len(neighbours),) * 2)
    for i, of_i in enumerate(neighbours):
        for j in of_i:
            weights[i, j] = 1 / (1 + max(len(of_i), len(neighbours[j])))
        weights[i, i] = 1 - weights[i].sum()
    return weights


def mean_gap(weights: Sequence[np.ndarray]) -> float:
    """`spectral_gap`; where rounds have matrices of their own, 1 - |their product but for the mean|^(1 / rounds), the
    share by which a round of one period brings workers nearer at least, as a geometric mean: 1 where they end equal, 0
    where some stay apart."""
    if len(weights) == 1:
        return spectral_gap(weights[0])
    N, log_left = len(weights[0]), 0.0
    apart_NxN = np.eye(N) - 1 / N
    for weights_NxN in weights:
        apart_NxN = weights_NxN @ apart_NxN
        apart_NxN -= apart_NxN.mean(axis=0)  # 0 but for rounding, which would grow
        length = np.linalg.norm(apart_NxN, 2)
        if length < TOLERANCE:
            return 1.0
        # back to length 1, or what is left after many rounds would be lost in rounding
        apart_NxN, log_left = apart_NxN / length, log_left + math.log(length)
    return max(0.0, 1 - math.exp(log_left / len(weights)))


def spectral_gap(weights: np.ndarray) -> float:
    """1 - the second largest |eigenvalue|; 1 for one worker."""
    sizes = np.sort(np.abs(np.linalg.eigvals(weights)))
    return 1.0 if len(sizes) < 2 else float(1 - sizes[-2])
