"""FSDP2's all-gather of parameters in a format: each rank packs its part of the float32 weights, all decode the same.

The parameters of one `fully_shard` call go together; each is a layer of its own. The policy's param_dtype decides how
decoded weights are kept, not what is sent. With differences every rank keeps what it decoded last, whole and in
float32: memory of an unsharded model, and no bytes where FSDP gathers once more for the backward pass. The first gather
is in fp32 then, and there is a next one once an optimizer has changed any rank's part.

Parts of what is gathered already (reshard_after_forward=<ranks>) go as FSDP has them.

Legend: N ranks, S the sum of the parameters' padded parts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard import _fsdp_api

from cpdrun.comm.sharded.gather import Gather, Gathered, Weights
from cpdrun.comm.sharded.reduce_scatter import rows_of
from cpdrun.comm.wire.cut import width
from cpdrun.comm.wire.piece import Piece
from cpdrun.comm.wire.post import Post


class AllGather(_fsdp_api.AllGather):
    """names: of param_group's parameters; covers: which of them are gathered in fp32 all the same."""

    def __init__(
        self,
        param_group: Any,
        names: Sequence[str],
        in_format: Gather,
        in_full: Gather,
        covers: Sequence[bool],
    ) -> None:
        self.param_group, self.names = param_group, list(names)
        self.in_format, self.in_full, self.covers = in_format, in_full, list(covers)
        self.ranks, self.rank = in_full.workers.ranks, in_full.workers.rank
        self.as_it_is = in_format.fmt.is_fp32
        self.since = self.latest = Gathered()  # since the gradients came last, and before that
        params = param_group.fsdp_params
        self.shapes = [tuple(p._orig_size) for p in params]
        widths = [width(shape, self.ranks) for shape in self.shapes]
        self.begins = [sum(widths[:i]) for i in range(len(widths))]
        self.widths = widths
        self.decoded: Tensor | None = None  # (N, S) what everyone decoded last, of differences
        self._seen: Tensor | None = None  # (S,) the part that this rank has of what it was made of

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    @torch.no_grad()
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        again = group.size() != self.ranks  # after the forward pass, of what was gathered for it
        if self.as_it_is or again or output_tensor.dtype == torch.uint8:
            dist.all_gather_into_tensor(output_tensor, input_tensor, group=group)
            sent = (group.size() - 1) * input_tensor.nbytes
            self.since += Gathered(sent, sent)
        elif self.in_format.differences:
            self._follow(output_tensor.device)
            output_tensor.copy_(self.decoded.view(-1))
        else:
            plain = output_tensor.dtype == torch.float32
            values = output_tensor if plain else torch.empty_like(output_tensor, dtype=torch.float32)
            self._run(values.view(self.ranks, -1), self.in_format)
            if not plain:
                output_tensor.copy_(values)

    def counted(self) -> None:
        """The gradients have come: what was gathered until now was for them."""
        self.latest, self.since = self.since, Gathered()

    # ---- differences

    def _follow(self, device: torch.device) -> None:
        """`decoded` is what everyone is to use. Collective, but in a backward pass."""
        in_backward = torch._C._current_graph_task_id() != -1
        if self.decoded is None:
            self.decoded = torch.zeros(self.ranks, sum(self.widths), device=device)
            self._run(self.decoded, self.in_full, every=True)
        elif in_backward or not self._any_changed(device):
            return
        else:
            self._run(self.decoded, self.in_format)
        self._seen = self._mine()

    def _mine(self) -> Tensor:
        """(S,) this rank's parts; a copy."""
        return torch.cat([p._sharded_param_data for p in self._params])

    def _is_current(self) -> bool:
        """Whether this rank's parts are those that were gathered last, bit for bit."""
        if self._seen is None:
            return False
        return torch.equal(self._seen.view(torch.uint8), self._mine().view(torch.uint8))

    def _any_changed(self, device: torch.device) -> bool:
        """Of any rank's parts, since they were gathered last. Collective."""
        mine = torch.tensor(int(not self._is_current()), dtype=torch.int32, device=device)
        Post(self.in_full.workers.group).maximum_(mine).wait()
        self.since += Gathered(4, 4)
        return bool(mine)

    # ---- one gather

    @property
    def _params(self) -> list[Any]:
        return self.param_group.fsdp_params

    def _run(self, values_NxS: Tensor, kind: Gather, every: bool = False) -> None:
        """Into values_NxS, of all ranks' parts. every: without regard to what is in fp32 all the same."""
        for full in (False, True):
            chosen = [i for i in range(len(self.names)) if (self.covers[i] and not every) == full]
            if chosen:
                of_these = self.in_full if full else kind
                self.since += of_these.run(self._weights(chosen, values_NxS, of_these.differences))

    def _weights(self, chosen: Sequence[int], values_NxS: Tensor, differences: bool) -> Weights:
        shapes = tuple(self.shapes[i] for i in chosen)
        cut = rows_of(shapes, self.ranks)
        mine = []
        for i, own in zip(chosen, cut.of_owner(self.rank, len(chosen)), strict=True):
            part = self._params[i]._sharded_param_data[: own.stop - own.start].to(torch.float32)
            begin = self.begins[i]
            mine.append(part - values_NxS[self.rank, begin : begin + len(part)] if differences else part)

        place = self._place(chosen, values_NxS)
        numels = tuple(torch.Size(shape).numel() for shape in shapes)
        return Weights([self.names[i] for i in chosen], mine, numels, cut, place)

    def _place(self, chosen: Sequence[int], values_NxS: Tensor) -> Callable[[int, Piece], Tensor]:
        def place(owner: int, piece: Piece) -> Tensor:
            i = chosen[piece.layer]
            begin = self.begins[i] + piece.start - owner * self.widths[i]
            return values_NxS[owner, begin : begin + piece.numel]

        return place

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What everyone decoded last: whole, by name."""
        if self.decoded is None:
            return {}
        parts = zip(self.names, self.shapes, self.decoded.split(self.widths, dim=1), strict=True)
        whole = {
            name: part.reshape(-1)[: torch.Size(shape).numel()].view(shape).clone()
            for name, shape, part in parts
        }
        return {"decoded": whole, "is_current": self._is_current()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not state:
            return
        device = self._params[0]._sharded_param_data.device
        self.decoded = torch.zeros(self.ranks, sum(self.widths), device=device)
        for name, part in zip(self.names, self.decoded.split(self.widths, dim=1), strict=True):
            value = state["decoded"][name].reshape(-1).to(device)
            filled = value.new_zeros(part.numel())
            filled[: value.numel()] = value
            part.copy_(filled.view(part.shape))
        self._seen = self._mine() if state["is_current"] else None
