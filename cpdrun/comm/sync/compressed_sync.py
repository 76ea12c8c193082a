"""Synchronization of workers that send compressed gradients.

For each layer, with the gradients g_w of N workers, already divided by N, and a compressor C (`compressors/`):

    c_w = g_w + e_w                    e_w is the error of the previous message, or 0 without error feedback.
    m_w = C(c_w)                       Each worker sends its message to all others.
    result = +0 + D(m_0) + D(m_1) ...  All workers decode the same messages and add in float32, in worker order.
    e_w = c_w - D(m_w)                 The error is initially 0. An error that is not finite is replaced by 0.

With top_k or random_k and error feedback, this is sparsified SGD with memory (Stich, Cordonnier and Jaggi, arXiv
1809.07599, algorithm 1). With qsgd and without error feedback, it is QSGD (Alistarh et al., arXiv 1610.02132, algorithm
1). A difference from the papers: error feedback applies to gradients before they are multiplied by the learning rate,
as in `sums/error_feedback.py`.

Nothing is rounded after the sum, so there is no chain of rounded additions. But each worker must send its whole message
to N - 1 workers. The following table compares the bytes that a worker sends for n values of k bits:

    whole messages, as implemented here        (N - 1) n k / 8
    slices to owners, float32 sums back        (N - 1) / N * n (k + 32) / 8
    a sum in a format (sync=all_reduce)        2 (N - 1) / N * n k / 8

Whole messages take fewer bytes than slices for up to N = 1 + 32 / k workers: 33 with sign, 9 with 4 bits, 5 with 8
bits. With more workers, sync=all_reduce takes fewer bytes than both. Sparse messages (top_k, random_k) cannot be
divided into slices of equal length. Slices are therefore not implemented.

Shapes: N workers, L of them on this rank, n values of a layer, M bytes of a message.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.compressors.message import LayerCompression
from cpdrun.comm.sums.error_feedback import ErrorFeedback
from cpdrun.comm.sync.base import GradientSync
from cpdrun.comm.sync.statistics import count_nonfinite
from cpdrun.comm.wire.communicator import MessageExchange
from cpdrun.comm.workers import Workers


class CompressedSync(GradientSync):
    """Computes the mean of compressed gradients. Layers in full precision are sent as fp32.

    Args:
        compressor: The compressor.
        error_feedback: Whether the compression error of a worker's gradient is added to its next gradient.
        world_size: The number of workers N.
        seed: The seed of random numbers.
        group: The process group.
        run_settings: Further settings of the run, see `LayerCompression`.

    Raises:
        ValueError: The format or the scaling rule does not fit the compressor.
    """

    def __init__(
        self,
        *,
        compressor: Compressor,
        error_feedback: bool,
        world_size: int,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        **run_settings: Any,
    ) -> None:
        self.compression = LayerCompression(compressor, **run_settings)
        self.seed, self.names = seed, self.compression.names
        self.workers = Workers.of_group(world_size, group)
        self.messages = MessageExchange([range(world_size)] * world_size, self.workers)
        self.feedback = ErrorFeedback() if error_feedback else None
        self._step = -1
        self._message_bytes = 0  # the bytes of one worker's messages in the latest step
        self._hidden = 0  # the number of inf and NaN of this rank's workers that became finite numbers

    def reduce_stacked(self, stacks: Sequence[Tensor], *, step: int, epoch: int) -> list[Tensor]:
        self.workers.rows(stacks, len(self.names))
        sums = [torch.empty(stack.shape[1:], device=stack.device) for stack in stacks]
        self._step, self._hidden = -1, 0
        self.reduce_layers(range(len(self.names)), stacks, step=step, epoch=epoch, out=sums)
        hidden = self.workers.total(self._hidden, stacks[0].device) if self._message_bytes else 0
        self.nonfinite = count_nonfinite(sums) + hidden
        return sums

    def reduce_layers(
        self, layers: Sequence[int], stacks: Sequence[Tensor], *, step: int, epoch: int, out: Sequence[Tensor]
    ) -> None:
        """Reduce the gradients of some parameters, such as a bucket of DDP. Collective.

        Args:
            layers: The indices of the parameters.
            stacks: For each parameter, the float32 gradients (L, ...) of this rank's L workers, in the parameter's
                shape.
            step: The number of the optimizer step.
            epoch: The epoch.
            out: For each parameter, memory for the sum, in the parameter's shape. It may be the first row of the stack.
        """
        if step != self._step:
            self._step, self._message_bytes = step, 0
        flat, names = self.workers.rows(stacks, len(layers)), [self.names[p] for p in layers]
        if self.feedback:
            flat = list(map(self.feedback.compensate, names, flat))
        message = self.compression.message([c_Lxn.shape[1] for c_Lxn in flat], epoch, layers)
        if not message.length:
            return
        self._message_bytes += message.length
        mine_LxM = message.compress(flat, (self.seed, step), self.workers.local)
        _, data_NxM = self.messages.exchange(mine_LxM)
        for k, decoded_Nxn in message.decompress(data_NxM):
            self._account_for(
                names[k], flat[k], decoded_Nxn[self.workers.local.start : self.workers.local.stop]
            )
            total_n = torch.zeros_like(decoded_Nxn[0])
            for decoded_n in decoded_Nxn:
                total_n += decoded_n
            out[k].copy_(total_n.view(out[k].shape))

    def _account_for(self, name: str, sent_Lxn: Tensor, decoded_Lxn: Tensor) -> None:
        """Store the compression errors of this rank's workers, and count inf and NaN that became finite numbers."""
        if self.feedback:
            for i, (sent_n, decoded_n) in enumerate(zip(sent_Lxn, decoded_Lxn, strict=True)):
                self.feedback.keep(name, i, sent_n, decoded_n)
        if count_nonfinite([sent_Lxn]):
            self._hidden += int((torch.isfinite(decoded_Lxn) & ~torch.isfinite(sent_Lxn)).sum())

    def wire_bytes(self) -> dict[str, int]:
        return {
            "bytes_per_step_sent": self._message_bytes * self.messages.copies_sent,
            "bytes_per_step_real_worker": self._message_bytes * (self.workers.world_size - 1),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"residuals": self.feedback.state_dict(self.workers)} if self.feedback else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.feedback:
            self.feedback.load_state_dict(state["residuals"], self.workers)
