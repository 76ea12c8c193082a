"""fully_shard (FSDP2): the run's sum in the place of its reduce-scatter.

A process is one worker then. FSDP hands over the gradients of one `fully_shard` call together, each parameter cut along
its first dimension into one part a process, padded with zeros to equal ones; each parameter is a layer of its own, as
everywhere. Every process forms its part of the sum and no other (`cpdrun.comm.script.fsdp_collectives`): the bits are
those of DDP, the bytes on the wire half as many.

Refused, in one line: meshes of several dimensions (HSDP, tensor parallelism), parameters without gradients, several
workers a process, FSDP1.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from cpdrun.attach.held.exchange import Asked, Going
from cpdrun.attach.held.patches import Patches
from cpdrun.attach.held.products import Products
from cpdrun.attach.held.script import FSDP, Script
from cpdrun.comm import AllReduceSync
from cpdrun.comm.script.ddp_hook import unwrapped_name
from cpdrun.comm.script.fsdp_collectives import ReduceScatter, name_of, without_gradient
from cpdrun.errors import UserError


class HoldsFsdp:
    """What fully_shard is called on from `install` on."""

    def __init__(self, asked: Asked, script: Script, products: Products) -> None:
        self.asked, self.script, self.products = asked, script, products
        self.group: dist.ProcessGroup | None = None
        self.sums: list[Sum] = []

    def install(self, patches: Patches) -> None:
        patches.around(fsdp, "fully_shard", self._shard)
        patches.around(fsdp._fully_shard, "fully_shard", self._shard)
        if not self.asked.plain:
            patches.around(FullyShardedDataParallel, "__init__", self._refuse_fsdp1)

    def _shard(self, original: Callable, module: Any, *args: Any, **kwargs: Any) -> Any:
        for one in module if isinstance(module, list | tuple) else [module]:
            self.products.place_around(list(one.parameters()))
        result = original(module, *args, **kwargs)
        if not self.asked.plain:
            for one in module if isinstance(module, list | tuple) else [module]:
                self._take(one)
        self.script.wrappers[FSDP] = self.script.wrappers.get(FSDP, 0) + 1
        return result

    def _take(self, module: FSDPModule) -> None:
        state = module._get_fsdp_state()
        if self.script.share > 1:
            raise UserError(
                f"world_size={self.script.world_size}: under fully_shard a process is one worker: take nproc="
                f"{self.script.world_size}, or world_size={self.script.ranks}"
            )
        if self.script.ranks == 1:
            raise UserError(
                "fully_shard in one process exchanges nothing: take nproc=2 or more, or DistributedDataParallel"
            )
        for group in state._fsdp_param_groups:
            mesh = group.mesh_info.mesh
            if mesh.ndim > 1 or mesh.size() != self.script.ranks:
                raise UserError(
                    f"fully_shard over a mesh of {tuple(mesh.shape)} in {self.script.ranks} processes: the run's "
                    "workers are all of them, in one dimension; leave mesh out"
                )
            if self.group is None:
                self.group = dist.new_group()
            comm = Sum(self, group)
            self.script.go_on(f"{FSDP} {len(self.sums)}", comm)
            self.sums.append(comm)
            module.set_custom_reduce_scatter(comm)
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
            for p in group.fsdp_params:
                if p.fsdp_placement.dim != 0:
                    raise UserError(
                        "fully_shard along another dimension than the first: leave shard_placement_fn out"
                    )
                self.script.claimed[p.sharded_param] = FSDP

    def _refuse_fsdp1(self, original: Callable, *args: Any, **kwargs: Any) -> None:
        raise UserError(
            f"format={self.asked.format}: FullyShardedDataParallel (FSDP1) hands its gradients to nobody: use "
            "fully_shard or DistributedDataParallel"
        )


class Sum(Going, ReduceScatter):
    """Of the gradients of one `fully_shard` call."""

    def __init__(self, holds: HoldsFsdp, param_group: Any) -> None:
        ReduceScatter.__init__(self, param_group)
        Going.__init__(self)
        self.holds = holds

    def reduced(self, numel: int, ranks: int) -> list[Any]:
        """All: one that another process has a gradient of would keep this one waiting."""
        try:
            params = super().reduced(numel, ranks)
        except ValueError as error:
            raise UserError(str(error)) from None
        if len(params) < len(self.trainable()):
            raise UserError(without_gradient(params))
        return params

    def sum_of(self, params: Sequence[Any], ranks: int) -> tuple[AllReduceSync, Sequence[int]]:
        if self.sync is None:
            names = [unwrapped_name(name_of(p)) for p in params]
            self.made(self.holds.asked.sum_of(names, ranks, self.holds.group))
        return self.sync, range(len(params))

    def done(self, params: Sequence[Any]) -> None:
        numels = [p._orig_size.numel() for p in params]
        self.holds.script.did_exchange(FSDP, self.sync.names, numels)
