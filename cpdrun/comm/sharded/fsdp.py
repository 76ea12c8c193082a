"""Few bits in any script that uses fully_shard (FSDP2):

    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    comm = cpdrun.comm.fsdp_comm(model, "e4m3", aps=True, gather="bf16")

Each rank is one worker, in the order of the mesh. Gradients take `reduce_scatter.py`, weights `all_gather.py`. Over a
mesh of R replicas x S shards (HSDP) the sum is hierarchical, in groups of S: each replica's reduce-scatter, then an
all-reduce over the replicas of what a rank owns, with a shift that all ranks agree on: the bits of order=hierarchical,
group_size=S over R S workers (`replicas.py`).

Steps whose gradients are accumulated (set_requires_gradient_sync(False)) exchange nothing. Mixed-precision policies,
activation checkpointing, torch.compile and every reshard_after_forward work as without.

What scaling, error feedback and differences remember, and the number of the step, go into a checkpoint with the model:
`comm.state_dict()` and `comm.load_state_dict(...)`.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from custom_fp.formats.protocol import NumberFormat
from torch import nn
from torch.distributed.fsdp import FSDPModule

from cpdrun.comm.hook import unwrapped_name
from cpdrun.comm.sharded.all_gather import AllGather
from cpdrun.comm.sharded.gather import Gather, Gathered
from cpdrun.comm.sharded.reduce_scatter import ReduceScatter
from cpdrun.comm.sharded.replicas import Replicas, mesh_of
from cpdrun.comm.sums.scaling import APS, ScalingRule
from cpdrun.comm.sums.sum import Sum, takes_knobs
from cpdrun.comm.sync import AllReduceSync
from cpdrun.comm.workers import Workers


class FsdpComm:
    """What `fsdp_comm` installs: one for each model."""

    def __init__(
        self, sync: AllReduceSync, scatters: Sequence["_Scatter"], gathers: Sequence[AllGather]
    ) -> None:
        self.sync, self.scatters, self.gathers = sync, list(scatters), list(gathers)

    def wire_bytes(self) -> dict[str, int]:
        """Of the latest step: its gradients, and the weights gathered for it, as `GradientSync.wire_bytes` counts."""
        found = self.sync.wire_bytes()
        extra = sum((g.latest for g in self.gathers), Gathered())
        extra += sum((s.replicas.latest for s in self.scatters if s.replicas), Gathered())
        return {
            "bytes_per_step_sent": found["bytes_per_step_sent"] + extra.sent_bytes,
            "bytes_per_step_real_worker": found["bytes_per_step_real_worker"] + extra.real_worker_bytes,
        }

    def state_dict(self) -> dict[str, Any]:
        """What a resumed script needs to continue bit for bit; whole on the mesh's first rank. Collective.

        Tensors, numbers, strings, lists and dicts only: `torch.load(weights_only=True)` reads them.
        """
        return {
            "steps": [scatter.step for scatter in self.scatters],
            "sync": self.sync.state_dict(),
            "gathers": [gather.state_dict() for gather in self.gathers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave on the first rank, on every rank, once the model has its weights."""
        for scatter, step in zip(self.scatters, state["steps"], strict=True):
            scatter.step = step
        self.sync.load_state_dict(state["sync"])
        for gather, kept in zip(self.gathers, state["gathers"], strict=True):
            gather.load_state_dict(kept)


class _Scatter(ReduceScatter):
    """Of one of the model's `fully_shard` calls. places: of its parameters among the layers of the sum."""

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


@takes_knobs
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
    **knobs: Any,
) -> FsdpComm:
    """Gradients summed in `fmt`, and weights gathered in the format `gather`, for a model that fully_shard has been
    called on, layers and root. Collective; knobs as `Sum` has them.

    aps: a scale a parameter, of gradients, and of weights where `gather` has less than 8 exponent bits. scaling: a rule
    of one's own for gradients instead. gather: fp32 leaves the all-gather to torch, in the policy's param_dtype.
    differences: the change since the last gather is sent, scaled. full_precision_layers: glob patterns of parameter
    names whose gradients and weights travel in fp32. The gradients' bits are those of `ddp_hook` with the same options.

    Raises ValueError, in one line, for options that do not fit together, models without fully_shard or in one process,
    meshes of other kinds than one dimension or replicas x shards, parameters cut along another dimension than the
    first or with a gather of their own, and CPU offload.
    """
    model = getattr(model, "_orig_mod", model)
    param_groups = [
        param_group
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for param_group in module._get_fsdp_state()._fsdp_param_groups
    ]
    mesh = mesh_of(param_groups)
    how = mesh.sum_of(Sum.of(fmt, **knobs))
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
    in_full = Gather("fp32", workers, scaled=False)
    in_format = Gather(gather, workers, scaled=bool(rule) or differences, differences=differences)
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
    gathers: tuple[Gather, Gather],
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
    """FSDP's parameters with their names in the model."""
    prefixes = {module: f"{name}." if name else "" for name, module in model.named_modules()}
    return [
        (p, unwrapped_name(prefixes[p._module_info.module] + p._module_info.param_name))
        for p in param_group.fsdp_params
    ]
