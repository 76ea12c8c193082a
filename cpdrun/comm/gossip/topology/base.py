"""Who gossips with whom, and with which weights: graphs of N workers and their mixing matrices.

W[i][j] is the weight that worker i gives to what j sends; rows and columns sum to 1 (doubly stochastic), so that
gossip keeps the mean of all weights. The spectral gap 1 - max_{k > 0} |lambda_k| of W says how fast workers agree: a
round of gossip brings them nearer to their mean by that share at least (Lian et al., arXiv 1705.09056, assumption 1).

    uniform     w_ij = 1 / (deg + 1) for the neighbours and for oneself; doubly stochastic where all degrees are equal
    metropolis  w_ij = 1 / (1 + max(deg_i, deg_j)), w_ii what is left: of any undirected graph (Xiao and Boyd 2004)

Push-sum (`push_sum.py`) asks for less, columns that sum to 1: w_ij = 1 / (1 + how many j sends to), of any graph in
which a way leads from each worker to every other. A graph may change from round to round (`random_pairs.py`): then
each round has a matrix, and the product of all has to connect the workers.

Gaps in closed form, uniform weights: directed ring 1 - cos(pi / N); ring (N > 2) 2/3 (1 - cos(2 pi / N)); torus of
sides a >= b > 2, 2/5 (1 - cos(2 pi / a)); exponential graph, even N, 2 / (1 + ceil(log2 N)) (Ying et al., arXiv
2110.13363, theorem 1); complete 1.
"""

import functools
from collections.abc import Sequence

import numpy as np

from cpdrun.comm.gossip.topology.mixing import MIXINGS, TOLERANCE, mean_gap, metropolis, uniform


class Topology:
    """A graph for any number of workers it can be drawn for. One class and one yaml a topology."""

    def __init__(self, mixing: str):
        if mixing not in MIXINGS:
            raise ValueError(f"topology.mixing must be one of {', '.join(MIXINGS)}, not {mixing}")
        self.mixing = mixing

    def senders(self, N: int) -> list[set[int]]:
        """For each of N workers, those whose messages it receives; its own number may be among them. What a graph that
        stands says, and one that changes says `rounds`."""
        raise NotImplementedError(f"{type(self).__name__} says neither senders nor rounds")

    def rounds(self, N: int) -> list[list[set[int]]]:
        """`senders` of one round after the other, and then again from the first."""
        return [self.senders(N)]

    def matrices(self, N: int) -> list[np.ndarray]:
        """The mixing matrix W (N, N) of each round, float64.

        Raises ValueError where one is not doubly stochastic or together they do not connect all workers.
        """
        weights = [self._mixed(without_oneself(senders)) for senders in self.rounds(N)]
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
        links = [uniform(without_oneself(senders)) > 0 for senders in self.rounds(N)]
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
            return metropolis(neighbours)
        weights = uniform(neighbours)
        if np.abs(weights.sum(axis=0) - 1).max() > TOLERANCE:
            raise ValueError(
                "topology.mixing=uniform needs workers with equally many neighbours, or gossip would move their "
                "mean; take " + ("metropolis" if both_ways else "sync=gossip_push_sum")
            )
        return weights


def without_oneself(senders: Sequence[set[int]]) -> list[list[int]]:
    return [sorted(of_i - {i}) for i, of_i in enumerate(senders)]
