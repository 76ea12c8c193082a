"""Low-precision gradients and weights for scripts that use fully_shard (FSDP2).

    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    comm = cpdrun.comm.fsdp_comm(model, "e4m3", aps=True, gather="bf16")

Each rank is one worker, in the order of the mesh. `fsdp_collectives.py` exchanges gradients and weights.

On a mesh of R replicas x S shards (HSDP), gradients are summed in two levels, as with order=hierarchical, group_size=S
over R S workers, and with the same bits. First, each replica computes the sum of its S ranks with a reduce-scatter.
Then the ranks that own the same part compute the sum over the R replicas: each rank scales its part back to float32,
rounds it with a shift that all R S ranks agree on, and the parts are added in the order of replicas and sent to all of
these ranks. This second level sends 2 (R-1)/R n/S k/8 bytes per rank.

FSDP's interface does not allow replacing torch's own all-reduce over replicas, which uses the dtype of the gradients.
Therefore, the parameter groups are configured as if they were sharded in one dimension only, and the all-reduce hook,
which torch calls after the reduce-scatter, computes the second level.

Steps whose gradients are accumulated (set_requires_gradient_sync(False)) exchange nothing. Mixed-precision policies,
activation checkpointing, torch.compile and every value of reshard_after_forward work as usual.

Save the state of `comm` in checkpoints together with the model: `comm.state_dict()` and `comm.load_state_dict(...)`. It
contains the state of scaling, error feedback and differences, and the step number.

Shapes: R replicas, S shards, n_own elements of a parameter that a rank owns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo

from cpdrun.comm.script.ddp_hook import unwrapped_name
from cpdrun.comm.script.fsdp_collectives import AllGather, ReduceScatter, rows_of
from cpdrun.comm.sums import summation_of
from cpdrun.comm.sums.error_feedback import ErrorFeedback
from cpdrun.comm.sums.magnitudes import PreviousStep
from cpdrun.comm.sums.orders import AUTO
from cpdrun.comm.sums.scaling import APS, ScalingRule
from cpdrun.comm.sums.sum import Sum, accepts_sum_options
from cpdrun.comm.sums.summation import Layers
from cpdrun.comm.sync.all_reduce import AllReduceSync
from cpdrun.comm.sync.sharded_sync import Traffic, WeightGather
from cpdrun.comm.wire.communicator import checked_group, new_group_like
from cpdrun.comm.wire.message_layout import padded_numel
from cpdrun.comm.workers import Workers


@dataclass(frozen=True)
class Mesh:
    """The ranks that train a model, and their process groups.

    The groups are only used for these exchanges, so their messages are separate from other messages.

    Attributes:
        shards: The number of shards S.
        replicas: The number of replicas R.
        group: The process group of the ranks in this rank's replica.
        between: The process group of the ranks that own the same parts as this rank, one in each replica.
        everyone: The process group of all ranks.
    """

    shards: int
    replicas: int
    group: dist.ProcessGroup
    between: dist.ProcessGroup | None = None
    everyone: dist.ProcessGroup | None = None

    def sum_of(self, how: Sum) -> Sum:
        """Return the description of the sum that one replica computes.

        Raises:
            ValueError: A sum over this mesh cannot have the given order.
        """
        if self.replicas == 1:
            return how
        hierarchical = how.order == "hierarchical" and how.group_size in (AUTO, self.shards)
        if not hierarchical:
            raise ValueError(
                f"order={how.order}, group_size={how.group_size}: a mesh of {self.replicas} replicas with "
                f"{self.shards} shards each supports only a hierarchical sum in groups of {self.shards}. Set "
                f"order=hierarchical, group_size={self.shards}"
            )
        return replace(how, order="rank", group_size=AUTO)

    def check(self, sync: AllReduceSync) -> None:
        """Raise ValueError if there are replicas and a setting is not supported for sums over replicas."""
        if self.replicas == 1:
            return
        refused = {
            "rounding=stochastic": sync.sum.is_stochastic,
            "error_feedback=true": isinstance(sync.feedback, ErrorFeedback),
            "compat=cpd": sync.sum.compat is not None,
            "a scaling rule with state": isinstance(sync.shifts.magnitudes, PreviousStep),
            f"format {sync.sum.fmt}, whose values are added in float32": sync.sum.requantization is not None,
            f"order={sync.sum.order}": not sync.sum.ordering.is_defined,
        }
        for what, found in refused.items():
            if found:
                raise ValueError(
                    f"{what} is not supported over a mesh of replicas x shards. Shard the model in one dimension"
                )

    def replicas_of(self, sync: AllReduceSync) -> "Replicas | None":
        """Return the second level of the sum, or None if there is only one replica."""
        return None if self.replicas == 1 else Replicas(self, sync)


class Replicas:
    """The second level of the sum, for the parameters of one `fully_shard` call.

    The first level sets the attribute `next`: the names of the parameters whose gradients are ready, and FSDP's objects
    of these parameters.
    """

    def __init__(self, mesh: Mesh, sync: AllReduceSync) -> None:
        R, N = mesh.replicas, mesh.replicas * mesh.shards
        self.workers = Workers(R, dist.get_rank(mesh.between), R, mesh.between)
        everyone = Workers(N, dist.get_rank(mesh.everyone), N, mesh.everyone)
        self.mesh, self.sync = mesh, sync
        self.in_format = summation_of(sync.sum, self.workers, sync.shifts, everyone)
        self.in_full = summation_of(sync.sum.in_full_precision(), self.workers)
        self.next: tuple[list[str], Sequence[Any]] = [], []
        self.latest = Traffic()

    def install(self, param_group: Any, module: Any) -> None:
        """Install the hook that computes the second level."""
        one = FSDPMeshInfo(param_group.mesh_info.mesh, param_group.mesh_info.shard_mesh_dim)
        if param_group.post_forward_mesh_info is param_group.mesh_info:
            param_group.post_forward_mesh_info = one
        param_group.mesh_info = one
        self.param_group = param_group
        module.set_all_reduce_hook(self)

    @torch.no_grad()
    def __call__(self, reduce_output: Tensor) -> None:
        """Replace the padded parts that this rank owns by their sums over the replicas. Collective."""
        if not self.param_group.all_reduce_grads:
            raise ValueError(
                "set_requires_all_reduce(False) is not supported, because low-precision gradients must be summed over "
                "the replicas in every step. To accumulate gradients, call set_requires_gradient_sync(False)"
            )
        names, params = self.next
        S, rank = self.mesh.shards, dist.get_rank(self.mesh.group)
        shapes = tuple(tuple(p._orig_size) for p in params)
        values = reduce_output if reduce_output.dtype == torch.float32 else reduce_output.float()
        owned = rows_of(shapes, S).owned_by(rank, len(shapes))
        parts = values.split([padded_numel(shape, S) for shape in shapes])
        mine = [part[: own.stop - own.start] for part, own in zip(parts, owned, strict=True)]
        self.latest = Traffic()
        for full, summation in ((False, self.in_format), (True, self.in_full)):
            chosen = [k for k, name in enumerate(names) if (name in self.sync.hybrid.always) == full]
            if chosen:
                # A rank that owns nothing must also take part in the agreement, so each rank adds a layer with one
                # zero.
                out = [*(mine[k] for k in chosen), values.new_zeros(1)]
                stacks = [part.view(1, -1) for part in out]
                done = summation.run(Layers([*(names[k] for k in chosen), "nothing"], stacks, out))
                self.latest += Traffic(done.real_worker_bytes, done.sent_bytes)
        if values is not reduce_output:
            reduce_output.copy_(values)


def mesh_of(param_groups: Sequence[Any]) -> Mesh:
    """Return the mesh of all parameter groups. Collective.

    Raises:
        ValueError: There are no groups, or their meshes are not supported.
    """
    if not param_groups:
        raise ValueError(
            "the model does not use fully_shard. Call fully_shard on the layers and on the model before fsdp_comm"
        )
    infos = [group.mesh_info for group in param_groups]
    for group in param_groups:
        _check(group)
    if len({(type(info), info.mesh) for info in infos}) > 1:
        raise ValueError(
            "the modules of the model use different meshes. Call fully_shard with the same mesh on all modules"
        )
    (info, *_) = infos
    if type(info) is FSDPMeshInfo:
        return Mesh(info.shard_mesh_size, 1, new_group_like(info.shard_process_group))
    whole = checked_group(
        dist.new_group(sorted(info.mesh.mesh.flatten().tolist()), use_local_synchronization=True)
    )
    return Mesh(
        info.shard_mesh_size,
        info.replicate_mesh_size,
        new_group_like(info.shard_process_group),
        new_group_like(info.replicate_process_group),
        whole,
    )


def _check(param_group: Any) -> None:
    """Raise ValueError for parameter groups that are not supported."""
    info, params = param_group.mesh_info, param_group.fsdp_params
    if type(info) not in (FSDPMeshInfo, HSDPMeshInfo):
        raise ValueError(
            "fsdp_comm does not support replicate(), which shards nothing. Use DistributedDataParallel and ddp_hook"
        )
    if info.shard_mesh_size == 1:
        raise ValueError(
            "fsdp_comm needs more than one process, because fully_shard exchanges nothing in a single process. Start "
            "more processes, or use DistributedDataParallel and ddp_hook"
        )
    for p in params:
        what = None
        if getattr(info, "is_spmd_mesh", False) or p.is_dtensor:
            what = "a parameter that is already a DTensor (tensor parallelism)"
        elif p.fsdp_placement.dim != 0:
            what = "sharding along another dimension than the first. Leave shard_placement_fn out"
        elif p.offload_to_cpu:
            what = "CPU offload. Leave offload_policy out"
        elif hasattr(p._sharded_local_tensor, "fsdp_pre_all_gather"):
            what = "a parameter that has its own all-gather"
        if what:
            raise ValueError(f"fsdp_comm does not support {what}")


class FsdpComm:
    """The exchange that `fsdp_comm` installs in a model. Each model has its own `FsdpComm`."""

    def __init__(
        self, sync: AllReduceSync, scatters: Sequence["_Scatter"], gathers: Sequence[AllGather]
    ) -> None:
        self.sync, self.scatters, self.gathers = sync, list(scatters), list(gathers)

    def wire_bytes(self) -> dict[str, int]:
        """Return the payload bytes of the latest step's gradients, and of the weights gathered for it."""
        found = self.sync.wire_bytes()
        extra = sum((g.latest for g in self.gathers), Traffic())
        extra += sum((s.replicas.latest for s in self.scatters if s.replicas), Traffic())
        return {
            "bytes_per_step_sent": found["bytes_per_step_sent"] + extra.sent_bytes,
            "bytes_per_step_real_worker": found["bytes_per_step_real_worker"] + extra.real_worker_bytes,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed script needs to continue bit for bit. Collective.

        The whole state is on the mesh's first rank. It contains only tensors, numbers, strings, lists and dictionaries,
        so `torch.load(weights_only=True)` can read it.
        """
        return {
            "steps": [scatter.step for scatter in self.scatters],
            "sync": self.sync.state_dict(),
            "gathers": [gather.state_dict() for gather in self.gathers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of the first rank on every rank, after the model has its weights."""
        for scatter, step in zip(self.scatters, state["steps"], strict=True):
            scatter.step = step
        self.sync.load_state_dict(state["sync"])
        for gather, kept in zip(self.gathers, state["gathers"], strict=True):
            gather.load_state_dict(kept)


class _Scatter(ReduceScatter):
    """The reduce-scatter of one of the model's `fully_shard` calls.

    `places` maps the id of each parameter to the index of its layer in the sum.
    """

    def __init__(
        self,
        param_group: Any,
        sync: AllReduceSync,
        places: dict[int, int],
        gather: AllGather,
        replicas: Replicas | None,
    ) -> None:
        super().__init__(param_group)
        self.sync, self.places, self.gather, self.replicas = sync, places, gather, replicas

    def sum_of(self, params: Sequence[Any], ranks: int) -> tuple[AllReduceSync, Sequence[int]]:
        return self.sync, [self.places[id(p)] for p in params]

    def workers(self, ranks: int) -> int:
        return ranks * (self.replicas.workers.ranks if self.replicas else 1)

    def done(self, params: Sequence[Any]) -> None:
        self.gather.counted()
        if self.replicas:
            self.replicas.next = [self.sync.names[self.places[id(p)]] for p in params], params


@accepts_sum_options
def fsdp_comm(
    model: nn.Module,
    fmt: Sum | NumberFormat | str,
    *,
    aps: bool = False,
    scaling: ScalingRule | None = None,
    gather: str = "fp32",
    differences: bool = False,
    full_precision_layers: Sequence[str] = (),
    seed: int = 0,
    **options: Any,
) -> FsdpComm:
    """Make a model that uses fully_shard sum gradients and gather weights in number formats. Collective.

    Call fully_shard on the layers and on the model before this function. The gradients have the same bits as with
    `ddp_hook` and the same options.

    Args:
        model: The model.
        fmt: The format in which gradients are summed, its name, or a `Sum`.
        aps: Whether to scale each parameter's gradients with auto-precision scaling (APS). The weights are scaled, too,
            if `gather` has fewer than 8 exponent bits.
        scaling: A scaling rule for gradients to use instead of APS.
        gather: The format of gathered weights. With fp32, torch gathers them in the param_dtype of the mixed-precision
            policy.
        differences: Whether to send the scaled difference from the latest gathered weights instead of the weights.
        full_precision_layers: Glob patterns of the names of parameters whose gradients and weights stay in fp32.
        seed: The seed of stochastic rounding.
        options: Settings of `Sum`.

    Raises:
        ValueError: The options do not fit together, the model does not use fully_shard or runs in one process, the mesh
            is neither one-dimensional nor replicas x shards, parameters are divided along another dimension than the
            first or have their own all-gather, or the model uses CPU offload.
    """
    model = getattr(model, "_orig_mod", model)
    param_groups = [
        param_group
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for param_group in module._get_fsdp_state()._fsdp_param_groups
    ]
    mesh = mesh_of(param_groups)
    how = mesh.sum_of(Sum.of(fmt, **options))
    names = {id(p): name for group in param_groups for p, name in _names(model, group)}
    layers = [p for group in param_groups for p in group.fsdp_params if p.sharded_param.requires_grad]
    rule = scaling or (APS() if aps else None)
    sync = AllReduceSync(
        format=how,
        world_size=mesh.shards,
        parameter_names=[names[id(p)] for p in layers],
        scaling=rule,
        seed=seed,
        full_precision={"layers": tuple(full_precision_layers)},
        group=mesh.group,
    )
    mesh.check(sync)
    places = {id(p): k for k, p in enumerate(layers)}
    workers = Workers(mesh.shards, dist.get_rank(mesh.group), mesh.shards, mesh.group)
    in_full = WeightGather("fp32", workers, scaled=False)
    in_format = WeightGather(gather, workers, scaled=bool(rule) or differences, differences=differences)
    found = [
        _install(group, sync, places, names, (in_format, in_full), mesh.replicas_of(sync))
        for group in param_groups
    ]
    return FsdpComm(sync, found, [scatter.gather for scatter in found])


def _install(
    param_group: Any,
    sync: AllReduceSync,
    places: dict[int, int],
    names: dict[int, str],
    gathers: tuple[WeightGather, WeightGather],
    replicas: Replicas | None,
) -> _Scatter:
    params = param_group.fsdp_params
    covered = [sync.hybrid.covers(places[id(p)], 0) if id(p) in places else False for p in params]
    gather = AllGather(param_group, [names[id(p)] for p in params], *gathers, covered)
    scatter = _Scatter(param_group, sync, places, gather, replicas)
    for module in param_group.modules:
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(scatter)
            module.set_custom_all_gather(gather)
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
            if replicas:
                replicas.install(param_group, module)
    return scatter


def _names(model: nn.Module, param_group: Any) -> list[tuple[Any, str]]:
    """Return pairs of FSDP's parameter object and the parameter's name in the model."""
    prefixes = {module: f"{name}." if name else "" for name, module in model.named_modules()}
    return [
        (p, unwrapped_name(prefixes[p._module_info.module] + p._module_info.param_name))
        for p in param_group.fsdp_params
    ]
