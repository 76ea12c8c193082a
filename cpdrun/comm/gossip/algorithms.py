"""D-PSGD (Lian et al., arXiv 1705.09056): each worker's weights become the mean of its neighbours'.

    overlap       x_i = sum_j w_ij x_j(t) - (the step from x_i(t)): algorithm 1; the exchange needs no gradient
    not overlap   x_i = sum_j w_ij x_j(t + 1/2): first the step, then the mean, as in arXiv 2102.04761

What differs: with a compressor the neighbours average C(x_j), their own x_i excepted. Nothing makes up for what is
lost, so that it learns poorly with few bits (Koloskova et al., arXiv 1902.00340, section 3.2): the baseline.

CHOCO-SGD (Koloskova, Stich and Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
Communication", arXiv 1902.00340, algorithm 2): workers send how their weights changed, and what compression holds back
is sent later.

    q_i = C(x_i - x^_i)          what i sends; x^_i is the copy of its weights that the others have
    x^_i += q_i                  by i and by its neighbours
    x_i += eta (sum_j w_ij x^_j + (w_ii - 1) x^_i)

As in its memory-efficient form (arXiv 1907.09356, appendix), a worker keeps s_i = sum_j w_ij x^_j in place of each
neighbour's x^_j. What differs: with knows_start the copies begin at the initial weights, which all workers have
from the seed, in place of 0. eta = 1 without compression is D-PSGD.

Deep-Squeeze (Tang et al., "DeepSqueeze: Decentralization Meets Error-Compensated Compression", arXiv 1907.07346,
algorithm 1): workers send their weights, and what compression takes from them is added the next time.

    v_i = x_i + d_i              x_i after the worker's own step; d_i what the last message lacked, 0 at first
    d_i = v_i - C(v_i)           C(v_i) is sent
    x_i += eta (sum_j w_ij C(v_j) - C(v_i))

Push-sum (Nedic and Olshevsky, arXiv 1406.2075; Assran, Loizou, Ballas and Rabbat, "Stochastic Gradient Push for
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

from cpdrun.comm.gossip.base import Gossip, WeightLayout, checked_eta
from cpdrun.comm.gossip.topologies import Topology


class DPSGD(Gossip):
    """overlap: average the weights of before the step."""

    def __init__(self, *, overlap: bool, **common: Any) -> None:
        super().__init__(**common)
        self.overlap = overlap
        self._mixed: list[Tensor] = []

    def before_step(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        super().before_step(x_WxD, step=step, epoch=epoch)
        if self.overlap:
            means = self._means(x_WxD, step=step, epoch=epoch)
            self._mixed = [mean_D.sub_(x_D) for mean_D, x_D in zip(means, x_WxD, strict=True)]

    def mix(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        if self.overlap:
            for x_D, difference_D in zip(x_WxD, self._mixed, strict=True):
                x_D.add_(difference_D)
            return
        for x_D, mean_D in zip(x_WxD, self._means(x_WxD, step=step, epoch=epoch), strict=True):
            x_D.copy_(mean_D)

    def _means(self, x_WxD: Tensor, *, step: int, epoch: int) -> list[Tensor]:
        sent = self.exchange(x_WxD, step=step, epoch=epoch)
        return [self.weighted_sum(w, {**sent, w: x_WxD[i]}) for i, w in enumerate(self.mine)]


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

    def begin(self, rows: WeightLayout, x_WxD: Tensor) -> None:
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


class DeepSqueeze(Gossip):
    """eta: the consensus step, above 0 and at most 1: smaller for stronger compression."""

    def __init__(self, *, eta: float, **common: Any) -> None:
        super().__init__(**common)
        self.eta = checked_eta(eta)

    def remembered(self) -> tuple[str, ...]:
        return ("lacking",)

    def mix(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        lacking_WxD = self.memory["lacking"].add_(x_WxD)
        sent = self.exchange(lacking_WxD, step=step, epoch=epoch)
        for i, w in enumerate(self.mine):
            lacking_WxD[i].sub_(sent[w])
            x_WxD[i].add_(self.weighted_sum(w, sent) - sent[w], alpha=self.eta)


class PushSum(Gossip):
    """Has no knobs of its own. inf and NaN spread as elsewhere; a share is never 0, as a worker keeps a part."""

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.share_N = np.ones(self.world_size)

    def matrices(self, topology: Topology, world_size: int) -> list[np.ndarray]:
        return topology.push_matrices(world_size)

    def remembered(self) -> tuple[str, ...]:
        return ("numerator",)

    def begin(self, rows: WeightLayout, x_WxD: Tensor) -> None:
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
