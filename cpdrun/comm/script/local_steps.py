"""Local training (DiLoCo, local SGD) in any script that torchrun starts, without DDP.

    steps = cpdrun.comm.LocalSteps(model, "e4m3", aps=True, inner_steps=16)
    for batch in batches:
        ...
        optimizer.step()
        steps.after_step()
    steps.finish()

Each rank of the group is one worker with its own optimizer and data. After every `inner_steps` steps, the ranks
exchange the changes of their weights, an outer optimizer applies their mean, and all ranks continue with the same
weights (see `sync/local.py`). The bits equal those of the built-in loop with `sync=local`, on every rank.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from cpdrun.comm.script.ddp_hook import unwrapped_name
from cpdrun.comm.sums.scaling import APS, ScalingRule
from cpdrun.comm.sums.sum import Sum, accepts_sum_options
from cpdrun.comm.sync.all_reduce import AllReduceSync
from cpdrun.comm.sync.local import OuterStep, make_all_reduce_sync


class LocalSteps:
    """Performs outer steps on the model's trainable parameters. Every rank of the group must create a `LocalSteps`.

    When it is created, all ranks receive the weights and buffers of the group's first rank. After that, each rank has
    its own buffers (BatchNorm). The agreed weights, from which all ranks continue after an outer step, are stored in
    float32, even if the dtype of the parameters has fewer bits.

    Args:
        model: The model, not wrapped in DDP or FSDP.
        fmt_or_compressor: A format, its name, or a `Sum`, in which the pseudo-gradients are summed; or a `Compressor`,
            whose messages contain the pseudo-gradients.
        compressor: A compressor, or its name, such as "top_k", "qsgd" or "sign" (see conf/compressor).
        inner_steps: The number of steps between two outer steps.
        outer_lr: The learning rate of the outer optimizer. The defaults are those of DiLoCo. outer_lr=1 and
            outer_momentum=0 average the weights.
        outer_momentum: The momentum of the outer optimizer.
        nesterov: Whether to use Nesterov momentum.
        aps: Whether to scale each layer with auto-precision scaling (APS).
        scaling: A scaling rule to use instead of APS.
        full_precision_layers: Glob patterns of the names of parameters whose pseudo-gradients stay in fp32.
        seed: The seed of stochastic rounding.
        group: The group of the ranks that train. None means all ranks.
        options: Settings of `Sum`, or of the compressor. `error_feedback` is True by default, except with a `Sum`: the
            rounding or compression error of a worker's pseudo-gradient is added to its next pseudo-gradient.

    Raises:
        ValueError: Settings are out of range or do not fit together, or DDP or FSDP already synchronizes the model.
    """

    @accepts_sum_options
    def __init__(
        self,
        model: nn.Module,
        fmt_or_compressor: Sum | NumberFormat | str | Compressor | None = None,
        *,
        compressor: Compressor | str | None = None,
        inner_steps: int,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        nesterov: bool = True,
        aps: bool = False,
        scaling: ScalingRule | None = None,
        full_precision_layers: Sequence[str] = (),
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        parameters = _trained(model)
        fmt: Any = fmt_or_compressor
        if isinstance(fmt, Compressor) and compressor is None:
            fmt, compressor = None, fmt
        check_format_or_compressor(fmt, compressor)
        self.world_size = dist.get_world_size(group) if dist.is_initialized() else 1
        rule = scaling or (APS() if aps else None)
        shared: dict[str, Any] = {
            "world_size": self.world_size,
            "scaling": rule,
            "seed": seed,
            "group": group,
        }
        names, layers = list(parameters), tuple(full_precision_layers)
        if compressor is not None:
            exchange: AllReduceSync | CompressorSync = make_compressed_sync(
                compressor, fmt, names=names, options=options, full_precision_layers=layers, **shared
            )
        else:
            options = options if isinstance(fmt, Sum) else {"error_feedback": True, **options}
            hybrid = {"layers": layers}
            exchange = make_all_reduce_sync(
                format=fmt, parameter_names=names, full_precision=hybrid, **shared, **options
            )
        self.workers = exchange.workers
        self.outer = OuterStep(
            exchange,
            world_size=self.world_size,
            inner_steps=inner_steps,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
            nesterov=nesterov,
        )
        self.model, self.group, self.step = model, group, 0
        self.parameters = list(parameters.values())
        if self.world_size > 1:
            first = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
            for tensor in (*model.parameters(), *model.buffers()):
                _take_from(first, tensor.data, group)
        self.outer.begin(self.parameters)

    def after_step(self) -> bool:
        """Perform an outer step if it is due. Call this after every step of the rank's optimizer.

        Collective if an outer step is due.

        Returns:
            Whether there was an outer step.
        """
        self.step += 1
        return self._outer_step(last=False)

    def finish(self) -> None:
        """Perform an outer step at the end of training, unless the last step was followed by one. Collective."""
        if self.step % self.outer.inner_steps:
            self._outer_step(last=True)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Replace the model's weights by the agreed weights inside a `with` block, for evaluation.

        The agreed weights are the result of the latest outer step.
        """
        own = [p.data for p in self.parameters]
        for p, agreed in zip(self.parameters, self.outer.agreed, strict=True):
            p.data = agreed.detach().to(p.dtype, copy=True)
        try:
            yield
        finally:
            for p, weights in zip(self.parameters, own, strict=True):
                p.data = weights

    def wire_bytes(self) -> dict[str, int]:
        """Return the payload bytes of the latest step, as `GradientSync.wire_bytes` does.

        The number is 0 if no outer step followed the latest step.
        """
        return self.outer.wire_bytes()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed script needs to continue bit for bit. Collective.

        The whole state, including every rank's weights, is on the group's first rank. Buffers and the optimizer are
        different on each rank and are not included. The state contains only tensors, numbers, strings, lists and
        dictionaries, so `torch.load(weights_only=True)` can read it.
        """
        mine = {worker: [p.detach().clone() for p in self.parameters] for worker in self.workers.local}
        return {"step": self.step, "weights": self.workers.gather(mine), "outer": self.outer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of the first rank on every rank, including the model's weights.

        The number of ranks must be the same.
        """
        if len(state["weights"]) != self.world_size:
            raise ValueError(
                f"the state was saved by {len(state['weights'])} ranks, but there are {self.world_size} ranks now. Use "
                "the same number, because each rank has its own weights"
            )
        self.step = state["step"]
        (worker,) = self.workers.local
        for p, kept in zip(self.parameters, state["weights"][worker], strict=True):
            p.copy_(kept)
        self.outer.load_state_dict(state["outer"])

    def _outer_step(self, *, last: bool) -> bool:
        x_Px1: list[Tensor] = [p.detach().unsqueeze(0) for p in self.parameters]
        return self.outer.after_step(x_Px1, step=self.step - 1, epoch=0, last=last) is not None


def _take_from(first: int, tensor: Tensor, group: dist.ProcessGroup | None) -> None:
    """Replace every rank's tensor by that of the rank `first`.

    The tensor is sent as bytes, because some backends do not accept all dtypes and layouts.
    """
    if tensor.numel():
        same = tensor.contiguous()
        dist.broadcast(same.view(-1).view(torch.uint8), src=first, group=group)
        tensor.copy_(same)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name.

    What torch.compile and activation checkpointing add to the names is removed.

    Raises:
        ValueError: The model has no trainable parameters, or LocalSteps does not support it.
    """
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            raise ValueError(
                "the model is wrapped in DistributedDataParallel, which would average the gradients of every step. "
                "Pass the model itself, because LocalSteps replaces DistributedDataParallel"
            )
    found = {unwrapped_name(name): p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError(f"{type(model).__name__} has no parameter that requires a gradient")
    for name, p in found.items():
        if hasattr(p, "placements") or not p.is_floating_point():
            kind = "sharded" if hasattr(p, "placements") else f"of dtype {p.dtype}"
            raise ValueError(
                f"{name} is {kind}, but LocalSteps needs a whole model with floating-point parameters on each rank"
            )
    return found
