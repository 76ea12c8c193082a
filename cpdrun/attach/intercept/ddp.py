"""Summation of gradients in scripts that use DistributedDataParallel, with a communication hook on each DDP model.

A process is one worker, in the order of DDP's process group. The gradients have the same bits as with
`cpdrun.comm.emulate_all_reduce`. The following features of DDP and torch work as usual: no_sync (accumulated gradients
are exchanged once), find_unused_parameters, static_graph, gradient_as_bucket_view, activation checkpointing,
torch.compile before or after DDP, clipping, and GradScaler. Clipping and unscaling come after the exchange, so the
exchanged gradients contain GradScaler's scale. With APS, this power of two has no effect. Without APS, the scale
determines which values underflow.

A script must not register its own communication hook, because a DDP model can have only one.

If a process emulates several workers (emulated_workers.py), the hook returns each bucket unchanged.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cpdrun.attach.intercept.exchange import ExchangeSettings
from cpdrun.attach.intercept.model_rounding import ModelRounding
from cpdrun.attach.intercept.patches import Patches
from cpdrun.attach.intercept.script import DDP, Script
from cpdrun.comm.script.ddp_hook import make_ddp_hook
from cpdrun.errors import UserError

# The number of steps in which exchanged parameters are recorded. Later steps exchange the same parameters, although DDP
# rebuilds its buckets after the first step.
RECORDED_STEPS = 3


class DdpExchange:
    """The exchange of the gradients of all DDP models.

    Attributes:
        models: The DDP models that the script has created so far.
        states: The states of these models' hooks.
    """

    def __init__(self, settings: ExchangeSettings, script: Script, rounding: ModelRounding) -> None:
        self.settings, self.script, self.rounding = settings, script, rounding
        self.models: list[DistributedDataParallel] = []
        self.states: list[Any] = []

    def install(self, patches: Patches) -> None:
        """Intercept the construction of DDP models."""
        patches.around(DistributedDataParallel, "__init__", self._construct)
        if not self.settings.plain:
            patches.around(DistributedDataParallel, "register_comm_hook", self._refuse_hook)

    def _construct(
        self, original: Callable, ddp: DistributedDataParallel, module: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        self.rounding.place(module)
        original(ddp, module, *args, **kwargs)
        self.add(ddp)

    def add(self, ddp: DistributedDataParallel) -> None:
        """Exchange the gradients of a DDP model from now on.

        Raises:
            UserError: The process group of the model does not contain all processes of the script.
        """
        if ddp in self.models:
            return
        self.models.append(ddp)
        self.script.wrappers[DDP] = self.script.wrappers.get(DDP, 0) + 1
        if self.settings.plain:
            return
        ranks = ddp.process_group.size()
        if ranks != self.script.ranks:
            raise UserError(
                f"DistributedDataParallel uses only {ranks} of the {self.script.ranks} processes, but "
                f"world_size={self.script.world_size} needs all of them. Use the default process group"
            )
        if self.script.workers_per_rank > 1:
            _register(ddp, None, _return_bucket)
            return
        state, hook = make_ddp_hook(ddp, self.settings.make_sum)
        _register(ddp, state, self._recorded(hook))
        self.script.register_state(f"{DDP} {len(self.states)}", state)
        self.states.append(state)
        for p in ddp.module.parameters():
            self.script.claimed[p] = DDP

    def _recorded(self, hook: Callable) -> Callable:
        """Return a hook that calls `hook` and records the parameters that it exchanges in this process's first steps.

        The returned hook counts steps itself, because `state.step` includes the steps before a script was resumed.
        """
        steps = 0

        @functools.wraps(hook)
        def recorded(state: Any, bucket: dist.GradBucket) -> Any:
            nonlocal steps
            if steps < RECORDED_STEPS:
                names = state.names_of(bucket.parameters())
                self.script.record_exchange(DDP, names, [p.numel() for p in bucket.parameters()])
                steps += bucket.is_last()
            return hook(state, bucket)

        return recorded

    def _refuse_hook(self, original: Callable, ddp: Any, state: Any, hook: Callable) -> None:
        raise UserError(
            "the script registers its own communication hook, which would bypass the exchange in the run's number "
            "format. Remove the call to register_comm_hook, or run with format=fp32"
        )


def _register(ddp: DistributedDataParallel, state: Any, hook: Callable) -> None:
    """Register a communication hook that is not pickled when the script saves the wrapped model.

    Only DDP's Python reducer (compiled autograd) reads DDP's list of hooks. The C++ reducer has its own reference.
    """
    register: Any = DistributedDataParallel.register_comm_hook
    register.__wrapped__(ddp, state, hook)
    ddp._comm_hooks.clear()


def _return_bucket(_state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
