"""Error feedback: what rounding takes from a worker's gradient is added to its next one.

Karimireddy, Rebjock, Stich and Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes"
(ICML 2019, arXiv:1901.09847), algorithm 2, on gradients that the learning rate has not touched yet:

    c_w = g_w + e_w        sent = Q(c_w * 2^shift) * 2^-shift        e_w = c_w - sent

so that sent + residual = gradient + the residual before. It makes up for the rounding of what workers send,
not for that of partial sums. Where c_w or what was sent is not finite, the residual becomes 0.
"""

from typing import Any

import torch
from torch import Tensor

from cpdrun.comm.workers import Workers


class ErrorFeedback:
    """The residuals of this rank's L workers, (L, n) for each layer; zero at first."""

    def __init__(self) -> None:
        self._residuals: dict[str, Tensor] = {}

    def compensate(self, layer: str, gradients_Lxn: Tensor) -> Tensor:
        """gradients + residuals; a new tensor."""
        if layer not in self._residuals:
            self._residuals[layer] = torch.zeros_like(gradients_Lxn)
        if self._residuals[layer].device != gradients_Lxn.device:  # loaded from a checkpoint to another
            self._residuals[layer] = self._residuals[layer].to(gradients_Lxn.device)
        return gradients_Lxn + self._residuals[layer]

    def keep(self, layer: str, i: int, compensated_n: Tensor, sent_n: Tensor) -> None:
        """Keeps what my i-th worker's compensated gradient lost when it was sent."""
        torch.sub(compensated_n, sent_n, out=self._residuals[layer][i]).nan_to_num_(0.0, 0.0, 0.0)

    def take(self, layer: str) -> Tensor | None:
        """The residuals of a layer that goes without compression from here on; None where there are none."""
        return self._residuals.pop(layer, None)

    def state_dict(self, workers: Workers) -> dict[str, Any]:
        """All workers' residuals, by "worker/layer", on rank 0; an empty dict elsewhere. Collective."""
        mine = {
            f"{worker}/{layer}": residuals_Lxn[i].clone()
            for layer, residuals_Lxn in self._residuals.items()
            for i, worker in enumerate(workers.mine)
        }
        return workers.gather(mine)

    def load_state_dict(self, state: dict[str, Any], workers: Workers) -> None:
        """Takes the residuals of the workers that this rank plays."""
        layers = dict.fromkeys(key.split("/", 1)[1] for key in state)
        self._residuals = {
            layer: torch.stack([state[f"{worker}/{layer}"] for worker in workers.mine]) for layer in layers
        }
