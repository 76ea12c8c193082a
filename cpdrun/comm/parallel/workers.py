"""Model parallelism: what M workers that share one layer send to each other, in a number format.

Two exchanges, the same in one process that plays all workers and between ranks, bit for bit:

    gather   every worker's part is encoded by itself and sent to all others; everyone, its owner too, uses the decoded
             values, so that all workers go on with the same ones. (M-1) parts sent by each.
    sum      the parts are encoded, decoded, added in float32 in worker order and encoded once more: decoded.py with
             requantise=once. 2 (M-1)/M of a part sent by each, on average.

One worker sends nothing, and nothing is rounded. A codebook without a block size takes one scale from each worker's
part.
"""

from collections.abc import Sequence
from itertools import pairwise

import custom_fp
import torch
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor, nn

from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summations import summation_of
from cpdrun.comm.sums.summations.base import Layers
from cpdrun.comm.wire.post import Post
from cpdrun.comm.wire.tags import Tag
from cpdrun.comm.workers import Workers


class ModelWorkers:
    """The M workers of a model, of which this rank plays its share.

    Counts, since the last `reset`: sent_bytes by this rank to others, real_worker_bytes by each of M machines (the one
    that sends most in a gather, the average in a sum).
    """

    def __init__(self, workers: Workers) -> None:
        self.workers, self.mine = workers, workers.mine
        self.reset()

    @property
    def number(self) -> int:
        """M."""
        return self.workers.world_size

    def reset(self) -> None:
        self.sent_bytes = self.real_worker_bytes = 0

    def slices(self, size: int) -> list[slice]:
        """The part of a dimension that each worker holds; sizes differ by one at most."""
        ends = [size * m // self.number for m in range(self.number + 1)]
        return [slice(start, stop) for start, stop in pairwise(ends)]

    def gather(self, parts: Sequence[Tensor], size: int, fmt: NumberFormat, dim: int = 1) -> Tensor:
        """parts[i]: (B, n_m) float32 of my i-th worker, its slice of `size` columns; (B, size) of all. Collective.

        dim=0: slices of rows, (n_m, F), to (size, F).
        """
        if self.number == 1:
            return parts[0]
        across = parts[0].shape[1 - dim]
        widths = [part.stop - part.start for part in self.slices(size)]
        shapes = [(across, width) if dim == 1 else (width, across) for width in widths]
        packed = [custom_fp.packed_size(across * width, fmt) for width in widths]
        self.real_worker_bytes += (self.number - 1) * max(packed)
        if self.workers.ranks == 1:
            return torch.cat([custom_fp.quantize(part, fmt) for part in parts], dim=dim)
        ranks = self.workers.ranks
        own = torch.cat([custom_fp.pack(part, fmt) for part in parts])
        sizes = [sum(packed[m] for m in self.workers.played_by(r)) for r in range(ranks)]
        received = Post(self.workers.group).swap([own] * ranks, sizes, Tag.PARTS)
        self.sent_bytes += (ranks - 1) * own.numel()
        payloads = torch.cat(received).split(packed)
        decoded = [custom_fp.unpack(data, fmt, shape) for data, shape in zip(payloads, shapes, strict=True)]
        return torch.cat(decoded, dim=dim)

    def sum(self, parts: Sequence[Tensor], fmt: NumberFormat) -> Tensor:
        """parts[i]: float32 summand of my i-th worker, all of one shape; the sum over all workers. Collective."""
        if self.number == 1:
            return parts[0]
        total = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
        stack_LxN = torch.stack(list(parts)).reshape(len(parts), -1)
        summation = summation_of(Sum(fmt, requantise="once"), self.workers)
        done = summation.run(Layers(["sum"], [stack_LxN], [total.view(-1)]))
        self.sent_bytes += done.sent_bytes
        self.real_worker_bytes += done.real_worker_bytes
        return total


def model_workers_of(model: nn.Module) -> list[ModelWorkers]:
    """The workers that share its layers; none for a model that is whole."""
    found = (getattr(module, "workers", None) for module in model.modules())
    return list(dict.fromkeys(workers for workers in found if isinstance(workers, ModelWorkers)))
