"""Local training in any script that torchrun starts (DiLoCo, local SGD: `local/outer.py`), without DDP:

    steps = cpdrun.comm.LocalSteps(model, "e4m3", aps=True, inner_steps=16)
    for batch in mine:
        ...
        optimizer.step()
        steps.after_step()
    steps.finish()

Each rank of the group is one worker, with its own optimizer and data. After every `inner_steps` steps what the ranks
moved is exchanged, an outer optimizer steps by it, and all go on from the same weights. The same bits as the built-in
loop's `sync=local`, and on every rank.
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
from cpdrun.comm.script.compressor_names import check_format_or_compressor, make_compressed_sync
from cpdrun.comm.script.ddp_hook import unwrapped_name
from cpdrun.comm.sums.scaling import APS, ScalingRule
from cpdrun.comm.sums.sum import Sum, accepts_sum_options
from cpdrun.comm.sync.local import OuterStep, make_all_reduce_sync


class LocalSteps:
    """Outer steps of `model`'s parameters that require gradients. Collective: every rank of the group makes one.

    fmt_or_compressor: pseudo-gradients are summed in a format or by a `Sum`, with knobs as `Sum` has them, or travel as
    a compressor's messages; compressor="top_k", "qsgd", "sign" ... names one, `compressing.py` says what it makes of a
    format and further keywords. error_feedback is True unless it or a `Sum` is given, as in conf/sync: what rounding or
    compression takes from a worker's movement is added to its next one. scaling: a rule of one's own instead of
    aps=True. full_precision_layers: glob patterns of parameter names. group: of the ranks that train; None: all of
    them. The defaults of the outer optimizer are DiLoCo's; outer_lr=1 and outer_momentum=0 average the weights.

    All ranks begin with the weights and buffers of the group's first one; buffers (BatchNorm) are each rank's own from
    there on. Agreed weights are kept in float32, parameters may have fewer bits. Raises ValueError for settings that
    are out of range or do not fit together, and for models that DDP or FSDP already keeps together.
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
        **knobs: Any,
    ) -> None:
        parameters, fmt = _trained(model), fmt_or_compressor
        if isinstance(fmt, Compressor) and compressor is None:
            fmt, compressor = None, fmt
        check_format_or_compressor(fmt, compressor)
        self.world_size = dist.get_world_size(group) if dist.is_initialized() else 1
        shared = {"world_size": self.world_size, "seed": seed, "group": group}
        shared["scaling"] = scaling or (APS() if aps else None)
        names, layers = list(parameters), tuple(full_precision_layers)
        if compressor is not None:
            exchange = make_compressed_sync(
                compressor, fmt, names=names, knobs=knobs, full_precision_layers=layers, **shared
            )
        else:
            knobs = knobs if isinstance(fmt, Sum) else {"error_feedback": True, **knobs}
            hybrid = {"layers": layers}
            exchange = make_all_reduce_sync(
                format=fmt, parameter_names=names, full_precision=hybrid, **shared, **knobs
            )
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
        """After every step of the rank's optimizer; whether an outer step followed. Collective where it does."""
        self.step += 1
        return self._outer_step(last=False)

    def finish(self) -> None:
        """After the last step: an outer step where there were steps since the one before. Collective."""
        if self.step % self.outer.inner_steps:
            self._outer_step(last=True)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Inside, the model has the agreed weights, those of the latest outer step: to be evaluated within a phase."""
        own = [p.data for p in self.parameters]
        for p, weights in zip(self.parameters, self.outer.agreed, strict=True):
            p.data = weights.detach().to(p.dtype, copy=True)
        try:
            yield
        finally:
            for p, weights in zip(self.parameters, own, strict=True):
                p.data = weights

    def wire_bytes(self) -> dict[str, int]:
        """Of the latest step, 0 where no outer step followed; as `GradientSync.wire_bytes`."""
        return self.outer.wire_bytes()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed script needs to continue bit for bit, every rank's weights in it; whole on the group's first
        rank. Buffers and the optimizer, of each rank its own, are the script's to keep. Collective.

        Tensors, numbers, strings, lists and dicts only: `torch.load(weights_only=True)` reads them.
        """
        workers = self.outer.exchange.workers
        mine = {worker: [p.detach().clone() for p in self.parameters] for worker in workers.mine}
        return {"step": self.step, "weights": workers.gather(mine), "outer": self.outer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave on the first rank, on every rank of as many; sets the model's weights, too."""
        if len(state["weights"]) != self.world_size:
            raise ValueError(
                f"the state is of {len(state['weights'])} ranks, these are {self.world_size}: each has its own weights"
            )
        self.step = state["step"]
        (worker,) = self.outer.exchange.workers.mine
        for p, kept in zip(self.parameters, state["weights"][worker], strict=True):
            p.copy_(kept)
        self.outer.load_state_dict(state["outer"])

    def _outer_step(self, *, last: bool) -> bool:
        x_Px1: list[Tensor] = [p.detach().unsqueeze(0) for p in self.parameters]
        return self.outer.after_step(x_Px1, step=self.step - 1, epoch=0, last=last) is not None


def _take_from(first: int, tensor: Tensor, group: dist.ProcessGroup | None) -> None:
    """Every rank's tensor becomes that of the rank `first`: as bytes, for backends refuse some dtypes and layouts."""
    if tensor.numel():
        same = tensor.contiguous()
        dist.broadcast(same.view(-1).view(torch.uint8), src=first, group=group)
        tensor.copy_(same)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """By their names, without what torch.compile and activation checkpointing put in them. Raises ValueError."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            raise ValueError(
                "LocalSteps takes the place of DistributedDataParallel, which would average every gradient: pass the "
                "model without it"
            )
    found = {unwrapped_name(name): p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError(f"{type(model).__name__} has no parameter that requires a gradient")
    for name, p in found.items():
        if hasattr(p, "placements") or not p.is_floating_point():
            kind = "sharded" if hasattr(p, "placements") else f"of dtype {p.dtype}"
            raise ValueError(
                f"{name} is {kind}: LocalSteps is for ranks that each hold a whole model of floats"
            )
    return found
