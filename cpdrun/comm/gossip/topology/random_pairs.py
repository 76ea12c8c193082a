"""A graph that changes: in each round the workers are paired at random, and each pair takes its mean (Boyd et al.,
"Randomized Gossip Algorithms", IEEE Trans. Inf. Theory 52, 2006, for many pairs at once)."""

import torch

from cpdrun.comm.gossip.topology.base import Topology


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


def _pairs(order: list[int]) -> list[set[int]]:
    of: list[set[int]] = [set() for _ in order]
    for a, b in zip(order[::2], order[1::2], strict=False):
        of[a], of[b] = {b}, {a}
    return of
