"""Low-precision gradients in any script that uses DistributedDataParallel:

    model = DistributedDataParallel(model)
    model.register_comm_hook(*cpdrun.comm.ddp_hook(model, "e4m3", aps=True))

Each rank of DDP's process group is one worker, in the order of the group. DDP hands over its gradients in buckets
while backward still runs; a thread of the hook's own exchanges them, one bucket after the other, and completes the
future that DDP waits for. Layers are known by their parameter, not by bucket, for DDP rebuilds its buckets after the
first step: what a scaling rule or error feedback remembers stays with its layer, and each layer of a bucket has its own
shift. Steps whose gradients DDP accumulates locally (no_sync) never reach the hook.

On a GPU the exchange is queued on the current stream instead, by the thread of backward.

What scaling and error feedback remember, and the number of the step, which keys stochastic rounding, go into a
checkpoint with the model: `state.state_dict()` and `state.load_state_dict(...)`.
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.script.compressor_names import (
    CompressorSync,
    check_format_or_compressor,
    make_compressed_sync,
)
from cpdrun.comm.sums.scaling import APS, ScalingRule
from cpdrun.comm.sums.sum import Sum, accepts_sum_options
from cpdrun.comm.sync.all_reduce import AllReduceSync

TensorFuture = torch.futures.Future[Tensor]
DENSE = "make the embedding with sparse=False"


class HookState:
    """What the hook keeps between buckets and steps: one for each model."""

    def __init__(self, sync: AllReduceSync | CompressorSync, parameters: Sequence[nn.Parameter]) -> None:
        self.sync = sync
        self.step = 0
        self._index = {id(parameter): p for p, parameter in enumerate(parameters)}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ddp_hook")

    def state_dict(self) -> dict[str, Any]:
        """What a resumed script needs to continue bit for bit; whole on the group's first rank. Collective.

        Tensors, numbers, strings, lists and dicts only: `torch.load(weights_only=True)` reads them.
        """
        return {"step": self.step, "sync": self._thread.submit(self.sync.state_dict).result()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave on the first rank, on every rank, before the first backward."""
        self.step = state["step"]
        self._thread.submit(self.sync.load_state_dict, state["sync"]).result()

    def names_of(self, parameters: Sequence[Tensor]) -> list[str]:
        """Of some of the model's parameters."""
        return [self.sync.names[self._index[id(parameter)]] for parameter in parameters]

    def average(self, bucket: dist.GradBucket) -> Callable[[], Tensor]:
        """The work of one bucket: its buffer becomes the mean over the ranks.

        Raises ValueError for parameters of another model, and for sparse gradients.
        """
        buffer, parameters, step = bucket.buffer(), bucket.parameters(), self.step
        if any(id(parameter) not in self._index for parameter in parameters):
            raise ValueError(
                "this ddp_hook was made for another model: make one for each, and register it on its own"
            )
        if buffer.layout != torch.strided:
            (name,) = self.names_of(parameters[:1])
            raise ValueError(f"the gradient of {name} is sparse, ddp_hook sums dense ones: {DENSE}")
        layers = [self._index[id(parameter)] for parameter in parameters]
        like = None if isinstance(self.sync, AllReduceSync) else bucket.gradients()

        def run() -> Tensor:
            values = buffer if buffer.dtype == torch.float32 else buffer.float()
            values.div_(self.sync.workers.world_size)
            gradients = values.split([parameter.numel() for parameter in parameters])
            if like is not None:  # places and matrices are those of the parameter, however it lies in memory
                gradients = list(map(_in_shape_of, gradients, like))
            stacks = [gradient[None] for gradient in gradients]
            self.sync.reduce_layers(layers, stacks, step=step, epoch=0, out=gradients)
            return values if values is buffer else buffer.copy_(values)

        return run

    def submit(self, work: Callable[[], Tensor], device: torch.device) -> TensorFuture:
        """Runs the work after all earlier work; what it raises is raised by DDP's backward."""
        if device.type == "cuda":
            done: TensorFuture = torch.futures.Future(devices=[device])
            done.set_result(work())
            return done
        future: TensorFuture = torch.futures.Future()

        def complete() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)  # type: ignore[arg-type]  # torch types it as a result

        self._thread.submit(complete)
        return future


@accepts_sum_options
def ddp_hook(
    model: nn.Module,
    fmt: Sum | NumberFormat | str | None = None,
    *,
    compressor: Compressor | str | None = None,
    aps: bool = False,
    scaling: ScalingRule | None = None,
    full_precision_layers: Sequence[str] = (),
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
    **knobs: Any,
) -> tuple[HookState, Callable[[HookState, dist.GradBucket], TensorFuture]]:
    """(state, hook) for `DistributedDataParallel.register_comm_hook`. Collective; knobs as `Sum` has them.

    model: the DDP module, or the module it wraps, compiled or not. scaling: a rule of one's own instead of aps=True.
    full_precision_layers: glob patterns of parameter names, without DDP's "module." and torch.compile's "_orig_mod.".
    group: of the ranks of DDP's process group, in its order; None makes one, where the hook's messages meet nobody
    else's (of all ranks where `model` is not the DDP module). state.sync.wire_bytes() tells what the latest step sent;
    state.state_dict() is for checkpoints.

    compressor: gradients are compressed instead of summed in a format (`compressing.py` says which there are and what
    they make of fmt and further keywords): "top_k", "qsgd", "sign", "power_sgd" ... or a Compressor. error_feedback is
    True with it unless it is given, as in conf/sync: what compression takes from a gradient is added to the next.

    Raises ValueError for options that do not fit together, a group of other ranks than DDP's, FSDP and layers with
    sparse gradients, TypeError for neither fmt nor compressor.
    """
    check_format_or_compressor(fmt, compressor)
    rule = scaling or (APS() if aps else None)
    layers = tuple(full_precision_layers)

    def make(
        names: Sequence[str], world_size: int, group: dist.ProcessGroup
    ) -> AllReduceSync | CompressorSync:
        shared: dict[str, Any] = {"world_size": world_size, "scaling": rule, "seed": seed, "group": group}
        if compressor is not None:
            return make_compressed_sync(
                compressor, fmt, names=names, knobs=knobs, full_precision_layers=layers, **shared
            )
        return AllReduceSync(
            format=fmt, parameter_names=names, full_precision={"layers": layers}, **shared, **knobs
        )

    return make_ddp_hook(model, make, group)


def make_ddp_hook(
    model: nn.Module,
    make: Callable[[Sequence[str], int, dist.ProcessGroup], AllReduceSync | CompressorSync],
    group: dist.ProcessGroup | None = None,
) -> tuple[HookState, Callable[[HookState, dist.GradBucket], TensorFuture]]:
    """`ddp_hook` around a sum of the caller's making, of (parameter names, number of workers, their group)."""
    model = getattr(model, "_orig_mod", model)
    _check_kind(model)
    module = model.module if isinstance(model, DistributedDataParallel) else model
    given, parameters = zip(*module.named_parameters(), strict=True)
    names = [unwrapped_name(name) for name in given]
    group = _group_of(model, group)
    return HookState(make(names, dist.get_world_size(group), group), parameters), _exchange_bucket


def _in_shape_of(values_n: Tensor, gradient: Tensor) -> Tensor:
    """A view of what a bucket holds of a parameter, as it is there."""
    return values_n.as_strided(gradient.shape, gradient.stride(), values_n.storage_offset())


def unwrapped_name(name: str) -> str:
    """A parameter's, without what torch.compile and activation checkpointing put in it."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def _check_kind(model: nn.Module) -> None:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for name, module in model.named_modules():
        if fsdp and isinstance(module, fsdp.FullyShardedDataParallel | fsdp.FSDPModule):
            one_wrapper = isinstance(module, fsdp.FullyShardedDataParallel)
            kind = "FullyShardedDataParallel" if one_wrapper else "fully_shard (FSDP2)"
            instead = "wrap the model in DistributedDataParallel" if one_wrapper else "take fsdp_comm"
            raise ValueError(
                f"ddp_hook cannot serve {kind}, which leaves a rank a part of each gradient: {instead}"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ValueError(f"{name or 'the model'} has sparse gradients, ddp_hook sums dense ones: {DENSE}")


def _group_of(model: nn.Module, given: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The group to exchange in: the given one, or a new one of the same ranks in the same order as DDP's."""
    if not isinstance(model, DistributedDataParallel):
        return given or _joined(dist.new_group())
    ranks = dist.get_process_group_ranks(model.process_group)
    if given is not None:
        if (others := dist.get_process_group_ranks(given)) != ranks:
            raise ValueError(f"group holds ranks {others}, DDP's process group {ranks}: leave group out")
        return given
    backend = None if model.process_group is dist.group.WORLD else dist.get_backend(model.process_group)
    # where torch has such groups, it takes this
    unsorted: dict[str, Any] = {} if ranks == sorted(ranks) else {"sort_ranks": False}
    return _joined(dist.new_group(ranks, backend=backend, use_local_synchronization=True, **unsorted))


def _joined(group: dist.ProcessGroup | int) -> dist.ProcessGroup:
    """torch gives a number to a rank that is not of the group."""
    assert not isinstance(group, int)
    return group


def _exchange_bucket(state: HookState, bucket: dist.GradBucket) -> TensorFuture:
    future = state.submit(state.average(bucket), bucket.buffer().device)
    if bucket.is_last():
        state.step += 1
    return future
