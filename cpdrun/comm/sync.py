"""Gradient synchronisation in a number format: what the training loop calls once a step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from custom_fp import Format
from torch import Tensor

from cpdrun.comm.base import GradientSync
from cpdrun.comm.emulation import emulate_layers
from cpdrun.comm.exchange import Exchange
from cpdrun.comm.hybrid import FullPrecision
from cpdrun.comm.layout import Layout
from cpdrun.comm.recipe import FP32, Recipe
from cpdrun.comm.scaling import NoScaling, ScalingRule


class AllReduceSync(GradientSync):
    """The mean gradient of N workers, summed in a format and a stated order.

    The run gives: format (its name), scaling (a rule, None for none), world_size = N, seed,
    parameter_names, full_precision ({layers, first_epochs, last_epochs}), epochs. conf/sync/all_reduce.yaml
    gives the rest and says what each knob does. Raises ValueError where they do not fit together.

    With torch.distributed initialised, its ranks share the workers; otherwise this process plays all of them.
    """

    def __init__(
        self,
        *,
        format: str | Format,
        world_size: int,
        parameter_names: Sequence[str],
        order: str,
        group_size: int | None,
        kahan: bool,
        rounding: str,
        overflow: str,
        scaling: ScalingRule | None = None,
        seed: int = 0,
        full_precision: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        fmt = Format.parse(format)
        self.recipe = Recipe(fmt, order, group_size, kahan, rounding, overflow)
        if order == "hierarchical":
            self.recipe.groups(world_size)
        self.rule = scaling or NoScaling()
        self.world_size, self.seed, self.names = world_size, seed, list(parameter_names)
        self.hybrid = FullPrecision(tuple(parameter_names), epochs=epochs, **_plain(full_precision))
        self.ranks = dist.get_world_size(group) if dist.is_initialized() else 1
        if world_size % self.ranks:
            raise ValueError(f"nproc={self.ranks} does not divide world_size={world_size}")
        self.exchange = Exchange(group) if self.ranks > 1 else None
        self._real_worker_bytes = 0

    def reduce(self, grads_by_worker: Sequence[Sequence[Tensor]], *, step: int, epoch: int) -> list[Tensor]:
        workers = [[g.detach().reshape(-1) for g in layers] for layers in grads_by_worker]
        if len(workers) * self.ranks != self.world_size:
            raise ValueError(
                f"{len(workers)} workers on each of {self.ranks} ranks are not {self.world_size}"
            )
        results: list[Tensor] = [torch.empty(0)] * len(self.names)
        low, full = self.hybrid.split(epoch)
        self._real_worker_bytes = 0
        if self.exchange:
            self.exchange.sent_bytes = 0
        for layers, recipe, rule in (
            (low, self.recipe, self.rule),
            (full, replace(self.recipe, fmt=FP32), NoScaling()),
        ):
            for p, total in zip(
                layers, self._sum(workers, layers, recipe, rule, (self.seed, step)), strict=True
            ):
                results[p] = total.view_as(grads_by_worker[0][p])
        self.nonfinite = sum(int(torch.count_nonzero(~torch.isfinite(g))) for g in results)
        return results

    def wire_bytes(self) -> dict[str, int]:
        sent = self.exchange.sent_bytes if self.exchange else 0
        return {"bytes_per_step_sent": sent, "bytes_per_step_real_worker": self._real_worker_bytes}

    def _sum(
        self,
        workers: Sequence[Sequence[Tensor]],
        layers: Sequence[int],
        recipe: Recipe,
        rule: ScalingRule,
        key: tuple,
    ) -> list[Tensor]:
        numels = tuple(workers[0][p].numel() for p in layers)
        if not any(numels):
            return [workers[0][p].clone() for p in layers]
        names = [self.names[p] for p in layers]
        self._real_worker_bytes += Layout(numels, recipe.fmt.bits, self.world_size, 1).sent_bytes()
        if self.exchange:
            chosen = [[worker[p] for p in layers] for worker in workers]
            if recipe.order == "native":
                return self.exchange.native_sum(chosen)
            return self.exchange.sum_layers(chosen, names, recipe, rule, key=key)[0]
        if recipe.order == "native":
            return [torch.stack([worker[p] for worker in workers]).sum(0) for p in layers]
        stacks = [torch.stack([worker[p] for worker in workers]) for p in layers]
        return emulate_layers(stacks, names, recipe, rule, key=key)[0]


def _plain(full_precision: Mapping[str, Any] | None) -> dict[str, Any]:
    given = dict(full_precision or {})
    return {**given, "layers": tuple(given.get("layers", ()))}
