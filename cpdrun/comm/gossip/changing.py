"""Graphs that change from round to round: little is sent in each, and all workers agree after a few.

OnePeerExponential  in round t worker i receives from i - 2^(t mod log2 N): with N a power of two, log2 N rounds are
                    the exact mean of all (Assran et al., "Stochastic Gradient Push for Distributed Deep Learning",
                    arXiv 1811.10792, appendix A; Ying et al., arXiv 2110.13363, section 4)
RandomPairs         in each round the workers are paired at random, and each pair takes its mean (Boyd et al.,
                    "Randomized Gossip Algorithms", IEEE Trans. Inf. Theory 52, 2006, for many pairs at once)

CHOCO-SGD cannot use them: its copies of neighbours' weights are of neighbours that stay.
"""

import torch

from cpdrun.comm.gossip.topology import Topology


class OnePeerExponential(Topology):
    """One neighbour a round, 1, 2, 4, 8 ... workers before."""

    def rounds(self, N: int) -> list[list[set[int]]]:
        return [[{(i - (1 << k)) % N} for i in range(N)] for k in range(max(1, (N - 1).bit_length()))]

    def senders(self, N: int) -> list[set[int]]:
        """Of the first round."""
        return self.rounds(N)[0]


class RandomPairs(Topology):
    """Pairs drawn from `seed`; after `period` rounds the first come again. With odd N one worker a round is alone.

    Raises ValueError for a period below 1.
    """

    def __init__(self, mixing: str, period: int, seed: int):
        super().__init__(mixing)
        if not (isinstance(period, int) and period >= 1):
            raise ValueError(f"topology.period={period}: must be a whole number, at least 1")
        self.period, self.seed = period, seed

    def rounds(self, N: int) -> list[list[set[int]]]:
        draws = torch.Generator().manual_seed(self.seed)
        return [_pairs(torch.randperm(N, generator=draws).tolist()) for _ in range(self.period)]

    def senders(self, N: int) -> list[set[int]]:
        """Of the first round."""
        return self.rounds(N)[0]


def _pairs(order: list[int]) -> list[set[int]]:
    of: list[set[int]] = [set() for _ in order]
    for a, b in zip(order[::2], order[1::2], strict=False):
        of[a], of[b] = {b}, {a}
    return of
