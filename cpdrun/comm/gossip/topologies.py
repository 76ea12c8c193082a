"""Topologies: graphs of N workers and their mixing matrices.

W[i][j] is the weight that worker i gives to the message of worker j. Rows and columns sum to 1 (doubly stochastic), so
gossip preserves the mean of all weights. The spectral gap 1 - max_{k > 0} |lambda_k| of W determines how fast workers
agree: each round reduces the distance to the mean by at least this fraction (Lian et al., arXiv 1705.09056, assumption
1).

    uniform     w_ij = 1 / (deg + 1) for the neighbors and the worker itself. W is doubly stochastic if all degrees are
                equal.
    metropolis  w_ij = 1 / (1 + max(deg_i, deg_j)), and w_ii is the remainder, for any undirected graph (Xiao and Boyd
                2004).

Push-sum (`algorithms.py`) only needs columns that sum to 1: w_ij = 1 / (1 + number of receivers of j), for any graph in
which a path leads from each worker to every other. A graph may change from round to round (`RandomPairs`). Then each
round has its own matrix, and the product of all matrices must connect all workers.

Spectral gaps in closed form, with uniform weights:

    directed ring                      1 - cos(pi / N)
    ring, N > 2                        2/3 (1 - cos(2 pi / N))
    torus with sides a >= b > 2        2/5 (1 - cos(2 pi / a))
    exponential graph with even N      2 / (1 + ceil(log2 N))    (Ying et al., arXiv 2110.13363, theorem 1)
    complete graph                     1
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch

MIXINGS = ("uniform", "metropolis")
TOLERANCE = 1e-9  # covers the rounding errors of a sum of N float64 numbers below 1, with N up to millions


def uniform(neighbours: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the matrix with weights of 1 / (deg + 1) for the neighbors and the worker itself.

    `neighbours` lists, for each worker, the other workers from which it receives messages.
    """
    weights = np.zeros((len(neighbours),) * 2)
    for i, of_i in enumerate(neighbours):
        weights[i, [i, *of_i]] = 1 / (len(of_i) + 1)
    return weights


def metropolis(neighbours: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the matrix with the weight 1 / (1 + max(deg_i, deg_j)) for each link between workers i and j.

    The weight of a worker for itself is the remainder. All links must go both ways.
    """
    weights = np.zeros((len(neighbours),) * 2)
    for i, of_i in enumerate(neighbours):
        for j in of_i:
            weights[i, j] = 1 / (1 + max(len(of_i), len(neighbours[j])))
        weights[i, i] = 1 - weights[i].sum()
    return weights


def mean_gap(weights: Sequence[np.ndarray]) -> float:
    """Return the smallest fraction by which a round reduces the distance to the mean.

    With a single matrix, this is its spectral gap. With one matrix per round, it is the geometric mean over a period: 1
    - |product of the matrices without the mean|^(1 / rounds). The result is 1 if all workers have equal weights after a
    period, and 0 if some workers never agree.
    """
    if len(weights) == 1:
        return spectral_gap(weights[0])
    N, log_left = len(weights[0]), 0.0
    apart_NxN = np.eye(N) - 1 / N
    for weights_NxN in weights:
        apart_NxN = weights_NxN @ apart_NxN
        apart_NxN -= apart_NxN.mean(axis=0)  # Remove the mean, which is a rounding error that would grow.
        length = np.linalg.norm(apart_NxN, 2)
        if length < TOLERANCE:
            return 1.0
        # Normalize after each round, because the product of many rounds would underflow.
        apart_NxN, log_left = apart_NxN / length, log_left + math.log(length)
    return max(0.0, 1 - math.exp(log_left / len(weights)))


def spectral_gap(weights: np.ndarray) -> float:
    """Return 1 - the second largest absolute eigenvalue, or 1 for a single worker."""
    sizes = np.sort(np.abs(np.linalg.eigvals(weights)))
    return 1.0 if len(sizes) < 2 else float(1 - sizes[-2])


class Topology:
    """The base class of graphs. A graph is defined for different numbers of workers."""

    def __init__(self, mixing: str):
        if mixing not in MIXINGS:
            raise ValueError(f"topology.mixing must be one of {', '.join(MIXINGS)}, not {mixing}")
        self.mixing = mixing

    def senders(self, N: int) -> list[set[int]]:
        """Return, for each of N workers, the workers whose messages it receives.

        A worker's own index may be included. A constant graph overrides this method. A changing graph overrides
        `rounds`.
        """
        raise NotImplementedError(f"{type(self).__name__} must override senders() or rounds()")

    def rounds(self, N: int) -> list[list[set[int]]]:
        """Return the senders of each worker, as `senders` does, for each round. The rounds repeat periodically."""
        return [self.senders(N)]

    def matrices(self, N: int) -> list[np.ndarray]:
        """Return the mixing matrix W (N, N), float64, of each round.

        Raises:
            ValueError: A matrix is not doubly stochastic, or the matrices together do not connect all workers.
        """
        weights = [self._mixed(without_oneself(senders)) for senders in self.rounds(N)]
        if N > 1 and mean_gap(weights) < TOLERANCE:
            raise ValueError(
                "topology: the links do not connect all workers, so their weights cannot become equal. Add links"
            )
        return weights

    def push_matrices(self, N: int) -> list[np.ndarray]:
        """Return the matrix of push-sum for each round. Its columns sum to 1.

        A worker divides its weights equally among itself and its receivers.

        Raises:
            ValueError: The mixing is not uniform, or no path leads from some worker to some other.
        """
        if self.mixing != "uniform":
            raise ValueError(
                "topology.mixing: push-sum requires topology.mixing=uniform, because each worker divides its weights "
                "equally among its receivers"
            )
        links = [uniform(without_oneself(senders)) > 0 for senders in self.rounds(N)]
        reached = functools.reduce(lambda before, later: later.astype(float) @ before > 0, links)
        for _ in range(N.bit_length()):
            reached = reached.astype(float) @ reached > 0
        if not reached.all():
            raise ValueError(
                "topology: push-sum needs a path of links from each worker to every other, but some paths are missing. "
                "Add links"
            )
        return [link / link.sum(axis=0) for link in links]

    def _mixed(self, neighbours: list[list[int]]) -> np.ndarray:
        both_ways = all(i in neighbours[j] for i, of_i in enumerate(neighbours) for j in of_i)
        if self.mixing == "metropolis":
            if not both_ways:
                raise ValueError(
                    "topology.mixing=metropolis needs a graph whose links go both ways. Set topology.mixing=uniform"
                )
            return metropolis(neighbours)
        weights = uniform(neighbours)
        if np.abs(weights.sum(axis=0) - 1).max() > TOLERANCE:
            raise ValueError(
                "topology.mixing=uniform needs a graph in which all workers have the same number of neighbors, because "
                "gossip would otherwise change the mean of the weights. Set "
                + ("topology.mixing=metropolis" if both_ways else "sync=gossip_push_sum")
            )
        return weights


def without_oneself(senders: Sequence[set[int]]) -> list[list[int]]:
    """Return, for each worker, the sorted list of the other workers from which it receives."""
    return [sorted(of_i - {i}) for i, of_i in enumerate(senders)]


class Ring(Topology):
    """A ring in which each worker receives from its predecessor and, if undirected, from its successor."""

    def __init__(self, mixing: str, directed: bool):
        super().__init__(mixing)
        self.directed = directed

    def senders(self, N: int) -> list[set[int]]:
        return [{(i - 1) % N} if self.directed else {(i - 1) % N, (i + 1) % N} for i in range(N)]


class Torus(Topology):
    """A grid of rows x columns with periodic boundaries. Each worker has up to four neighbors.

    Args:
        mixing: The mixing weights.
        rows: The number of rows. None selects a grid that is as square as possible.
    """

    def __init__(self, mixing: str, rows: int | None):
        super().__init__(mixing)
        if rows is not None and not (isinstance(rows, int) and rows >= 1):
            raise ValueError(f"topology.rows={rows}: must be a whole number, at least 1, or null")
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
    """A graph in which worker i receives from the workers i - 1, i - 2, i - 4, i - 8 and so on.

    Each worker has about log2 N links, and the spectral gap decreases only as 1 / log N.
    """

    def senders(self, N: int) -> list[set[int]]:
        hops = [1 << k for k in range(max(1, (N - 1).bit_length())) if 1 << k < N]
        return [{(i - hop) % N for hop in hops} for i in range(N)]


class Complete(Topology):
    """A graph in which each worker receives from all others. One round computes the exact mean, like an all-reduce."""

    def senders(self, N: int) -> list[set[int]]:
        return [set(range(N)) for _ in range(N)]


class Hub(Topology):
    """A directed ring in which worker 0 also sends to all other workers.

    Degrees differ and links are one-way, so this graph needs push-sum.
    """

    def senders(self, N: int) -> list[set[int]]:
        return [{(i - 1) % N, 0} for i in range(N)]


class Links(Topology):
    """Undirected links that the user chooses, as pairs of workers."""

    def __init__(self, mixing: str, links: Sequence[Sequence[int]]):
        super().__init__(mixing)
        self.links = list(links)

    def senders(self, N: int) -> list[set[int]]:
        of: list[set[int]] = [set() for _ in range(N)]
        for link in self.links:
            a, b = _pair("topology.links", link, N)
            of[a].add(b)
            of[b].add(a)
        return of


class Arrows(Topology):
    """One-way links that the user chooses, as pairs (from, to). A graph with unequal degrees needs push-sum."""

    def __init__(self, mixing: str, arrows: Sequence[Sequence[int]]):
        super().__init__(mixing)
        self.arrows = list(arrows)

    def senders(self, N: int) -> list[set[int]]:
        of: list[set[int]] = [set() for _ in range(N)]
        for arrow in self.arrows:
            sender, receiver = _pair("topology.arrows", arrow, N)
            of[receiver].add(sender)
        return of


def _pair(key: str, link: Sequence[int], N: int) -> tuple[int, int]:
    pair = list(link) if isinstance(link, Sequence) else [link]
    if len(pair) != 2 or not all(isinstance(i, int) and 0 <= i < N for i in pair):
        raise ValueError(f"{key}: {pair} must be a pair of workers, which are numbered from 0 to {N - 1}")
    return pair[0], pair[1]


class OnePeerExponential(Topology):
    """A changing graph: in round t, worker i receives from worker i - 2^(t mod log2 N).

    If N is a power of two, log2 N rounds compute the exact mean (Assran et al., "Stochastic Gradient Push for
    Distributed Deep Learning", arXiv 1811.10792, appendix A; Ying et al., arXiv 2110.13363, section 4).
    """

    def rounds(self, N: int) -> list[list[set[int]]]:
        return [[{(i - (1 << k)) % N} for i in range(N)] for k in range(max(1, (N - 1).bit_length()))]


class RandomPairs(Topology):
    """A changing graph: in each round, the workers are paired at random, and each pair averages its weights.

    See Boyd et al., "Randomized Gossip Algorithms", IEEE Trans. Inf. Theory 52, 2006. A difference from the paper: all
    pairs exchange at the same time. If N is odd, one worker per round has no partner.

    Args:
        mixing: The mixing weights.
        period: The number of rounds after which the pairs repeat.
        seed: The seed of the pairs.

    Raises:
        ValueError: The period is below 1.
    """

    def __init__(self, mixing: str, period: int, seed: int):
        super().__init__(mixing)
        if not (isinstance(period, int) and period >= 1):
            raise ValueError(f"topology.period={period}: must be a whole number, at least 1")
        self.period, self.seed = period, seed

    def rounds(self, N: int) -> list[list[set[int]]]:
        draws = torch.Generator().manual_seed(self.seed)
        return [_pairs(torch.randperm(N, generator=draws).tolist()) for _ in range(self.period)]


def _pairs(order: list[int]) -> list[set[int]]:
    of: list[set[int]] = [set() for _ in order]
    for a, b in zip(order[::2], order[1::2], strict=False):
        of[a], of[b] = {b}, {a}
    return of
