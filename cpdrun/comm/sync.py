"""Gradient synchronisation in a number format: the training loop calls it once a step, DDP once a bucket."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from custom_fp import Format
from torch import Tensor

from cpdrun.comm.base import GradientSync
from cpdrun.comm.codec import Draw
from cpdrun.comm.emulation import emulate_layers
from cpdrun.comm.exchange import Exchange
from cpdrun.comm.feedback import ErrorFeedback
from cpdrun.comm.hybrid import FullPrecision
from cpdrun.comm.layout import Layout
from cpdrun.comm.recipe import FP32, Recipe
from cpdrun.comm.scaling import NoScaling, ScalingRule


class AllReduceSync(GradientSync):
    """The mean gradient of N workers, summed in a format and a stated order.

    The run gives: format (or its name), scaling (a rule, None for none), world_size = N, seed,
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
        error_feedback: bool,
        scaling: ScalingRule | None = None,
        seed: int = 0,
        full_precision: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.recipe = Recipe(Format.parse(format), order, group_size, kahan, rounding, overflow)
        self.recipe.groups(world_size)
        self.rule = scaling or NoScaling()
        self.feedback = ErrorFeedback() if error_feedback else None
        self.world_size, self.seed, self.names = world_size, seed, list(parameter_names)
        self.hybrid = FullPrecision(tuple(parameter_names), epochs=epochs, **dict(full_precision or {}))
        self.group, self.rank, self.ranks = group, 0, 1
        if dist.is_initialized():
            self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        if world_size % self.ranks:
            raise ValueError(f"nproc={self.ranks} does not divide world_size={world_size}")
        self.share = world_size // self.ranks
        self.exchange = Exchange(group) if self.ranks > 1 else None
        self._step = -1
        self._real_worker_bytes = 0
        self._sent_bytes = 0

    def reduce(self, grads_by_worker: Sequence[Sequence[Tensor]], *, step: int, epoch: int) -> list[Tensor]:
        if len(grads_by_worker) != self.share:
            raise ValueError(f"{len(grads_by_worker)} workers on a rank that plays {self.share}")
        workers = [[g.detach().reshape(-1) for g in layers] for layers in grads_by_worker]
        sums = self.reduce_layers(range(len(self.names)), workers, step=step, epoch=epoch)
        self.nonfinite = sum(int(torch.count_nonzero(~torch.isfinite(g))) for g in sums)
        return [total.view_as(g) for total, g in zip(sums, grads_by_worker[0], strict=True)]

    def reduce_layers(
        self,
        layers: Sequence[int],
        workers: Sequence[Sequence[Tensor]],
        *,
        step: int,
        epoch: int,
        out: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """`reduce` for some of the parameters: workers[i][k] is the flat gradient for parameter layers[k].

        out[k]: where its sum goes; it may be workers[0][k] itself. Sums are flat.
        """
        if step != self._step:
            self._step, self._real_worker_bytes, self._sent_bytes = step, 0, 0
        sums = list(out) if out is not None else [torch.empty_like(g) for g in workers[0]]
        in_full = [self.hybrid.covers(p, epoch) for p in layers]
        for full in (False, True):
            chosen = [k for k in range(len(layers)) if in_full[k] == full]
            if not any(workers[0][k].numel() for k in chosen):
                continue
            recipe = replace(self.recipe, fmt=FP32) if full else self.recipe
            self._sum(
                [[worker[k] for k in chosen] for worker in workers],
                [self.names[layers[k]] for k in chosen],
                recipe,
                NoScaling() if full else self.rule,
                (self.seed, step),
                [sums[k] for k in chosen],
            )
        return sums

    def _sum(
        self,
        workers: Sequence[Sequence[Tensor]],
        names: Sequence[str],
        recipe: Recipe,
        rule: ScalingRule,
        key: tuple,
        out: Sequence[Tensor],
    ) -> None:
        mine = range(self.rank * self.share, (self.rank + 1) * self.share)
        if self.feedback:
            workers = [
                [self.feedback.compensate(w, name, g) for name, g in zip(names, grads, strict=True)]
                for w, grads in zip(mine, workers, strict=True)
            ]
        numels = tuple(g.numel() for g in workers[0])
        self._real_worker_bytes += Layout(numels, recipe.fmt.bits, self.world_size, 1).sent_bytes()
        if self.exchange:
            before = self.exchange.sent_bytes
            shifts = self.exchange.sum_layers(workers, names, recipe, rule, key=key, out=out)
            self._sent_bytes += self.exchange.sent_bytes - before
        else:
            stacks = [torch.stack(grads) for grads in zip(*workers, strict=True)]
            sums, shifts = emulate_layers(stacks, names, recipe, rule, key=key)
            torch._foreach_copy_(list(out), sums)
        if self.feedback:
            for w, grads in zip(mine, workers, strict=True):
                self._keep_residuals(w, names, grads, shifts, recipe, key)

    def _keep_residuals(
        self,
        worker: int,
        names: Sequence[str],
        sent: Sequence[Tensor],
        shifts: Sequence[Sequence[int]],
        recipe: Recipe,
        key: tuple,
    ) -> None:
        j, place = recipe.place(worker)
        own_names = recipe.group_names(names, self.world_size)[j]
        for name, own_name, gradient, shift in zip(names, own_names, sent, shifts[j], strict=True):
            draw = Draw((*key, own_name, "worker", place)) if recipe.rounding == "stochastic" else None
            self.feedback.keep(worker, name, gradient, shift, recipe, draw)

    def wire_bytes(self) -> dict[str, int]:
        return {
            "bytes_per_step_sent": self._sent_bytes,
            "bytes_per_step_real_worker": self._real_worker_bytes,
        }

    def state_dict(self) -> dict[str, Any]:
        state = {"scaling": self.rule.state_dict()}
        if self.feedback:
            state["residuals"] = self.feedback.state_dict(self.group, self.ranks)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rule.load_state_dict(state["scaling"])
        if self.feedback:
            mine = range(self.rank * self.share, (self.rank + 1) * self.share)
            self.feedback.load_state_dict(state["residuals"], mine)
