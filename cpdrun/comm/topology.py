"""Who gossips with whom, and with which weights: graphs of N workers and their mixing matrices.

W[i][j] is the weight that worker i gives to what j sends; rows and columns sum to 1 (doubly stochastic), so that
gossip keeps the mean of all weights. The spectral gap 1 - max_{k > 0} |lambda_k| of W says how fast workers agree: a
round of gossip brings them nearer to their mean by that share at least (Lian et al., arXiv 1705.09056, assumption 1).

    uniform     w_ij = 1 / (deg + 1) for the neighbours and for oneself; doubly stochastic where all degrees are equal
    metropolis  w_ij = 1 / (1 + max(deg_i, deg_j)), w_ii what is left: of any undirected graph (Xiao and Boyd 2004)

Gaps in closed form, uniform weights: directed ring 1 - cos(pi / N); ring (N > 2) 2/3 (1 - cos(2 pi / N)); torus of
sides a >= b > 2, 2/5 (1 - cos(2 pi / a)); exponential graph, even N, 2 / (1 + ceil(log2 N)) (Ying et al., arXiv
2110.13363, theorem 1); complete 1.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

MIXINGS = ("uniform", "metropolis")
TOLERANCE = 1e-9  # of sums of N float64 numbers below 1, for N up to millions


class Topology(ABC):
    """A graph for any number of workers it can be drawn for. One class and one yaml a topology."""

    def __init__(self, mixing: str):
        if mixing not in MIXINGS:
            raise ValueError(f"topology.mixing must be one of {', '.join(MIXINGS)}, not {mixing}")
        self.mixing = mixing

    @abstractmethod
    def senders(self, N: int) -> list[set[int]]:
        """For each of N workers, those whose messages it receives; its own number may be among them."""

    def neighbours(self, N: int) -> list[list[int]]:
        """`senders` in ascending order, without oneself."""
        return [sorted(of_i - {i}) for i, of_i in enumerate(self.senders(N))]

    def spectral_gap(self, N: int) -> float:
        """Of the mixing matrix; larger: workers agree sooner."""
        return spectral_gap(self.matrix(N))

    def matrix(self, N: int) -> np.ndarray:
        """The mixing matrix W (N, N), float64.

        Raises ValueError where it is not doubly stochastic or does not connect all workers.
        """
        neighbours = self.neighbours(N)
        if self.mixing == "metropolis":
            if any(i not in neighbours[j] for i in range(N) for j in neighbours[i]):
                raise ValueError(
                    "topology.mixing=metropolis needs a graph whose links go both ways; take uniform"
                )
            weights = _metropolis(neighbours)
        else:
            weights = _uniform(neighbours)
        if np.abs(weights.sum(axis=0) - 1).max() > TOLERANCE:
            raise ValueError(
                "topology.mixing=uniform needs workers with equally many neighbours, or gossip would move their "
                "mean; take metropolis"
            )
        if N > 1 and spectral_gap(weights) < TOLERANCE:
            raise ValueError("topology: its links do not connect all workers")
        return weights


class Ring(Topology):
    """Each receives from the worker before it and, undirected, from the one behind it."""

    def __init__(self, mixing: str, directed: bool):
        super().__init__(mixing)
        self.directed = directed

    def senders(self, N: int) -> list[set[int]]:
        return [{(i - 1) % N} if self.directed else {(i - 1) % N, (i + 1) % N} for i in range(N)]


class Torus(Topology):
    """A grid of rows x columns that is closed at its ends: up to four neighbours. rows None: as square as it gets."""

    def __init__(self, mixing: str, rows: int | None):
        super().__init__(mixing)
        self.rows = rows

    def senders(self, N: int) -> list[set[int]]:
        rows = self.rows or max(r for r in range(1, math.isqrt(N) + 1) if N % r == 0)
        if N % rows:
            raise ValueError(f"topology.rows={rows} does not divide world_size={N}")
        columns = N // rows
        return [
            {(r + dr) % rows * columns + (c + dc) % columns for dr, dc in ((0, 1), (0, -1), (1, 0), (-1, 0))}
            for r in range(rows)
            for c in range(columns)
        ]


class Exponential(Topology):
    """Each receives from the workers 1, 2, 4, 8 ... before it: few links, and a gap that shrinks with log N."""

    def senders(self, N: int) -> list[set[int]]:
        hops = [1 << k for k in range(max(1, (N - 1).bit_length())) if 1 << k < N]
        return [{(i - hop) % N for hop in hops} for i in range(N)]


class Complete(Topology):
    """Everyone receives from everyone: gossip as dear as all-reduce, and as exact."""

    def senders(self, N: int) -> list[set[int]]:
        return [set(range(N)) for _ in range(N)]


class Links(Topology):
    """The undirected links of one's own: pairs of workers."""

    def __init__(self, mixing: str, links: Sequence[Sequence[int]]):
        super().__init__(mixing)
        self.links = [tuple(link) for link in links]

    def senders(self, N: int) -> list[set[int]]:
        of: list[set[int]] = [set() for _ in range(N)]
        for link in self.links:
            if len(link) != 2 or not all(isinstance(i, int) and 0 <= i < N for i in link):
                raise ValueError(f"topology.links: {list(link)} is no pair of workers below world_size={N}")
            a, b = link
            of[a].add(b)
            of[b].add(a)
        return of


def spectral_gap(weights: np.ndarray) -> float:
    """1 - the second largest |eigenvalue|; 1 for one worker."""
    sizes = np.sort(np.abs(np.linalg.eigvals(weights)))
    return 1.0 if len(sizes) < 2 else float(1 - sizes[-2])


def _uniform(neighbours: Sequence[Sequence[int]]) -> np.ndarray:
    weights = np.zeros((len(neighbours),) * 2)
    for i, of_i in enumerate(neighbours):
        weights[i, [i, *of_i]] = 1 / (len(of_i) + 1)
    return weights


def _metropolis(neighbours: Sequence[Sequence[int]]) -> np.ndarray:
    weights = np.zeros((len(neighbours),) * 2)
    for i, of_i in enumerate(neighbours):
        for j in of_i:
            weights[i, j] = 1 / (1 + max(len(of_i), len(neighbours[j])))
        weights[i, i] = 1 - weights[i].sum()
    return weights
