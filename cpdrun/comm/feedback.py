"""Error feedback: what rounding takes from a worker's gradient is added to its next one.

Karimireddy, Rebjock, Stich and Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes"
(ICML 2019, arXiv:1901.09847), algorithm 2, on gradients that the learning rate has not touched yet:

    c_w = g_w + e_w        sent = Q(c_w * 2^shift) * 2^-shift        e_w = c_w - sent

so that sent + residual = gradient + the residual before. It makes up for the rounding of what workers send,
not for that of partial sums. Where c_w or what was sent is not finite the residual becomes 0: a NaN is not
kept.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.codec import Draw, quantize_scaled, scale
from cpdrun.comm.recipe import Recipe


class ErrorFeedback:
    """The residuals of this rank's workers, by worker and layer; zero at first."""

    def __init__(self) -> None:
        self._residuals: dict[tuple[int, str], Tensor] = {}

    def compensate(self, worker: int, layer: str, gradient: Tensor) -> Tensor:
        """gradient + residual; a new tensor."""
        residual = self._residuals.get((worker, layer))
        return gradient.clone() if residual is None else gradient + residual

    def keep(
        self, worker: int, layer: str, compensated: Tensor, shift: int, recipe: Recipe, draw: Draw | None
    ) -> None:
        """Keeps what is lost of `compensated` when it is sent with this shift (and this draw)."""
        sent = scale(quantize_scaled(compensated, shift, recipe, draw), -shift)
        residual = compensated - sent
        self._residuals[worker, layer] = torch.where(torch.isfinite(residual), residual, 0.0)

    def state_dict(self, group: dist.ProcessGroup | None, ranks: int) -> dict[str, Any]:
        """All workers' residuals on rank 0, an empty dict elsewhere. Collective."""
        mine = {f"{worker}/{layer}": residual for (worker, layer), residual in self._residuals.items()}
        if ranks == 1:
            return mine
        rank = dist.get_rank(group)
        everyone: list[dict[str, Tensor] | None] | None = [None] * ranks if rank == 0 else None
        dist.gather_object(mine, everyone, group=group, group_dst=0)
        return {key: residual for part in everyone or () for key, residual in part.items()}

    def load_state_dict(self, state: dict[str, Any], workers: range) -> None:
        """Takes the residuals of the workers that this rank plays."""
        self._residuals = {}
        for key, residual in state.items():
            worker, layer = key.split("/", 1)
            if int(worker) in workers:
                self._residuals[int(worker), layer] = residual
