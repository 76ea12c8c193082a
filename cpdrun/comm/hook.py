"""Low-precision gradients in any script that uses DistributedDataParallel:

    model = DistributedDataParallel(model)
    model.register_comm_hook(*cpdrun.comm.ddp_hook(model, "e4m3", aps=True))

Each rank is one worker. DDP hands over its gradients in buckets while backward still runs; a thread of the
hook's own exchanges them, one bucket after the other, and completes the future that DDP waits for. Layers
are known by their parameter, not by bucket, for DDP rebuilds its buckets after the first step: what a
scaling rule or error feedback remembers stays with its layer, and each layer of a bucket has its own shift.
Steps whose gradients DDP accumulates locally (no_sync) never reach the hook.

On a GPU the exchange is queued on the current stream instead, by the thread of backward.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from custom_fp import Format
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cpdrun.comm.recipe import AUTO
from cpdrun.comm.scaling import APS, ScalingRule
from cpdrun.comm.sync import AllReduceSync

TensorFuture = torch.futures.Future[Tensor]


class HookState:
    """What the hook keeps between buckets and steps: one for each model."""

    def __init__(self, sync: AllReduceSync, parameters: Sequence[nn.Parameter]) -> None:
        self.sync = sync
        self.step = 0
        self._index = {id(parameter): p for p, parameter in enumerate(parameters)}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ddp_hook")

    def average(self, bucket: dist.GradBucket) -> Callable[[], Tensor]:
        """The work of one bucket: its buffer becomes the mean over the ranks."""
        buffer, parameters, step = bucket.buffer(), bucket.parameters(), self.step
        layers = [self._index[id(parameter)] for parameter in parameters]

        def run() -> Tensor:
            values = buffer if buffer.dtype == torch.float32 else buffer.float()
            values.div_(self.sync.world_size)
            gradients = values.split([parameter.numel() for parameter in parameters])
            stacks = [gradient.view(1, -1) for gradient in gradients]
            self.sync.reduce_layers(layers, stacks, step=step, epoch=0, out=gradients)
            return values if values is buffer else buffer.copy_(values)

        return run

    def submit(self, work: Callable[[], Tensor], device: torch.device) -> TensorFuture:
        """Runs the work after all earlier work; what it raises is raised by DDP's backward."""
        if device.type == "cuda":
            future = torch.futures.Future(devices=[device])
            future.set_result(work())
            return future
        future = torch.futures.Future()

        def complete() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._thread.submit(complete)
        return future


def ddp_hook(
    model: nn.Module,
    fmt: Format | str,
    *,
    aps: bool = False,
    scaling: ScalingRule | None = None,
    kahan: bool = False,
    order: str = "rank",
    group_size: int | str | None = AUTO,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    error_feedback: bool = False,
    full_precision_layers: Sequence[str] = (),
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
) -> tuple[HookState, Callable[[HookState, dist.GradBucket], TensorFuture]]:
    """(state, hook) for `DistributedDataParallel.register_comm_hook`. Collective; the options of
    `AllReduceSync`.

    model: the DDP module, or the module it wraps. scaling: a rule of one's own instead of aps=True.
    full_precision_layers: glob patterns of parameter names, without DDP's "module.". group: the ranks of
    DDP's process group; None makes a group of all ranks, where the hook's messages meet nobody else's.
    state.sync.wire_bytes() tells what the latest step sent.
    """
    module = model.module if isinstance(model, DistributedDataParallel) else model
    names, parameters = zip(*module.named_parameters(), strict=True)
    group = group or dist.new_group()
    sync = AllReduceSync(
        format=fmt,
        world_size=dist.get_world_size(group),
        parameter_names=names,
        order=order,
        group_size=group_size,
        kahan=kahan,
        rounding=rounding,
        overflow=overflow,
        error_feedback=error_feedback,
        scaling=scaling or (APS() if aps else None),
        seed=seed,
        full_precision={"layers": tuple(full_precision_layers)},
        group=group,
    )
    return HookState(sync, parameters), _exchange_bucket


def _exchange_bucket(state: HookState, bucket: dist.GradBucket) -> TensorFuture:
    future = state.submit(state.average(bucket), bucket.buffer().device)
    if bucket.is_last():
        state.step += 1
    return future
