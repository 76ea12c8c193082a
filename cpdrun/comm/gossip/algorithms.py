"""Gossip algorithms: D-PSGD, CHOCO-SGD, Deep-Squeeze, and push-sum."""

from typing import Any

import numpy as np
from torch import Tensor

from cpdrun.comm.gossip.base import Gossip, WeightLayout, checked_eta
from cpdrun.comm.gossip.topologies import Topology


class DPSGD(Gossip):
    """D-PSGD (Lian et al., arXiv 1705.09056): each worker's weights become the mean of its neighbors' weights.

        overlap       x_i = sum_j w_ij x_j(t) - (the step from x_i(t)), as in algorithm 1. The exchange does not wait
                      for the gradient.
        not overlap   x_i = sum_j w_ij x_j(t + 1/2), as in arXiv 2102.04761. The step comes first, then the mean.

    A difference from the paper: with a compressor, a worker averages the compressed weights C(x_j) of its neighbors and
    its own exact weights x_i. Nothing compensates for the compression error, so training with few bits gives poor
    results (Koloskova et al., arXiv 1902.00340, section 3.2). D-PSGD is the baseline of the other algorithms.

    Args:
        overlap: Whether to average the weights from before the optimizer step.
        common: The arguments of `Gossip`.
    """

    def __init__(self, *, overlap: bool, **common: Any) -> None:
        super().__init__(**common)
        self.overlap = overlap
        self._mixed: list[Tensor] = []

    def before_step(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """Exchange the weights if the exchange overlaps with the step."""
        super().before_step(x_WxD, step=step, epoch=epoch)
        if self.overlap:
            means = self._means(x_WxD, step=step, epoch=epoch)
            self._mixed = [mean_D.sub_(x_D) for mean_D, x_D in zip(means, x_WxD, strict=True)]

    def step_mixing(self, matrix_NxN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mixing matrices of the weights and of the step. An overlapping exchange does not mix the step."""
        return matrix_NxN, np.eye(len(matrix_NxN)) if self.overlap else matrix_NxN

    def mix(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """Replace the weights by the mean of the neighbors' weights."""
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
    """CHOCO-SGD: workers send the compressed change of their weights. Later messages correct compression errors.

    Koloskova, Stich and Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
    Communication", arXiv 1902.00340, algorithm 2. x^_i is the copy of worker i's weights that the others have:

        q_i = C(x_i - x^_i)          sent by i
        x^_i += q_i                  at i and at its neighbors
        x_i += eta (sum_j w_ij x^_j + (w_ii - 1) x^_i)

    As in the memory-efficient form (arXiv 1907.09356, appendix), a worker stores s_i = sum_j w_ij x^_j instead of each
    neighbor's x^_j. A difference from the paper: with knows_start, the copies begin at the initial weights, which all
    workers compute from the seed, instead of 0. With eta = 1 and without compression, the algorithm is D-PSGD.

    Args:
        eta: The consensus step size, above 0 and at most 1. Stronger compression needs a smaller value.
        knows_start: Whether the copies begin at the initial weights.
        common: The arguments of `Gossip`.
    """

    def __init__(self, *, eta: float, knows_start: bool, **common: Any) -> None:
        super().__init__(**common)
        self.eta, self.knows_start = checked_eta(eta), knows_start

    def matrices(self, topology: Topology, world_size: int) -> list[np.ndarray]:
        """Return a list with the only mixing matrix.

        Raises:
            ValueError: The graph changes between rounds. The sums s_i require constant neighbors.
        """
        weights = super().matrices(topology, world_size)
        if len(weights) > 1:
            raise ValueError(
                f"topology: CHOCO-SGD needs a graph in which neighbors do not change, but {type(topology).__name__} "
                "changes them in each round. Set sync=gossip_deep_squeeze, gossip_dpsgd or gossip_push_sum"
            )
        return weights

    def remembered(self) -> tuple[str, ...]:
        """Return the names under which `memory` stores the copies x^_i and their weighted sums s_i."""
        return "copy", "mean_copy"

    def begin(self, rows: WeightLayout, x_WxD: Tensor) -> None:
        """Allocate the copies."""
        super().begin(rows, x_WxD)
        if self.knows_start:
            for name in self.remembered():
                self.memory[name].copy_(x_WxD)

    def mix(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """Exchange compressed changes and move the weights toward the neighbors' copies."""
        copy_WxD, mean_WxD = self.memory["copy"], self.memory["mean_copy"]
        q = self.exchange(x_WxD - copy_WxD, step=step, epoch=epoch)
        for i, w in enumerate(self.mine):
            copy_WxD[i].add_(q[w])
            mean_WxD[i].add_(self.weighted_sum(w, q))
            x_WxD[i].add_(mean_WxD[i] - copy_WxD[i], alpha=self.eta)


class DeepSqueeze(Gossip):
    """Deep-Squeeze: workers send their compressed weights with error feedback.

    Tang et al., "DeepSqueeze: Decentralization Meets Error-Compensated Compression", arXiv 1907.07346, algorithm 1:

        v_i = x_i + d_i              x_i after the worker's own step; d_i the error of the last message, 0 at first
        d_i = v_i - C(v_i)           C(v_i) is sent
        x_i += eta (sum_j w_ij C(v_j) - C(v_i))

    Args:
        eta: The consensus step size, above 0 and at most 1. Stronger compression needs a smaller value.
        common: The arguments of `Gossip`.
    """

    def __init__(self, *, eta: float, **common: Any) -> None:
        super().__init__(**common)
        self.eta = checked_eta(eta)

    def remembered(self) -> tuple[str, ...]:
        """Return the name under which `memory` stores the compression errors."""
        return ("lacking",)

    def mix(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """Exchange compressed weights and move the weights toward the neighbors' weights."""
        lacking_WxD = self.memory["lacking"].add_(x_WxD)
        sent = self.exchange(lacking_WxD, step=step, epoch=epoch)
        for i, w in enumerate(self.mine):
            lacking_WxD[i].sub_(sent[w])
            x_WxD[i].add_(self.weighted_sum(w, sent) - sent[w], alpha=self.eta)


class PushSum(Gossip):
    """Push-sum: gossip with a mixing matrix W whose columns sum to 1, but whose rows need not.

    Links may be one-way, and workers may have different numbers of neighbors. Each worker has a factor s_i that
    corrects for this. Nedic and Olshevsky, arXiv 1406.2075; Assran, Loizou, Ballas and Rabbat, "Stochastic Gradient
    Push for Distributed Deep Learning", arXiv 1811.10792, algorithm 1:

        z_i = x_i / s_i are the weights of the model. Initially, x_i are the initial weights, and s_i = 1.
        In each round, an optimizer step with the gradient at z_i changes x_i. Then:
        x_i = x_i + sum_j p_ij C(x_j) - C(x_i),   s_i = sum_j p_ij s_j,   p_ij = 1 / (1 + number of receivers of j)

    The sum of all x_i and the sum of all s_i are constant, with and without a compressor. Differences from the paper:
    s_i depends only on the graphs, so each worker computes all s_i in float64, and none is sent. The paper has no
    compressor. Here, a worker keeps its compression error, but does not add it to a later message as error feedback
    does. Training with few bits therefore gives poor results, as with D-PSGD. On graphs with equal degrees, every s_i
    is 1, and the algorithm is D-PSGD.

    inf and NaN spread to the neighbors. s_i is never 0, because a worker keeps a part of its own weight.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.share_N = np.ones(self.world_size)

    def matrices(self, topology: Topology, world_size: int) -> list[np.ndarray]:
        """Return the matrices of push-sum for each round."""
        return topology.push_matrices(world_size)

    def remembered(self) -> tuple[str, ...]:
        """Return the name under which `memory` stores the numerators x_i."""
        return ("numerator",)

    def begin(self, rows: WeightLayout, x_WxD: Tensor) -> None:
        """Initialize the numerators x_i."""
        super().begin(rows, x_WxD)
        self.memory["numerator"].copy_(x_WxD)

    def mix(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """Exchange the numerators x_i and compute the models z_i."""
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
