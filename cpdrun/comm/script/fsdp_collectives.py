"""FSDP2's reduce-scatter of gradients and all-gather of parameters, in a number format.

Reduce-scatter: each rank sends shard r of its packed gradients to rank r, which adds them. FSDP passes the gradients of
one `fully_shard` call together. Each parameter is divided along its first dimension into one part per rank, padded with
zeros to equal size. The buffer contains part 0 of all parameters, then part 1 of all parameters, and so on. Each
parameter is a separate layer with its own shift. A rank sends (N-1)/N n k/8 bytes. The part of the sum that a rank
receives has the same bits as in the whole sum of `AllReduceSync`.

All-gather: each rank packs its part of the float32 weights, and all ranks decode the same bytes. The parameters of one
`fully_shard` call are gathered together, each as a separate layer. The param_dtype of the mixed-precision policy
determines the dtype in which decoded weights are stored, not what is sent.

With differences, every rank keeps the latest decoded weights of the whole model in float32. This takes the memory of an
unsharded model, but the second gather, for the backward pass, sends no bytes. The first gather of the training is in
fp32. Weights are gathered again when an optimizer has changed the part of any rank.

With reshard_after_forward=<ranks>, FSDP itself gathers the parts for the backward pass.

Shapes: N ranks, P parameters, S the sum of the sizes of their padded parts.
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
from cpdrun.comm.sync.sharded_sync import Traffic, WeightGather, Weights
from cpdrun.comm.wire.communicator import Communicator
from cpdrun.comm.wire.message_layout import PackedSlice, Sharding, padded_numel, shard_by_rows


class ReduceScatter(_fsdp_api.ReduceScatter):
    """The reduce-scatter of the parameters of one `fully_shard` call. A subclass defines the sum."""

    def __init__(self, param_group: Any) -> None:
        self.param_group = param_group
        self.step = 0
        self._with_gradients: list[Any] | None = None  # the parameters with gradients, if torch reports them
        self._input_is_next = False
        prepare = getattr(param_group, "_prepare_reduce_scatter_inputs", None)
        if prepare is not None:
            param_group._prepare_reduce_scatter_inputs = self._recording(prepare)

    @abstractmethod
    def sum_of(self, params: Sequence[Any], ranks: int) -> tuple[AllReduceSync, Sequence[int]]:
        """Return the synchronization that sums these parameters' gradients, and their layer indices in it."""

    def workers(self, ranks: int) -> int:
        """Return the number of workers over which gradients are averaged."""
        return ranks

    def done(self, params: Sequence[Any]) -> None:
        """Handle the end of a reduce-scatter. This method of the base class does nothing."""

    def trainable(self) -> list[Any]:
        """Return the parameters that require gradients."""
        return [p for p in self.param_group.fsdp_params if p.sharded_param.requires_grad]

    def _recording(self, prepare: Callable) -> Callable:
        def recording(params: Sequence[Any], *args: Any) -> Any:
            self._with_gradients, self._input_is_next = list(params), True
            return prepare(params, *args)

        return recording

    def reduced(self, numel: int, ranks: int) -> list[Any]:
        """Return the parameters whose gradients are in a reduced buffer.

        Args:
            numel: The number of values in the buffer, including padding.
            ranks: The number of ranks.

        Raises:
            ValueError: The padded parameters do not have `numel` values in total.
        """
        params = self.trainable() if self._with_gradients is None else self._with_gradients
        if sum(padded_numel(p._orig_size, ranks) for p in params) * ranks != numel:
            raise ValueError(without_gradient(params))
        return params

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
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
        """Write this rank's part (S,) of the summed gradients to `output_tensor`.

        `input_tensor` contains the gradients (N S,) and is overwritten.
        """
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
    """Return an input buffer. All reduce-scatters on the CPU share its memory.

    This is safe because the CPU has read the input when a reduce-scatter ends. It is faster because allocating new
    memory takes longer than filling it.
    """
    if dtype not in _scratches or _scratches[dtype].numel() < numel:
        _scratches[dtype] = torch.empty(numel, dtype=dtype)
    return _scratches[dtype][:numel]


@lru_cache(maxsize=512)
def rows_of(shapes: tuple[tuple[int, ...], ...], ranks: int) -> Sharding:
    """Return the result of `shard_by_rows`, which is cached for each list of parameter shapes."""
    return shard_by_rows(shapes, ranks)


def without_gradient(params: Sequence[Any]) -> str:
    """Return the error message for parameters without gradients."""
    return (
        f"fully_shard: some parameter in the same call as {name_of(params[0])} has no gradient in this step, and FSDP "
        "does not report which parameters have gradients. Use all parameters in each step, freeze the unused ones, or "
        "call set_reduce_scatter_unused_params(True)"
    )


def name_of(param: Any) -> str:
    """Return the name of one of FSDP's parameters. The name is known after the first forward pass."""
    return param._param_fqn or param._module_info.param_name


class AllGather(_fsdp_api.AllGather):
    """The all-gather of the parameters of one `fully_shard` call.

    Args:
        param_group: FSDP's group of parameters.
        names: The names of its parameters.
        in_format: Gathers weights in the format.
        in_full: Gathers weights in fp32.
        covers: For each parameter, whether it is gathered in fp32.
    """

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
        self.since = self.latest = (
            Traffic()
        )  # the bytes since the latest gradients, and the bytes before them
        params = param_group.fsdp_params
        self.shapes = [tuple(p._orig_size) for p in params]
        widths = [padded_numel(shape, self.ranks) for shape in self.shapes]
        self.begins = [sum(widths[:i]) for i in range(len(widths))]
        self.widths = widths
        self.decoded: Tensor | None = None  # (N, S) the latest decoded weights, with differences
        self._seen: Tensor | None = None  # (S,) this rank's part of the weights at the latest gather

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    @torch.no_grad()
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        """Gather the parts of all ranks. Collective."""
        again = (
            group.size() != self.ranks
        )  # the gather for the backward pass, from parts that are already gathered
        if self.as_it_is or again or output_tensor.dtype == torch.uint8:
            dist.all_gather_into_tensor(output_tensor, input_tensor, group=group)
            sent = (group.size() - 1) * input_tensor.nbytes
            self.since += Traffic(sent, sent)
        elif self.in_format.differences:
            self._update_decoded(output_tensor.device)
            assert self.decoded is not None
            output_tensor.copy_(self.decoded.view(-1))
        else:
            plain = output_tensor.dtype == torch.float32
            values = output_tensor if plain else torch.empty_like(output_tensor, dtype=torch.float32)
            self._run(values.view(self.ranks, -1), self.in_format)
            if not plain:
                output_tensor.copy_(values)

    def counted(self) -> None:
        """Count the traffic until now as traffic of the step whose gradients have arrived."""
        self.latest, self.since = self.since, Traffic()

    # ---- differences

    def _update_decoded(self, device: torch.device) -> None:
        """Update the decoded weights. Collective, except in a backward pass."""
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
        """Return a copy (S,) of this rank's parts."""
        return torch.cat([p._sharded_param_data for p in self._params])

    def _is_current(self) -> bool:
        """Return whether this rank's parts are unchanged, bit for bit, since the latest gather."""
        if self._seen is None:
            return False
        return torch.equal(self._seen.view(torch.uint8), self._mine().view(torch.uint8))

    def _any_changed(self, device: torch.device) -> bool:
        """Return whether the parts of any rank have changed since the latest gather. Collective."""
        mine = torch.tensor(int(not self._is_current()), dtype=torch.int32, device=device)
        Communicator(self.in_full.workers.group).maximum_(mine).wait()
        self.since += Traffic(4, 4)
        return bool(mine)

    # ---- one gather

    @property
    def _params(self) -> list[Any]:
        return self.param_group.fsdp_params

    def _run(self, values_NxS: Tensor, kind: WeightGather, every: bool = False) -> None:
        """Gather the parts of all ranks and write them to `values_NxS`.

        If `every` is true, `kind` gathers all parameters, including those that are usually gathered in fp32.
        """
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
        """Return the latest decoded weights, with whole parameters as values and their names as keys."""
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
