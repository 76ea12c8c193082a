"""Summation of gradients in scripts that use fully_shard (FSDP2), instead of FSDP's own reduce-scatter.

A process is one worker. FSDP passes the gradients of one `fully_shard` call together. Each parameter is divided along
its first dimension into one part per process, padded with zeros to equal size. Each parameter is a separate layer.
Every process computes only its part of the sum (`cpdrun.comm.script.fsdp_collectives`). Therefore, the gradients have
the same bits as with DDP, but only half as many bytes are sent.

The following are not supported and raise an error: meshes of several dimensions (HSDP, tensor parallelism), parameters
without gradients, several workers in a process, and FSDP1.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from cpdrun.attach.intercept.exchange import ExchangeSettings, ResumableSum
from cpdrun.attach.intercept.model_rounding import ModelRounding
from cpdrun.attach.intercept.patches import Patches
from cpdrun.attach.intercept.script import FSDP, Script
from cpdrun.comm import AllReduceSync
from cpdrun.comm.script.ddp_hook import unwrapped_name
from cpdrun.comm.script.fsdp_collectives import ReduceScatter, name_of, without_gradient
from cpdrun.errors import UserError


class FsdpExchange:
    """The exchange of the gradients of all modules on which the script calls fully_shard.

    Attributes:
        group: The process group of all exchanges.
        sums: The sums. There is one for each call of fully_shard.
    """

    def __init__(self, settings: ExchangeSettings, script: Script, rounding: ModelRounding) -> None:
        self.settings, self.script, self.rounding = settings, script, rounding
        self.group: Any = None
        self.sums: list[ShardedSum] = []

    def install(self, patches: Patches) -> None:
        """Intercept calls of fully_shard."""
        patches.around(fsdp, "fully_shard", self._shard)
        patches.around(fsdp._fully_shard, "fully_shard", self._shard)
        if not self.settings.plain:
            patches.around(FullyShardedDataParallel, "__init__", self._refuse_fsdp1)

    def _shard(self, original: Callable, module: Any, *args: Any, **kwargs: Any) -> Any:
        modules = module if isinstance(module, list | tuple) else [module]
        for one in modules:
            self.rounding.place_around(list(one.parameters()))
        result = original(module, *args, **kwargs)
        if not self.settings.plain:
            for one in modules:
                self._add(one)
        self.script.wrappers[FSDP] = self.script.wrappers.get(FSDP, 0) + 1
        return result

    def _add(self, module: FSDPModule) -> None:
        state = module._get_fsdp_state()
        if self.script.workers_per_rank > 1:
            raise UserError(
                f"world_size={self.script.world_size}: with fully_shard, each process must be one worker. Set nproc="
                f"{self.script.world_size}, or world_size={self.script.ranks}"
            )
        if self.script.ranks == 1:
            raise UserError(
                "fully_shard exchanges no gradients in a single process. Set nproc=2 or more, or use "
                "DistributedDataParallel"
            )
        for group in state._fsdp_param_groups:
            mesh = group.mesh_info.mesh
            if mesh.ndim > 1 or mesh.size() != self.script.ranks:
                raise UserError(
                    f"fully_shard uses a mesh of shape {tuple(mesh.shape)}, but cpdrun needs a mesh of one dimension "
                    f"with all {self.script.ranks} processes. Leave mesh out"
                )
            if self.group is None:
                self.group = dist.new_group()
            comm = ShardedSum(self, group)
            self.script.register_state(f"{FSDP} {len(self.sums)}", comm)
            self.sums.append(comm)
            module.set_custom_reduce_scatter(comm)
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
            for p in group.fsdp_params:
                if p.fsdp_placement.dim != 0:
                    raise UserError(
                        "fully_shard divides a parameter along another dimension than the first, which cpdrun does not "
                        "support. Leave shard_placement_fn out"
                    )
                self.script.claimed[p.sharded_param] = FSDP

    def _refuse_fsdp1(self, original: Callable, *args: Any, **kwargs: Any) -> None:
        raise UserError(
            f"format={self.settings.format}: cpdrun cannot intercept the gradients of FullyShardedDataParallel "
            "(FSDP1). Use fully_shard or DistributedDataParallel"
        )


class ShardedSum(ResumableSum, ReduceScatter):
    """The sum of the gradients of one `fully_shard` call."""

    def __init__(self, exchange: FsdpExchange, param_group: Any) -> None:
        ReduceScatter.__init__(self, param_group)
        ResumableSum.__init__(self)
        self.exchange = exchange

    def reduced(self, numel: int, ranks: int) -> list[Any]:
        """Return all parameters of the call.

        Raises:
            UserError: A parameter has no gradient. Other processes would wait for it.
        """
        try:
            params = super().reduced(numel, ranks)
        except ValueError as error:
            raise UserError(str(error)) from None
        if len(params) < len(self.trainable()):
            raise UserError(without_gradient(params))
        return params

    def sum_of(self, params: Sequence[Any], ranks: int) -> tuple[AllReduceSync, Sequence[int]]:
        """Return the sum, and the indices of these parameters in it."""
        if self.sync is None:
            names = [unwrapped_name(name_of(p)) for p in params]
            self.set_sum(self.exchange.settings.make_sum(names, ranks, self.exchange.group))
        assert self.sync is not None
        return self.sync, range(len(params))

    def done(self, params: Sequence[Any]) -> None:
        """Record the exchange."""
        numels = [p._orig_size.numel() for p in params]
        assert self.sync is not None
        self.exchange.script.record_exchange(FSDP, self.sync.names, numels)
