"""Snapshots: the statistics of one rank's tensors in one step, in the form in which an observation stores them.

Legend: N workers, W of them on this rank, n elements of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cpdrun.comm.sums.magnitudes import largest_magnitude
from cpdrun.comm.workers import Workers
from cpdrun.whatif.collect import samples
from cpdrun.whatif.collect.moments import tables
from cpdrun.whatif.collect.observation import TensorStatistics


class Snapshot:
    """Record the statistics of one step on one rank.

    Args:
        workers: The workers that this rank emulates.
        layers: The number of parameters of the run, which determines the size of the samples.

    Attributes:
        seen: The recorded statistics as seen[role][layer].
    """

    def __init__(self, workers: Workers, layers: int) -> None:
        self.workers, self.layers = workers, layers
        self.seen: dict[str, dict[str, TensorStatistics]] = {}

    def gradients(self, names: Sequence[str], stacks: Sequence[Tensor]) -> None:
        """Record the gradients of this rank's workers. Collective.

        Args:
            names: The names of the parameters.
            stacks: For each parameter, the gradients of the workers, (W, ...), divided by N.
        """
        of_layers = [stack.detach().reshape(len(stack), -1) for stack in stacks]
        found = self.seen.setdefault("gradient", {})
        for name, table, g_Wxn, sum_n in zip(
            names, tables(of_layers), of_layers, self._sums(of_layers), strict=True
        ):
            found[name] = _seen(table, g_Wxn, g_Wxn.shape[1], self._gradient_sample(g_Wxn, sum_n))

    def tensors(self, looked: Sequence[tuple[str, str, Tensor]]) -> None:
        """Record tensors of other roles, each given as its role, layer and values."""
        for (role, name, x), table in zip(looked, tables([x for _, _, x in looked]), strict=True):
            values = self._sample(x.detach().reshape(-1))
            self.seen.setdefault(role, {})[name] = _seen(table, x.detach(), x.numel(), {"values": values})

    def _places(self, numel: int, device: torch.device) -> Tensor:
        return samples.places(numel, samples.size(numel, self.layers, self.workers.world_size), device)

    def _sample(self, x_n: Tensor) -> np.ndarray:
        return x_n[self._places(x_n.numel(), x_n.device)].float().cpu().numpy()

    def _sums(self, of_layers: Sequence[Tensor]) -> list[Tensor]:
        """Return the sum of each layer's gradients over all N workers, (n,). Collective.

        The sum is used only to find its largest element.
        """
        sums = [g_Wxn.sum(0) for g_Wxn in of_layers]
        if self.workers.ranks > 1:
            flat = self.workers.sum_of_disjoint(torch.cat(sums))
            sums = list(flat.split([total.numel() for total in sums]))
        return sums

    def _gradient_sample(self, g_Wxn: Tensor, sum_n: Tensor) -> dict[str, np.ndarray]:
        """Return the samples of this rank's workers for one layer (see `TensorStatistics.samples`).

        `extremes` contains the element whose sum has the largest magnitude, because the upper levels of a reduction
        order derive their shifts from it.
        """
        largest_sum = sum_n.abs().nan_to_num_(0.0, 0.0, 0.0)
        # Index with a tensor. An int would return a view of a buffer that later steps overwrite.
        where = largest_sum.argmax().reshape(1) if len(sum_n) else slice(0)
        at = self._places(g_Wxn.shape[1], g_Wxn.device)
        of_each = {
            "values": g_Wxn[:, at],
            "extremes": g_Wxn[:, where],
            "maxima": torch.stack([largest_magnitude(g_n) for g_n in g_Wxn]),
        }
        return {what: values.float().cpu().numpy() for what, values in of_each.items()}


def _seen(
    table: tuple[Tensor, Tensor], x: Tensor, numel: int, of_samples: dict[str, np.ndarray]
) -> TensorStatistics:
    binades, rows = table[0].numpy().astype(np.int16), table[1].numpy()
    largest = float(largest_magnitude(x))
    nonfinite = 0
    if x.numel() and not bool(torch.isfinite(x.sum())):
        nonfinite = int((~torch.isfinite(x)).sum())
    zeros = x.numel() - nonfinite - round(rows[:, 0].sum())
    return TensorStatistics(binades, rows, zeros, nonfinite, largest, numel, of_samples)
