"""FSDP2's reduce-scatter in a format: each rank sends shard r of its packed gradients to rank r, which adds them.

FSDP hands over the gradients of one `fully_shard` call together, each parameter cut along its first dimension in one
part a rank, padded with zeros to equal ones, part r of all parameters after part r-1. Each parameter is a layer of its
own, as everywhere, with a shift of its own; a rank sends (N-1)/N n k/8 bytes, and its part of the sum has the bits that
the whole one has in `AllReduceSync`.

Legend: N ranks, P parameters, S the sum of their padded parts' sizes.

FSDP2's all-gather of parameters in a format: each rank packs its part of the float32 weights, all decode the same.

The parameters of one `fully_shard` call go together; each is a layer of its own. The policy's param_dtype decides how
decoded weights are kept, not what is sent. With differences every rank keeps what it decoded last, whole and in
float32: memory of an unsharded model, and no bytes where FSDP gathers once more for the backward pass. The first gather
is in fp32 then, and there is a next one once an optimizer has changed any rank's part.

Parts of what is gathered already (reshard_after_forward=<ranks>) go as FSDP has them.

Legend: N ranks, S the sum of the parameters' padded parts.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard import _fsdp_api

from cpdrun.comm.sums.summation import Shards
from cpdrun.comm.sync.all_reduce import AllReduceSync
from cpdrun.comm.sync.sharded import Traffic, WeightGather, Weights
from cpdrun.comm.wire.communicator import Communicator
from cpdrun.comm.wire.layout import PackedSlice, Sharding, padded_numel, shard_by_rows


class ReduceScatter(_fsdp_api.ReduceScatter):
    """Of the parameters of one `fully_shard` call, param_group. A subclass says whose sum it is."""

    def __init__(self, param_group: Any) -> None:
        self.param_group = param_group
        self.step = 0
        self._there: list[Any] | None = None  # the parameters with gradients, where torch tells
        self._input_is_next = False
        prepare = getattr(param_group, "_prepare_reduce_scatter_inputs", None)
        if prepare is not None:
            param_group._prepare_reduce_scatter_inputs = self._noting(prepare)

    @abstractmethod
    def sum_of(self, params: Sequence[Any], ranks: int) -> tuple[AllReduceSync, Sequence[int]]:
        """The sum of these parameters' gradients, and which of its layers they are."""

    def workers(self, ranks: int) -> int:
        """How many gradients the mean is of."""
        return ranks

    def done(self, params: Sequence[Any]) -> None:
        """After each of them."""

    def trainable(self) -> list[Any]:
        return [p for p in self.param_group.fsdp_params if p.sharded_param.requires_grad]

    def _noting(self, prepare: Callable) -> Callable:
        def noting(params: Sequence[Any], *given: Any) -> Any:
            self._there, self._input_is_next = list(params), True
            return prepare(params, *given)

        return noting

    def reduced(self, numel: int, ranks: int) -> list[Any]:
        """The parameters whose gradients have so many values, padded. Raises ValueError where nobody can tell."""
        params = self.trainable() if self._there is None else self._there
        if sum(padded_numel(p._orig_size, ranks) for p in params) * ranks != numel:
            raise ValueError(without_gradient(params))
        return params

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        is_input, self._input_is_next = self._input_is_next, False
        if is_input and device.type == "cpu":
            return _scratch(prod(size), dtype)
        return torch.empty(*size, dtype=dtype, device=device)

    @torch.no_grad()
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """input_tensor: (N S,), overwritten; output_tensor: (S,)."""
        N, rank = group.size(), group.rank()
        params = self.reduced(input_tensor.numel(), N)
        sync, layers = self.sum_of(params, N)
        shapes = tuple(tuple(p._orig_size) for p in params)
        widths = [padded_numel(shape, N) for shape in shapes]
        values = input_tensor if input_tensor.dtype == torch.float32 else input_tensor.float()
        values.div_(self.workers(N))
        result = output_tensor if output_tensor.dtype == torch.float32 else output_tensor.float()
        sharding = rows_of(shapes, N)
        mine = zip(result.zero_().split(widths), sharding.owned_by(rank, len(params)), strict=True)
        out = [part[: own.stop - own.start] for part, own in mine]
        stacks = [part.unsqueeze(0) for part in values.view(N, -1).split(widths, dim=1)]
        shards = Shards(sharding, tuple(map(prod, shapes)), apart=True)
        sync.reduce_layers(layers, stacks, step=self.step, epoch=0, out=out, shards=shards)
        if result is not output_tensor:
            output_tensor.copy_(result)
        self.step += 1
        self.done(params)


_scratches: dict[torch.dtype, Tensor] = {}


def _scratch(numel: int, dtype: torch.dtype) -> Tensor:
    """Memory for one input after the other, which a processor has read when the reduce-scatter is over: fresh memory
    costs more than to fill it."""
    if dtype not in _scratches or _scratches[dtype].numel() < numel:
        _scratches[dtype] = torch.empty(numel, dtype=dtype)
    return _scratches[dtype][:numel]


@lru_cache(maxsize=512)
def rows_of(shapes: tuple[tuple[int, ...], ...], ranks: int) -> Sharding:
    """`by_rows`, once for each list of parameters."""
    return shard_by_rows(shapes, ranks)


def without_gradient(params: Sequence[Any]) -> str:
    """What is wrong where one of FSDP's parameters beside these has none."""
    return (
        f"fully_shard: one beside {name_of(params[0])} ... has no gradient in this step, so that it cannot be told "
        "which are there: use all parameters, freeze the others, or call set_reduce_scatter_unused_params(True)"
    )


def name_of(param: Any) -> str:
    """Of one of FSDP's parameters, once the model has been called."""
    return param._param_fqn or param._module_info.param_name


class AllGather(_fsdp_api.AllGather):
    """names: of param_group's parameters; covers: which of them are gathered in fp32 all the same."""

    def __init__(
        self,
        param_group: Any,
        names: Sequence[str],
        in_format: WeightGather,
        in_full: WeightGather,
        covers: Sequence[bool],
    ) -> None:
        self.param_group, self.names = param_group, list(names)
        self.in_format, self.in_full, self.covers = in_format, in_full, list(covers)
        self.ranks, self.rank = in_full.workers.ranks, in_full.workers.rank
        self.as_it_is = in_format.fmt.is_fp32
        self.since = self.latest = Traffic()  # since the gradients came last, and before that
        params = param_group.fsdp_params
        self.shapes = [tuple(p._orig_size) for p in params]
        widths = [padded_numel(shape, self.ranks) for shape in self.shapes]
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
            self.since += Traffic(sent, sent)
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
        self.latest, self.since = self.since, Traffic()

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
        Communicator(self.in_full.workers.group).maximum_(mine).wait()
        self.since += Traffic(4, 4)
        return bool(mine)

    # ---- one gather

    @property
    def _params(self) -> list[Any]:
        return self.param_group.fsdp_params

    def _run(self, values_NxS: Tensor, kind: WeightGather, every: bool = False) -> None:
        """Into values_NxS, of all ranks' parts. every: without regard to what is in fp32 all the same."""
        for full in (False, True):
            chosen = [i for i in range(len(self.names)) if (self.covers[i] and not every) == full]
            if chosen:
                of_these = self.in_full if full else kind
                self.since += of_these.run(self._weights(chosen, values_NxS, of_these.differences))

    def _weights(self, chosen: Sequence[int], values_NxS: Tensor, differences: bool) -> Weights:
        shapes = tuple(self.shapes[i] for i in chosen)
        sharding = rows_of(shapes, self.ranks)
        mine = []
        for i, own in zip(chosen, sharding.owned_by(self.rank, len(chosen)), strict=True):
            part = self._params[i]._sharded_param_data[: own.stop - own.start].to(torch.float32)
            begin = self.begins[i]
            mine.append(part - values_NxS[self.rank, begin : begin + len(part)] if differences else part)

        place = self._place(chosen, values_NxS)
        numels = tuple(torch.Size(shape).numel() for shape in shapes)
        return Weights([self.names[i] for i in chosen], mine, numels, sharding, place)

    def _place(self, chosen: Sequence[int], values_NxS: Tensor) -> Callable[[int, PackedSlice], Tensor]:
        def place(owner: int, piece: PackedSlice) -> Tensor:
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
