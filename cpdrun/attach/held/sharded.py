"""fully_shard (FSDP2): the run's sum in the place of its reduce-scatter.

A process is one worker then. FSDP hands over the gradients of one `fully_shard` call together, each parameter cut along
its first dimension into one part a process, padded with zeros to equal ones; each parameter is a layer of its own, as
everywhere. Every process forms the whole sum and keeps its part: the bits are those of DDP, the bytes on the wire those
of an all-reduce, twice a reduce-scatter's.

Refused, in one line: meshes of several dimensions (HSDP, tensor parallelism), parameters without gradients, several
workers a process, FSDP1.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from cpdrun.attach.held.exchange import Asked, Going
from cpdrun.attach.held.patches import Patches
from cpdrun.attach.held.products import Products
from cpdrun.attach.held.script import FSDP, Script
from cpdrun.comm.hook import unwrapped_name
from cpdrun.errors import UserError


class HoldsFsdp:
    """What fully_shard is called on from `install` on."""

    def __init__(self, asked: Asked, script: Script, products: Products) -> None:
        self.asked, self.script, self.products = asked, script, products
        self.group: dist.ProcessGroup | None = None
        self.sums: list[ReduceScatter] = []

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
            comm = ReduceScatter(self, group.fsdp_params)
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


class ReduceScatter(Going, fsdp._fully_shard._fsdp_api.ReduceScatter):
    """Of the parameters of one `fully_shard` call. Legend: N ranks, P parameters, n_p elements of one, padded."""

    def __init__(self, holds: HoldsFsdp, fsdp_params: Sequence[Any]) -> None:
        Going.__init__(self)
        self.holds, self.fsdp_params = holds, list(fsdp_params)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
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
        """input_tensor: (sum of n_p,), rank r's part of every parameter after rank r-1's."""
        N, rank = group.size(), group.rank()
        widths = [p.padded_sharded_param_size.numel() for p in self.fsdp_params]
        names = [unwrapped_name(p._param_fqn or f"parameter {i}") for i, p in enumerate(self.fsdp_params)]
        if sum(widths) * N != input_tensor.numel():
            raise UserError(
                f"fully_shard: one of {names[0]} ... has no gradient in this step, so that it cannot be told which are "
                "there: use all parameters, freeze the others, or call set_reduce_scatter_unused_params(True)"
            )
        if self.sync is None:
            self.made(self.holds.asked.sum_of(names, N, self.holds.group))
        input_NxS = input_tensor.view(N, -1)
        # of each parameter all parts, one after the other: its gradient, padded at the end
        gradients = [part.to(torch.float32).reshape(-1) for part in input_NxS.split(widths, dim=1)]
        torch._foreach_div_(gradients, N)
        stacks = [g.view(1, -1) for g in gradients]
        self.sync.reduce_layers(range(len(stacks)), stacks, step=self.step, epoch=0, out=gradients)
        self.step += 1
        mine = [g.view(N, -1)[rank] for g in gradients]
        output_tensor.copy_(torch.cat(mine))
        numels = [p._orig_size.numel() for p in self.fsdp_params]
        self.holds.script.did_exchange(FSDP, names, numels)
