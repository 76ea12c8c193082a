"""CHOCO-SGD (Koloskova, Stich and Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
Communication", arXiv 1902.00340, algorithm 2): workers send how their weights changed, and what compression holds back
is sent later.

    q_i = C(x_i - x^_i)          what i sends; x^_i is the copy of its weights that the others have
    x^_i += q_i                  by i and by its neighbours
    x_i += eta (sum_j w_ij x^_j + (w_ii - 1) x^_i)

As in its memory-efficient form (arXiv 1907.09356, appendix), a worker keeps s_i = sum_j w_ij x^_j in place of each
neighbour's x^_j. What differs: with knows_start the copies begin at the initial weights, which all workers have
from the seed, in place of 0. eta = 1 without compression is D-PSGD.
"""

from typing import Any

import numpy as np
from torch import Tensor

from cpdrun.comm.gossip.base import Gossip, checked_eta
from cpdrun.comm.gossip.rows import Rows
from cpdrun.comm.gossip.topology.base import Topology


class Choco(Gossip):
    """eta: the consensus step, above 0 and at most 1: smaller for stronger compression."""

    def __init__(self, *, eta: float, knows_start: bool, **common: Any) -> None:
        super().__init__(**common)
        self.eta, self.knows_start = checked_eta(eta), knows_start

    def matrices(self, topology: Topology, world_size: int) -> list[np.ndarray]:
        """One: the sums of copies are of neighbours that stay. Raises ValueError for graphs that change."""
        weights = super().matrices(topology, world_size)
        if len(weights) > 1:
            raise ValueError(
                f"topology: CHOCO-SGD keeps copies of neighbours that stay, those of {type(topology).__name__} change; "
                "take sync=gossip_deep_squeeze, gossip_dpsgd or gossip_push_sum"
            )
        return weights

    def remembered(self) -> tuple[str, ...]:
        return "copy", "mean_copy"

    def begin(self, rows: Rows, x_WxD: Tensor) -> None:
        super().begin(rows, x_WxD)
        if self.knows_start:
            for name in self.remembered():
                self.memory[name].copy_(x_WxD)

    def mix(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        copy_WxD, mean_WxD = self.memory["copy"], self.memory["mean_copy"]
        q = self.exchange(x_WxD - copy_WxD, step=step, epoch=epoch)
        for i, w in enumerate(self.mine):
            copy_WxD[i].add_(q[w])
            mean_WxD[i].add_(self.weighted_sum(w, q))
            x_WxD[i].add_(mean_WxD[i] - copy_WxD[i], alpha=self.eta)
