"""Error feedback: the rounding error of a worker's gradient is added to its next gradient.

Karimireddy, Rebjock, Stich and Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (ICML 2019,
arXiv:1901.09847), algorithm 2. Here, it is applied to gradients before they are multiplied by the learning rate:

    c_w = g_w + e_w        sent = Q(c_w * 2^shift) * 2^-shift        e_w = c_w - sent

The residual is e_w. So sent + residual = gradient + previous residual. Error feedback compensates for the rounding of
the values that workers send, not for the rounding of partial sums. If c_w or the sent value is not finite, the residual
becomes 0.
"""

from typing import Any

import torch
from torch import Tensor

from cpdrun.comm.workers import Workers


class ErrorFeedback:
    """The residuals of this rank's L workers, of shape (L, n) for each layer. They are initially zero."""

    def __init__(self) -> None:
        self._residuals: dict[str, Tensor] = {}

    def compensate(self, layer: str, gradients_Lxn: Tensor) -> Tensor:
        """Return the gradients plus the residuals of a layer as a new tensor."""
        if layer not in self._residuals:
            self._residuals[layer] = torch.zeros_like(gradients_Lxn)
        if (
            self._residuals[layer].device != gradients_Lxn.device
        ):  # The residuals were loaded from a checkpoint on another device.
            self._residuals[layer] = self._residuals[layer].to(gradients_Lxn.device)
        return gradients_Lxn + self._residuals[layer]

    def keep(self, layer: str, i: int, compensated_n: Tensor, sent_n: Tensor) -> None:
        """Store the difference between the compensated and the sent gradient of this rank's i-th worker."""
        torch.sub(compensated_n, sent_n, out=self._residuals[layer][i]).nan_to_num_(0.0, 0.0, 0.0)

    def take(self, layer: str) -> Tensor | None:
        """Remove and return the residuals of a layer that is no longer compressed. Return None if there are none."""
        return self._residuals.pop(layer, None)

    def state_dict(self, workers: Workers) -> dict[str, Any]:
        """Return all workers' residuals on rank 0, and an empty dictionary elsewhere. Collective.

        The keys have the form "worker/layer".
        """
        mine = {
            f"{worker}/{layer}": residuals_Lxn[i].clone()
            for layer, residuals_Lxn in self._residuals.items()
            for i, worker in enumerate(workers.local)
        }
        return workers.gather(mine)

    def load_state_dict(self, state: dict[str, Any], workers: Workers) -> None:
        """Load the residuals of this rank's workers."""
        layers = dict.fromkeys(key.split("/", 1)[1] for key in state)
        self._residuals = {
            layer: torch.stack([state[f"{worker}/{layer}"] for worker in workers.local]) for layer in layers
        }
