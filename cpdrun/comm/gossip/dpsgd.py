"""D-PSGD (Lian et al., arXiv 1705.09056): each worker's weights become the mean of its neighbours'.

    overlap       x_i = sum_j w_ij x_j(t) - (the step from x_i(t)): algorithm 1; the exchange needs no gradient
    not overlap   x_i = sum_j w_ij x_j(t + 1/2): first the step, then the mean, as in arXiv 2102.04761

What differs: with a compressor the neighbours average C(x_j), their own x_i excepted. Nothing makes up for what is
lost, so that it learns poorly with few bits (Koloskova et al., arXiv 1902.00340, section 3.2): the baseline.
"""

from typing import Any

from torch import Tensor

from cpdrun.comm.gossip.base import Gossip


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
