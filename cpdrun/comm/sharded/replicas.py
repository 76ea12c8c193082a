"""The mesh that fully_shard was given: S shards, or R replicas of S shards (HSDP), whose sums are summed.

The all-reduce over replicas is the second level of a hierarchical sum over R S workers, in groups of S: what a rank
owns of its replica's sum, brought back to float32, is rounded with a shift that all R S ranks agree on, added in the
order of replicas and sent to all of them, 2 (R-1)/R n/S k/8 bytes a rank.

torch's own all-reduce over replicas, in the gradients' dtype, cannot be replaced by its interface: the parameter groups
are told instead that they are sharded in one dimension, and the all-reduce hook, which torch calls after the
reduce-scatter, forms the second level.

Legend: R replicas, S shards, n_own elements of a parameter that a rank owns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo

from cpdrun.comm.sharded.gather import Gathered
from cpdrun.comm.sharded.reduce_scatter import rows_of
from cpdrun.comm.sums.feedback import ErrorFeedback
from cpdrun.comm.sums.magnitudes import StepBefore
from cpdrun.comm.sums.orders import AUTO
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summations import summation_of
from cpdrun.comm.sums.summations.base import Layers
from cpdrun.comm.sync import AllReduceSync
from cpdrun.comm.wire.cut import width
from cpdrun.comm.workers import Workers


@dataclass(frozen=True)
class Mesh:
    """group: of this rank's replica; between: of the ranks that own the same in all replicas; everyone: of all. Made
    for these exchanges alone, where their messages meet nobody else's."""

    shards: int
    replicas: int
    group: dist.ProcessGroup
    between: dist.ProcessGroup | None = None
    everyone: dist.ProcessGroup | None = None

    def sum_of(self, how: Sum) -> Sum:
        """Of one replica. Raises ValueError for an order that the mesh does not have."""
        if self.replicas == 1:
            return how
        hierarchical = how.order == "hierarchical" and how.group_size in (AUTO, self.shards)
        if not hierarchical:
            raise ValueError(
                f"order={how.order}, group_size={how.group_size}: over {self.replicas} replicas of {self.shards} "
                f"shards the sum is hierarchical, in groups of {self.shards}: take order=hierarchical, "
                f"group_size={self.shards}"
            )
        return replace(how, order="rank", group_size=AUTO)

    def check(self, sync: AllReduceSync) -> None:
        """Raises ValueError for what replicas' sums cannot have."""
        if self.replicas == 1:
            return
        refused = {
            "rounding=stochastic": sync.sum.is_stochastic,
            "error_feedback=true": isinstance(sync.feedback, ErrorFeedback),
            "compat=cpd": sync.sum.compat is not None,
            "a scaling rule that remembers": isinstance(sync.shifts.magnitudes, StepBefore),
            f"format {sync.sum.fmt}, which is decoded to be added": sync.sum.again is not None,
            f"order={sync.sum.order}": not sync.sum.ordering.is_stated,
        }
        for what, found in refused.items():
            if found:
                raise ValueError(f"{what}: not over a mesh of replicas x shards; shard in one dimension")

    def replicas_of(self, sync: AllReduceSync) -> "Replicas | None":
        return None if self.replicas == 1 else Replicas(self, sync)


class Replicas:
    """The second level, of the parameters of one `fully_shard` call; `next`, their names and FSDP's parameters, is set
    by the first one."""

    def __init__(self, mesh: Mesh, sync: AllReduceSync) -> None:
        R, N = mesh.replicas, mesh.replicas * mesh.shards
        self.workers = Workers(R, dist.get_rank(mesh.between), R, mesh.between)
        everyone = Workers(N, dist.get_rank(mesh.everyone), N, mesh.everyone)
        self.mesh, self.sync = mesh, sync
        self.in_format = summation_of(sync.sum, self.workers, sync.shifts, everyone)
        self.in_full = summation_of(sync.sum.in_full_precision(), self.workers)
        self.next: tuple[list[str], Sequence[Any]] = [], []
        self.latest = Gathered()

    def install(self, param_group: Any, module: Any) -> None:
        one = FSDPMeshInfo(param_group.mesh_info.mesh, param_group.mesh_info.shard_mesh_dim)
        if param_group.post_forward_mesh_info is param_group.mesh_info:
            param_group.post_forward_mesh_info = one
        param_group.mesh_info = one
        self.param_group = param_group
        module.set_all_reduce_hook(self)

    @torch.no_grad()
    def __call__(self, reduce_output: Tensor) -> None:
        """reduce_output: the parts that this rank owns, padded, one after the other; becomes those of the sum."""
        if not self.param_group.all_reduce_grads:
            raise ValueError(
                "set_requires_all_reduce(False): gradients that are few bits are summed over replicas in every step; "
                "call set_requires_gradient_sync(False)"
            )
        names, params = self.next
        S, rank = self.mesh.shards, dist.get_rank(self.mesh.group)
        shapes = tuple(tuple(p._orig_size) for p in params)
        values = reduce_output if reduce_output.dtype == torch.float32 else reduce_output.float()
        owned = rows_of(shapes, S).of_owner(rank, len(shapes))
        parts = values.split([width(shape, S) for shape in shapes])
        mine = [part[: own.stop - own.start] for part, own in zip(parts, owned, strict=True)]
        self.latest = Gathered()
        for full, summation in ((False, self.in_format), (True, self.in_full)):
            chosen = [k for k, name in enumerate(names) if (name in self.sync.hybrid.always) == full]
            if chosen:
                # a zero more: whoever owns nothing takes part in the agreement all the same
                out = [*(mine[k] for k in chosen), values.new_zeros(1)]
                stacks = [part.view(1, -1) for part in out]
                done = summation.run(Layers([*(names[k] for k in chosen), "nothing"], stacks, out))
                self.latest += Gathered(done.real_worker_bytes, done.sent_bytes)
        if values is not reduce_output:
            reduce_output.copy_(values)


def mesh_of(param_groups: Sequence[Any]) -> Mesh:
    """Of all parameter groups. Raises ValueError where there is none, or not one that can be served. Collective."""
    if not param_groups:
        raise ValueError("the model has no module of fully_shard: call it on the layers and the model first")
    infos = [group.mesh_info for group in param_groups]
    for group in param_groups:
        _check(group)
    if len({(type(info), info.mesh) for info in infos}) > 1:
        raise ValueError("fully_shard over several meshes: fsdp_comm takes one for the whole model")
    (info, *_) = infos
    if type(info) is FSDPMeshInfo:
        return Mesh(info.shard_mesh_size, 1, _same(info.shard_process_group))
    whole = dist.new_group(sorted(info.mesh.mesh.flatten().tolist()), use_local_synchronization=True)
    return Mesh(
        info.shard_mesh_size,
        info.replicate_mesh_size,
        _same(info.shard_process_group),
        _same(info.replicate_process_group),
        whole,
    )


def _check(param_group: Any) -> None:
    """Raises ValueError for what a parameter group may not be."""
    info, params = param_group.mesh_info, param_group.fsdp_params
    if type(info) not in (FSDPMeshInfo, HSDPMeshInfo):
        raise ValueError("replicate() shards nothing: take DistributedDataParallel and ddp_hook")
    if info.shard_mesh_size == 1:
        raise ValueError(
            "fully_shard in one process exchanges nothing: start more than one, or take DistributedDataParallel and "
            "ddp_hook"
        )
    for p in params:
        what = None
        if getattr(info, "is_spmd_mesh", False) or p.is_dtensor:
            what = "a parameter that is a DTensor already (tensor parallelism)"
        elif p.fsdp_placement.dim != 0:
            what = "another dimension than the first: leave shard_placement_fn out"
        elif p.offload_to_cpu:
            what = "CPU offload: leave offload_policy out"
        elif hasattr(p._sharded_local_tensor, "fsdp_pre_all_gather"):
            what = "a parameter with an all-gather of its own"
        if what:
            raise ValueError(f"fsdp_comm: fully_shard with {what}")


def _same(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A group of the same ranks in the same order."""
    ranks = dist.get_process_group_ranks(group)
    backend = None if group is dist.group.WORLD else dist.get_backend(group)
    unsorted = {} if ranks == sorted(ranks) else {"sort_ranks": False}
    return dist.new_group(ranks, backend=backend, use_local_synchronization=True, **unsorted)
