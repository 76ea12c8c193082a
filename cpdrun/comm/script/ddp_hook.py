"""Low-precision gradients for scripts that use DistributedDataParallel.

    model = DistributedDataParallel(model)
    model.register_comm_hook(*cpdrun.comm.ddp_hook(model, "e4m3", aps=True))

Each rank of DDP's process group is one worker, in the order of the group. DDP passes its gradients in buckets during
the backward pass. The hook has a thread that exchanges one bucket after the other and completes the future that DDP
waits for. On a GPU, the thread of the backward pass queues the exchange on the current stream instead.

DDP rebuilds its buckets after the first step, so the hook identifies layers by their parameter, not by bucket. The
state of a scaling rule or of error feedback therefore stays with its layer, and each layer of a bucket has its own
shift. DDP does not call the hook in steps whose gradients it accumulates locally (no_sync).

Save the state of the hook in checkpoints together with the model: `state.state_dict()` and
`state.load_state_dict(...)`. It contains the state of scaling and error feedback, and the step number, which determines
stochastic rounding.
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
from cpdrun.comm.wire.communicator import checked_group, new_group_like

TensorFuture = torch.futures.Future[Tensor]
DENSE = "create the embedding with sparse=False"


class HookState:
    """The state of a hook between buckets and steps. Each model needs its own `HookState`."""

    def __init__(self, sync: AllReduceSync | CompressorSync, parameters: Sequence[nn.Parameter]) -> None:
        self.sync = sync
        self.step = 0
        self._index = {id(parameter): p for p, parameter in enumerate(parameters)}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ddp_hook")

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed script needs to continue bit for bit. Collective.

        The whole state is on the group's first rank. It contains only tensors, numbers, strings, lists and
        dictionaries, so `torch.load(weights_only=True)` can read it.
        """
        return {"step": self.step, "sync": self._thread.submit(self.sync.state_dict).result()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of the first rank on every rank, before the first backward pass."""
        self.step = state["step"]
        self._thread.submit(self.sync.load_state_dict, state["sync"]).result()

    def names_of(self, parameters: Sequence[Tensor]) -> list[str]:
        """Return the names of the given parameters of the model."""
        return [self.sync.names[self._index[id(parameter)]] for parameter in parameters]

    def average(self, bucket: dist.GradBucket) -> Callable[[], Tensor]:
        """Return the function that replaces the buffer of a bucket by its mean over the ranks.

        Raises:
            ValueError: The parameters belong to another model, or the gradients are sparse.
        """
        buffer, parameters, step = bucket.buffer(), bucket.parameters(), self.step
        if any(id(parameter) not in self._index for parameter in parameters):
            raise ValueError(
                "this ddp_hook belongs to another model. Call ddp_hook once for each model and register its result "
                "with the same model"
            )
        if buffer.layout != torch.strided:
            (name,) = self.names_of(parameters[:1])
            raise ValueError(
                f"the gradient of {name} is sparse, but ddp_hook supports only dense gradients. Please {DENSE}"
            )
        layers = [self._index[id(parameter)] for parameter in parameters]
        like = None if isinstance(self.sync, AllReduceSync) else bucket.gradients()

        def run() -> Tensor:
            values = buffer if buffer.dtype == torch.float32 else buffer.float()
            values.div_(self.sync.workers.world_size)
            gradients = values.split([parameter.numel() for parameter in parameters])
            if like is not None:  # Compressors need the shape of the parameter, in any memory format.
                gradients = list(map(_in_shape_of, gradients, like))
            stacks = [gradient[None] for gradient in gradients]
            self.sync.reduce_layers(layers, stacks, step=step, epoch=0, out=gradients)
            return values if values is buffer else buffer.copy_(values)

        return run

    def submit(self, work: Callable[[], Tensor], device: torch.device) -> TensorFuture:
        """Run `work` after all earlier work. If it raises an exception, DDP's backward pass raises the exception."""
        if device.type == "cuda":
            done: TensorFuture = torch.futures.Future(devices=[device])
            done.set_result(work())
            return done
        future: TensorFuture = torch.futures.Future()

        def complete() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)  # type: ignore[arg-type]  # torch annotates it as a result

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
    **options: Any,
) -> tuple[HookState, Callable[[HookState, dist.GradBucket], TensorFuture]]:
    """Return the arguments (state, hook) of `DistributedDataParallel.register_comm_hook`. Collective.

    `state.sync.wire_bytes()` returns the bytes that the latest step sent. `state.state_dict()` is for checkpoints.

    Args:
        model: The DDP module, or the module that it wraps. It may be compiled.
        fmt: A format, its name, or a `Sum`.
        compressor: Compress gradients instead of summing them in a format. Pass a `Compressor` or a name such as
            "top_k", "qsgd", "sign" or "power_sgd" (see conf/compressor). error_feedback is then True by default.
        aps: Whether to scale each layer with auto-precision scaling (APS).
        scaling: A scaling rule to use instead of APS.
        full_precision_layers: Glob patterns of the names of parameters that stay in fp32. Leave out the prefixes
            "module." of DDP and "_orig_mod." of torch.compile.
        seed: The seed of stochastic rounding.
        group: A group with the ranks of DDP's process group in the same order. None creates a new group, so that the
            hook's messages are separate from other messages. If `model` is not the DDP module, the new group contains
            all ranks.
        options: Settings of `Sum`, or of the compressor.

    Raises:
        ValueError: The options do not fit together, the group has other ranks than DDP's, or the model uses FSDP or has
            sparse gradients.
        TypeError: Neither a format nor a compressor is given.
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
                compressor, fmt, names=names, options=options, full_precision_layers=layers, **shared
            )
        return AllReduceSync(
            format=fmt, parameter_names=names, full_precision={"layers": layers}, **shared, **options
        )

    return make_ddp_hook(model, make, group)


def make_ddp_hook(
    model: nn.Module,
    make: Callable[[Sequence[str], int, dist.ProcessGroup], AllReduceSync | CompressorSync],
    group: dist.ProcessGroup | None = None,
) -> tuple[HookState, Callable[[HookState, dist.GradBucket], TensorFuture]]:
    """Return a DDP hook with a synchronization that the caller creates.

    Args:
        model: The DDP module, or the module that it wraps.
        make: A function that creates the synchronization from the parameter names, the number of workers, and the
            process group of the workers.
        group: The process group, see `ddp_hook`.
    """
    model = getattr(model, "_orig_mod", model)
    _check_kind(model)
    module = model.module if isinstance(model, DistributedDataParallel) else model
    wrapped_names, parameters = zip(*module.named_parameters(), strict=True)
    names = [unwrapped_name(name) for name in wrapped_names]
    group = _group_of(model, group)
    return HookState(make(names, dist.get_world_size(group), group), parameters), _exchange_bucket


def _in_shape_of(values_n: Tensor, gradient: Tensor) -> Tensor:
    """Return a view of a parameter's values in a bucket, with the shape and the strides of the gradient."""
    return values_n.as_strided(gradient.shape, gradient.stride(), values_n.storage_offset())


def unwrapped_name(name: str) -> str:
    """Return a parameter's name without the parts that torch.compile and activation checkpointing add."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def _check_kind(model: nn.Module) -> None:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for name, module in model.named_modules():
        if fsdp and isinstance(module, fsdp.FullyShardedDataParallel | fsdp.FSDPModule):
            one_wrapper = isinstance(module, fsdp.FullyShardedDataParallel)
            kind = "FullyShardedDataParallel" if one_wrapper else "fully_shard (FSDP2)"
            instead = "wrap the model in DistributedDataParallel" if one_wrapper else "use fsdp_comm"
            raise ValueError(
                f"ddp_hook does not support {kind}, because each rank then has only a part of each gradient. Please "
                f"{instead}"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ValueError(
                f"{name or 'the model'} has sparse gradients, but ddp_hook supports only dense gradients. Please "
                f"{DENSE}"
            )


def _group_of(model: nn.Module, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the given group. If it is None, return a new group.

    The new group has the ranks of DDP's group in the same order, or all ranks if the model is not a DDP model.
    """
    if not isinstance(model, DistributedDataParallel):
        return group or checked_group(dist.new_group())
    ranks = dist.get_process_group_ranks(model.process_group)
    if group is not None:
        if (others := dist.get_process_group_ranks(group)) != ranks:
            raise ValueError(
                f"group contains the ranks {others}, but DDP's process group contains the ranks {ranks}. Leave group "
                "out"
            )
        return group
    return new_group_like(model.process_group)


def _exchange_bucket(state: HookState, bucket: dist.GradBucket) -> TensorFuture:
    future = state.submit(state.average(bucket), bucket.buffer().device)
    if bucket.is_last():
        state.step += 1
    return future
