"""One step's tensors of one rank, as an observation has them: tables, samples, and what is in neither.

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
from cpdrun.whatif.collect.observation import Seen


class Look:
    """seen[role][layer]. layers: how many parameters the run has, from which follows how long samples are."""

    def __init__(self, workers: Workers, layers: int) -> None:
        self.workers, self.layers = workers, layers
        self.seen: dict[str, dict[str, Seen]] = {}

    def gradients(self, names: Sequence[str], stacks: Sequence[Tensor]) -> None:
        """(W, ...) of each parameter, divided by N. Collective."""
        of_layers = [stack.detach().reshape(len(stack), -1) for stack in stacks]
        found = self.seen.setdefault("gradient", {})
        for name, table, g_Wxn, sum_n in zip(
            names, tables(of_layers), of_layers, self._sums(of_layers), strict=True
        ):
            found[name] = _seen(table, g_Wxn, g_Wxn.shape[1], self._gradient_sample(g_Wxn, sum_n))

    def tensors(self, looked: Sequence[tuple[str, str, Tensor]]) -> None:
        """Role, layer and values."""
        for (role, name, x), table in zip(looked, tables([x for _, _, x in looked]), strict=True):
            values = self._sample(x.detach().reshape(-1))
            self.seen.setdefault(role, {})[name] = _seen(table, x.detach(), x.numel(), {"values": values})

    def _places(self, numel: int, device: torch.device) -> Tensor:
        return samples.places(numel, samples.size(numel, self.layers, self.workers.world_size), device)

    def _sample(self, x_n: Tensor) -> np.ndarray:
        return x_n[self._places(x_n.numel(), x_n.device)].float().cpu().numpy()

    def _sums(self, of_layers: Sequence[Tensor]) -> list[Tensor]:
        """The sum over all N workers, to find its largest element. Collective."""
        sums = [g_Wxn.sum(0) for g_Wxn in of_layers]
        if self.workers.ranks > 1:
            flat = self.workers.sum_of_disjoint(torch.cat(sums))
            sums = list(flat.split([total.numel() for total in sums]))
        return sums

    def _gradient_sample(self, g_Wxn: Tensor, sum_n: Tensor) -> dict[str, np.ndarray]:
        """Of my workers. extremes: the element whose sum is the largest, from which upper levels of an order take their
        shifts."""
        largest_sum = sum_n.abs().nan_to_num_(0.0, 0.0, 0.0)
        # a list of places and not one, which would be a view of a buffer that later steps write to
        where = largest_sum.argmax().reshape(1) if len(sum_n) else slice(0)
        at = self._places(g_Wxn.shape[1], g_Wxn.device)
        of_each = {
            "values": g_Wxn[:, at],
            "extremes": g_Wxn[:, where],
            "maxima": torch.stack([largest_magnitude(g_n) for g_n in g_Wxn]),
        }
        return {what: values.float().cpu().numpy() for what, values in of_each.items()}


def _seen(table: tuple[Tensor, Tensor], x: Tensor, numel: int, of_samples: dict[str, np.ndarray]) -> Seen:
    binades, rows = table[0].numpy().astype(np.int16), table[1].numpy()
    largest = float(largest_magnitude(x))
    nonfinite = 0
    if x.numel() and not bool(torch.isfinite(x.sum())):
        nonfinite = int((~torch.isfinite(x)).sum())
    zeros = x.numel() - nonfinite - round(rows[:, 0].sum())
    return Seen(binades, rows, zeros, nonfinite, largest, numel, of_samples)
