"""Who gossips with whom, and with which weights: graphs of N workers and their mixing matrices.

W[i][j] is the weight that worker i gives to what j sends; rows and columns sum to 1 (doubly stochastic), so that
gossip keeps the mean of all weights. The spectral gap 1 - max_{k > 0} |lambda_k| of W says how fast workers agree: a
round of gossip brings them nearer to their mean by that share at least (Lian et al., arXiv 1705.09056, assumption 1).

    uniform     w_ij = 1 / (deg + 1) for the neighbours and for oneself; doubly stochastic where all degrees are equal
    metropolis  w_ij = 1 / (1 + max(deg_i, deg_j)), w_ii what is left: of any undirected graph (Xiao and Boyd 2004)

Push-sum (`push_sum.py`) asks for less, columns that sum to 1: w_ij = 1 / (1 + how many j sends to), of any graph in
which a way leads from each worker to every other. A graph may change from round to round (`changing.py`): then each
round has a matrix, and the product of all has to connect the workers.

Gaps in closed form, uniform weights: directed ring 1 - cos(pi / N); ring (N > 2) 2/3 (1 - cos(2 pi / N)); torus of
sides a >= b > 2, 2/5 (1 - cos(2 pi / a)); exponential graph, even N, 2 / (1 + ceil(log2 N)) (Ying et al., arXiv
2110.13363, theorem 1); complete 1.
"""

import functools
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

    def rounds(self, N: int) -> list[list[set[int]]]:
        """`senders` of one round after the other, and then again from the first; one for a graph that stands."""
        return [self.senders(N)]

    def neighbours(self, N: int) -> list[list[int]]:
        """`senders` in ascending order, without oneself."""
        return _without_oneself(self.senders(N))

    def spectral_gap(self, N: int) -> float:
        """Of the mixing matrices; larger: workers agree sooner."""
        return mean_gap(self.matrices(N))

    def matrix(self, N: int) -> np.ndarray:
        """The mixing matrix W (N, N) of the first round, float64. Raises as `matrices` does."""
        return self.matrices(N)[0]

    def matrices(self, N: int) -> list[np.ndarray]:
        """The mixing matrix W (N, N) of each round, float64.

        Raises ValueError where one is not doubly stochastic or together they do not connect all workers.
        """
        weights = [self._mixed(_without_oneself(senders)) for senders in self.rounds(N)]
        if N > 1 and mean_gap(weights) < TOLERANCE:
            raise ValueError("topology: its links do not connect all workers")
        return weights

    def push_matrices(self, N: int) -> list[np.ndarray]:
        """The same for push-sum: a worker deals its weights equally to itself and those it sends to, columns sum to 1.

        Raises ValueError for another mixing than uniform and where no way leads from some worker to some other.
        """
        if self.mixing != "uniform":
            raise ValueError(
                "topology.mixing: push-sum deals a worker's weights equally to those it sends to; take uniform"
            )
        links = [_uniform(_without_oneself(senders)) > 0 for senders in self.rounds(N)]
        reached = functools.reduce(lambda before, later: later.astype(float) @ before > 0, links)
        for _ in range(N.bit_length()):
            reached = reached.astype(float) @ reached > 0
        if not reached.all():
            raise ValueError("topology: no way leads along its links from each worker to every other")
        return [link / link.sum(axis=0) for link in links]

    def _mixed(self, neighbours: list[list[int]]) -> np.ndarray:
        both_ways = all(i in neighbours[j] for i, of_i in enumerate(neighbours) for j in of_i)
        if self.mixing == "metropolis":
            if not both_ways:
                raise ValueError(
                    "topology.mixing=metropolis needs a graph whose links go both ways; take uniform"
                )
            return _metropolis(neighbours)
        weights = _uniform(neighbours)
        if np.abs(weights.sum(axis=0) - 1).max() > TOLERANCE:
            raise ValueError(
                "topology.mixing=uniform needs workers with equally many neighbours, or gossip would move their "
                "mean; take " + ("metropolis" if both_ways else "sync=gossip_push_sum")
            )
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
            a, b = _pair("topology.links", link, N)
            of[a].add(b)
            of[b].add(a)
        return of


class Hub(Topology):
    """A directed ring whose worker 0 sends to everyone: degrees differ and links go one way, so it takes push-sum."""

    def senders(self, N: int) -> list[set[int]]:
        return [{(i - 1) % N, 0} for i in range(N)]


class Arrows(Topology):
    """Links of one's own that go one way: pairs (from, to). Where degrees differ it takes push-sum."""

    def __init__(self, mixing: str, arrows: Sequence[Sequence[int]]):
        super().__init__(mixing)
        self.arrows = [tuple(arrow) for arrow in arrows]

    def senders(self, N: int) -> list[set[int]]:
        of: list[set[int]] = [set() for _ in range(N)]
        for arrow in self.arrows:
            sender, receiver = _pair("topology.arrows", arrow, N)
            of[receiver].add(sender)
        return of


def _pair(key: str, link: Sequence[int], N: int) -> tuple[int, int]:
    if len(link) != 2 or not all(isinstance(i, int) and 0 <= i < N for i in link):
        raise ValueError(f"{key}: {list(link)} is no pair of workers below world_size={N}")
    return link[0], link[1]


def _without_oneself(senders: Sequence[set[int]]) -> list[list[int]]:
    return [sorted(of_i - {i}) for i, of_i in enumerate(senders)]


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
