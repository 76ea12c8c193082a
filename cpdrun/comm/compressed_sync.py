"""The mean gradient of workers that send theirs compressed: sparsified, in few levels, or rounded.

Per layer, with the gradients g_w of N workers, already divided by N, and a compressor C (`compressors/`):

    c_w = g_w + e_w                    e_w = 0 without error feedback
    m_w = C(c_w)                       sent to all others
    result = +0 + D(m_0) + D(m_1) ...  everyone decodes the same messages and adds in float32, in worker order
    e_w = c_w - D(m_w)                 0 at first, and where not finite

With top_k or random_k and error feedback it is sparsified SGD with memory (Stich, Cordonnier and Jaggi, arXiv
1809.07599, algorithm 1), with qsgd and without feedback QSGD (Alistarh et al., arXiv 1610.02132, algorithm 1). What
differs: the memory is of gradients that the learning rate has not touched, as in `sums/feedback.py`. Nothing is rounded
after the sum, so that there is no chain of rounded additions; but a message goes to N - 1 others whole, where sums
travel in shards.

Legend: N workers, L of them on this rank, n values of a layer, M bytes of a message.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.base import GradientSync
from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.compressors.compression import Compression
from cpdrun.comm.statistics import count_nonfinite
from cpdrun.comm.sums.feedback import ErrorFeedback
from cpdrun.comm.wire.messages import Messages
from cpdrun.comm.workers import Workers


class CompressedSync(GradientSync):
    """The run gives what it gives `AllReduceSync` (given: see `Compression`); conf/sync/compressed.yaml the rest.

    Layers of full_precision travel as fp32. Raises ValueError where format or scaling do not fit the compressor.
    """

    def __init__(
        self,
        *,
        compressor: Compressor,
        error_feedback: bool,
        world_size: int,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        **given: Any,
    ) -> None:
        self.compression = Compression(compressor, **given)
        self.seed, self.names = seed, self.compression.names
        self.workers = Workers.of_group(world_size, group)
        self.messages = Messages([range(world_size)] * world_size, self.workers)
        self.feedback = ErrorFeedback() if error_feedback else None
        self._message_bytes = 0

    def reduce_stacked(self, stacks: Sequence[Tensor], *, step: int, epoch: int) -> list[Tensor]:
        flat, mine = self.workers.rows(stacks, len(self.names)), self.workers.mine
        if self.feedback:
            flat = list(map(self.feedback.compensate, self.names, flat))
        message = self.compression.message([c_Lxn.shape[1] for c_Lxn in flat], epoch)
        self._message_bytes = message.length
        sums, hidden = [torch.zeros_like(c_Lxn[0]) for c_Lxn in flat], 0
        if message.length:
            mine_LxM = message.compress(flat, (self.seed, step), mine)
            _, data_NxM = self.messages.exchange(mine_LxM)
            for p, decoded_Nxn in message.decompress(data_NxM):
                for decoded_n in decoded_Nxn:
                    sums[p] += decoded_n
                hidden += self._account_for(p, flat[p], decoded_Nxn[mine.start : mine.stop])
            hidden = self.workers.total(hidden, stacks[0].device)
        self.nonfinite = count_nonfinite(sums) + hidden
        return [total_n.view(stack.shape[1:]) for total_n, stack in zip(sums, stacks, strict=True)]

    def _account_for(self, p: int, sent_Lxn: Tensor, decoded_Lxn: Tensor) -> int:
        """What my workers' layer p lost on its way is kept; returns how many inf and NaN came out as numbers."""
        if self.feedback:
            for i, (sent_n, decoded_n) in enumerate(zip(sent_Lxn, decoded_Lxn, strict=True)):
                self.feedback.keep(self.names[p], i, sent_n, decoded_n)
        if not count_nonfinite([sent_Lxn]):
            return 0
        return int((torch.isfinite(decoded_Lxn) & ~torch.isfinite(sent_Lxn)).sum())

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
