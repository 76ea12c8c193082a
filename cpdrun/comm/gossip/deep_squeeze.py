"""Deep-Squeeze (Tang et al., "DeepSqueeze: Decentralization Meets Error-Compensated Compression", arXiv 1907.07346,
algorithm 1): workers send their weights, and what compression takes from them is added the next time.

    v_i = x_i + d_i              x_i after the worker's own step; d_i what the last message lacked, 0 at first
    d_i = v_i - C(v_i)           C(v_i) is sent
    x_i += eta (sum_j w_ij C(v_j) - C(v_i))
"""

from typing import Any

from torch import Tensor

from cpdrun.comm.gossip.base import Gossip, checked_eta


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
