"""Push-sum (Nedic and Olshevsky, arXiv 1406.2075; Assran, Loizou, Ballas and Rabbat, "Stochastic Gradient Push for
Distributed Deep Learning", arXiv 1811.10792, algorithm 1): gossip where columns alone of W sum to 1, so that links may
go one way and workers may send to unequally many. What a worker holds too much or too little of is told by a number.

    x_i  the numerator, s_i its share (both 1 at first: x_i the initial weights), z_i = x_i / s_i the model
    a step with the gradient at z_i changes x_i; then
    x_i = x_i + sum_j p_ij C(x_j) - C(x_i),   s_i = sum_j p_ij s_j,   p_ij = 1 / (1 + how many j sends to)

The sums of all x and of all s stay what they are, with and without a compressor. What differs: the shares follow from
the graphs alone, which all know, so that each worker computes them in float64 and none is sent; and a compressor,
which the paper does not have, takes from a message what stays with its sender (no error feedback: with few bits it
learns poorly, as `gossip_dpsgd` does). On graphs with equal degrees every s_i is 1 and it is D-PSGD.
"""

from typing import Any

import numpy as np
from torch import Tensor

from cpdrun.comm.gossip.base import Gossip
from cpdrun.comm.gossip.rows import Rows
from cpdrun.comm.gossip.topology.base import Topology


class PushSum(Gossip):
    """Has no knobs of its own. inf and NaN spread as elsewhere; a share is never 0, as a worker keeps a part."""

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.share_N = np.ones(self.world_size)

    def matrices(self, topology: Topology, world_size: int) -> list[np.ndarray]:
        return topology.push_matrices(world_size)

    def remembered(self) -> tuple[str, ...]:
        return ("numerator",)

    def begin(self, rows: Rows, x_WxD: Tensor) -> None:
        super().begin(rows, x_WxD)
        self.memory["numerator"].copy_(x_WxD)

    def mix(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        numerator_WxD = self.memory["numerator"]
        for i, w in enumerate(self.mine):
            numerator_WxD[i].add_(x_WxD[i] - numerator_WxD[i] / float(self.share_N[w]))
        sent = self.exchange(numerator_WxD, step=step, epoch=epoch)
        self.share_N = self.round.matrix_NxN @ self.share_N
        for i, w in enumerate(self.mine):
            numerator_WxD[i].add_(self.weighted_sum(w, sent) - sent[w])
            x_WxD[i].copy_(numerator_WxD[i] / float(self.share_N[w]))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"share": self.share_N.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.share_N = np.array(state["share"])
