"""Gradients that stay with their owners, and the weights that these make of them: ZeRO's stages 1 and 2.

Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020,
arXiv:1910.02054). Each of N workers owns 1/N of all elements, in shards of whole granules (`wire/cut.py`), of a rank's
workers one after the other:

    scatter   g_own = the sum of the workers' gradients in the run's format and order, the bits of `AllReduceSync`
    (the owner's optimizer makes new float32 weights of it: `cpdrun.train.learners.shared_weights`)
    gather    everyone's w = those weights in a format of their own (`gather.py`)

A worker sends (N-1)/N n k/8 bytes of gradients and (N-1)/N n k'/8 of weights. What differs from ZeRO: sums have an
order and a format, and are the same for any number of processes that play the workers.

Legend: N workers, L of them on this rank, n elements of a layer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cpdrun.comm.base import GradientSync
from cpdrun.comm.sharded.gather import Gather, Gathered, Weights
from cpdrun.comm.statistics import count_hidden, count_nonfinite
from cpdrun.comm.sums.sum import takes_knobs
from cpdrun.comm.sums.summations.base import Shards
from cpdrun.comm.sync import AllReduceSync
from cpdrun.comm.wire.cut import ALIKE, even
from cpdrun.comm.wire.piece import Piece


class ShardedSync(GradientSync):
    """The run gives what it gives `AllReduceSync`; conf/sync/sharded.yaml the rest. Layers of full_precision are
    gathered in fp32 too. Raises ValueError where the parts do not fit together."""

    learner = "cpdrun.train.learners.shared_weights.ShardedWeights"

    @takes_knobs
    def __init__(self, *, gather: str = "fp32", differences: bool = False, **given: Any) -> None:
        self.gradients = AllReduceSync(**given)
        self.workers, self.hybrid = self.gradients.workers, self.gradients.hybrid
        self.names, self.longest_chain = self.gradients.names, self.gradients.longest_chain
        scaled = self.gradients.shifts.scale
        self.in_format = Gather(gather, self.workers, scaled=scaled or differences, differences=differences)
        self.in_full = Gather("fp32", self.workers, scaled=False)
        self._gathered = Gathered()

    def begin(self, weights: Sequence[Tensor]) -> list[slice]:
        """Before the first step: of each layer what this rank owns."""
        numels = tuple(w.numel() for w in weights)
        self.shards = Shards(even(numels, self.workers.world_size, ALIKE), numels)
        self.owned = self.shards.cut.of_ranks(self.workers.ranks).of_owner(self.workers.rank, len(numels))
        return self.owned

    @property
    def shards_of_mine(self) -> list[list[slice]]:
        """Of each worker of this rank, what it owns of each layer."""
        return [self.shards.cut.of_owner(worker, len(self.names)) for worker in self.workers.mine]

    def scatter(self, stacks: Sequence[Tensor], *, step: int, epoch: int) -> list[Tensor]:
        """(n_own,) of each layer: this rank's part of what `reduce_stacked` gives. Arguments and `nonfinite` as there.
        Collective."""
        flat = self.workers.rows(stacks, len(self.names))
        sums = [g_Lxn.new_empty(own.stop - own.start) for g_Lxn, own in zip(flat, self.owned, strict=True)]
        layers = range(len(self.names))
        self.gradients.reduce_layers(layers, flat, step=step, epoch=epoch, out=sums, shards=self.shards)
        hidden = sum(count_hidden([g_Lxn], self._sum_of(p, epoch)) for p, g_Lxn in enumerate(flat))
        self.nonfinite = self.workers.total(count_nonfinite(sums) + hidden, flat[0].device)
        return sums

    def gather_(self, mine: Sequence[Tensor], weights: Sequence[Tensor], *, epoch: int) -> None:
        """weights[p], float32 and contiguous, becomes what everyone decodes of the owners' parts. mine[p]: (n_own,).
        With differences, what is in weights is what everyone decoded last. Collective."""
        self._gathered = Gathered()
        flat = [w.detach().view(-1) for w in weights]
        with torch.no_grad():
            for full, kind in ((False, self.in_format), (True, self.in_full)):
                chosen = [p for p in range(len(self.names)) if self.hybrid.covers(p, epoch) == full]
                if chosen:
                    self._gathered += kind.run(self._weights(chosen, mine, flat, kind.differences))

    def whole(self, mine: Sequence[Tensor]) -> list[Tensor]:
        """(n,) of each layer, of the parts that ranks own: to look at, not counted. Collective."""
        flat = [part.new_zeros(numel) for part, numel in zip(mine, self.shards.numels, strict=True)]
        self.in_full.run(self._weights(range(len(flat)), mine, flat, False))
        return flat

    def _weights(
        self, chosen: Sequence[int], mine: Sequence[Tensor], flat: Sequence[Tensor], differences: bool
    ) -> Weights:
        shards = self.shards.only(chosen)
        parts = [mine[p] for p in chosen]
        if differences:
            parts = [m - flat[p][self.owned[p]] for m, p in zip(parts, chosen, strict=True)]

        def place(_owner: int, piece: Piece) -> Tensor:
            return flat[chosen[piece.layer]][piece.start : piece.stop]

        return Weights([self.names[p] for p in chosen], parts, shards.numels, shards.cut, place)

    def _sum_of(self, p: int, epoch: int) -> Any:
        """How layer p is summed."""
        full = self.hybrid.covers(p, epoch)
        return (self.gradients.in_full_precision if full else self.gradients.summation).sum

    def reduce_stacked(self, stacks: Sequence[Tensor], *, step: int, epoch: int) -> list[Tensor]:
        return self.gradients.reduce_stacked(stacks, step=step, epoch=epoch)

    def statistics(
        self, stacks: Sequence[Tensor], mean_gradient: Sequence[Tensor]
    ) -> list[dict[str, str | int | float | None]]:
        return self.gradients.statistics(stacks, mean_gradient)

    def wire_bytes(self) -> dict[str, int]:
        """Of the latest `scatter` and `gather_`."""
        of_gradients = self.gradients.wire_bytes()
        return {
            "bytes_per_step_sent": of_gradients["bytes_per_step_sent"] + self._gathered.sent_bytes,
            "bytes_per_step_real_worker": of_gradients["bytes_per_step_real_worker"]
            + self._gathered.real_worker_bytes,
        }

    def state_dict(self) -> dict[str, Any]:
        return self.gradients.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gradients.load_state_dict(state)
