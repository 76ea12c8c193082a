"""DistributedDataParallel: the run's sum in the place of its all-reduce, by a hook registered when it is constructed.

A process is one worker then, in the order of DDP's process group. What works under it as without, gradients having the
bits of `cpdrun.comm.emulate_all_reduce`: no_sync (what piles up locally is exchanged once), find_unused_parameters,
static_graph, gradient_as_bucket_view, activation checkpointing, torch.compile before or after, clipping and GradScaler
(both come after the exchange; scaled gradients are exchanged, which a power of two changes nothing of with APS, while
without it the scale decides what underflows). A comm hook of the script's own is refused: DDP takes one.

Where a process plays several workers (`played.py`), DDP exchanges nothing: its hook hands each bucket back as it is.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cpdrun.attach.held.exchange import Asked
from cpdrun.attach.held.patches import Patches
from cpdrun.attach.held.products import Products
from cpdrun.attach.held.script import DDP, Script
from cpdrun.comm.script.ddp_hook import make_ddp_hook
from cpdrun.errors import UserError

RECORDED_STEPS = 3  # DDP changes its buckets after the first step; later steps exchange nothing new


class HoldsDdp:
    """`models`: those constructed so far."""

    def __init__(self, asked: Asked, script: Script, products: Products) -> None:
        self.asked, self.script, self.products = asked, script, products
        self.models: list[DistributedDataParallel] = []
        self.states: list[Any] = []

    def install(self, patches: Patches) -> None:
        patches.around(DistributedDataParallel, "__init__", self._construct)
        if not self.asked.plain:
            patches.around(DistributedDataParallel, "register_comm_hook", self._register)

    def _construct(
        self, original: Callable, ddp: DistributedDataParallel, module: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        self.products.place(module)
        original(ddp, module, *args, **kwargs)
        self.take(ddp)

    def take(self, ddp: DistributedDataParallel) -> None:
        """Raises UserError for a process group that is not all of the script's processes."""
        if ddp in self.models:
            return
        self.models.append(ddp)
        self.script.wrappers[DDP] = self.script.wrappers.get(DDP, 0) + 1
        if self.asked.plain:
            return
        ranks = ddp.process_group.size()
        if ranks != self.script.ranks:
            raise UserError(
                f"DistributedDataParallel over {ranks} of {self.script.ranks} processes: the run's "
                f"world_size={self.script.world_size} workers are all of them; take the default process group"
            )
        if self.script.share > 1:
            _register(ddp, None, _as_it_is)
            return
        state, hook = make_ddp_hook(ddp, self.asked.sum_of)
        _register(ddp, state, self._counted(hook))
        self.script.go_on(f"{DDP} {len(self.states)}", state)
        self.states.append(state)
        for p in ddp.module.parameters():
            self.script.claimed[p] = DDP

    def _counted(self, hook: Callable) -> Callable:
        """Return `hook` with a record of the parameters that it exchanges in the first steps of this process.

        The steps are counted here: `state.step` continues from a checkpoint when the script resumes.
        """
        steps = 0

        @functools.wraps(hook)
        def counted(state: Any, bucket: dist.GradBucket) -> Any:
            nonlocal steps
            if steps < RECORDED_STEPS:
                names = state.names_of(bucket.parameters())
                self.script.did_exchange(DDP, names, [p.numel() for p in bucket.parameters()])
                steps += bucket.is_last()
            return hook(state, bucket)

        return counted

    def _register(self, original: Callable, ddp: DistributedDataParallel, state: Any, hook: Callable) -> None:
        raise UserError(
            "the script registers a communication hook of its own, in whose place the run's exchange stands: remove "
            "register_comm_hook, or run with format=fp32"
        )


def _register(ddp: DistributedDataParallel, state: Any, hook: Callable) -> None:
    """Register a communication hook that is not pickled when the script saves the wrapped model.

    DDP's list of hooks is read by its Python reducer (compiled autograd) only; the C++ reducer has the hook itself.
    """
    DistributedDataParallel.register_comm_hook.__wrapped__(ddp, state, hook)
    ddp._comm_hooks.clear()


def _as_it_is(_state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
