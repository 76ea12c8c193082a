"""Gradient synchronisation in a number format: the training loop calls it once a step, DDP once a bucket."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from custom_fp.formats.names import AnyFormat
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from cpdrun.comm.base import GradientSync
from cpdrun.comm.hybrid import FullPrecision
from cpdrun.comm.statistics import count_hidden, count_nonfinite, hides_nonfinite, layer_statistics
from cpdrun.comm.sums.codec import Draw, quantize_scaled, scale
from cpdrun.comm.sums.emulation import emulate_layers
from cpdrun.comm.sums.exchange import Exchange
from cpdrun.comm.sums.feedback import ErrorFeedback
from cpdrun.comm.sums.recipe import FP32, Recipe
from cpdrun.comm.sums.requantised import Requantised, recipe_for, sum_layers
from cpdrun.comm.sums.scaling import NoScaling, ScalingRule, agreement_bytes
from cpdrun.comm.wire.layout import Layout
from cpdrun.comm.workers import Workers


def in_full_precision(recipe: Recipe | Requantised) -> Recipe:
    """The same in fp32."""
    return Recipe(FP32) if isinstance(recipe, Requantised) else replace(recipe, fmt=FP32)


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
        format: str | AnyFormat | Requantised,
        world_size: int,
        parameter_names: Sequence[str],
        order: str,
        group_size: int | str | None,
        kahan: bool,
        rounding: str,
        overflow: str,
        error_feedback: bool,
        compat: str | None = None,
        scaling: ScalingRule | None = None,
        seed: int = 0,
        full_precision: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.recipe = recipe_for(
            format,
            order=order,
            group_size=group_size,
            kahan=kahan,
            rounding=rounding,
            overflow=overflow,
            scaled=scaling is not None,
            n_workers=world_size,
            compat=compat,
        )
        if compat and error_feedback:
            raise ValueError(f"error_feedback=true with compat={compat}: its code has none")
        self.longest_chain = self.recipe.longest_chain(world_size)
        self.rule = scaling or NoScaling()
        self.feedback = ErrorFeedback() if error_feedback else None
        self.world_size, self.seed, self.names = world_size, seed, list(parameter_names)
        self.hybrid = FullPrecision(tuple(parameter_names), epochs=epochs, **dict(full_precision or {}))
        self.workers = Workers.of_group(world_size, group)
        self.exchange = Exchange(group) if self.workers.ranks > 1 else None
        alone = world_size == 1 and self.exchange is None and not error_feedback
        self._shapes: list[Tensor] | None = None  # of the parameters
        self.nothing_to_do = alone and self.recipe == Recipe(FP32) and type(self.rule) is NoScaling
        self._step = -1
        self._latest: dict[str, tuple[Recipe, list[int]]] = {}  # how each layer went, last time
        self._real_worker_bytes = 0
        self._sent_bytes = 0
        self._hidden = 0  # inf and NaN of this rank's workers that the format made numbers of

    def reduce(self, grads_by_worker: Sequence[Sequence[Tensor]], *, step: int, epoch: int) -> list[Tensor]:
        stacks = [torch.stack(grads) for grads in zip(*grads_by_worker, strict=True)]
        return self.reduce_stacked(stacks, step=step, epoch=epoch)

    def reduce_stacked(self, stacks: Sequence[Tensor], *, step: int, epoch: int) -> list[Tensor]:
        if self.nothing_to_do:
            return self._own_gradient(stacks)
        if any(len(stack) != self.workers.share for stack in stacks):
            raise ValueError(f"{len(stacks[0])} workers on a rank that plays {self.workers.share}")
        flat = [stack.detach().reshape(self.workers.share, -1) for stack in stacks]
        sums = [torch.empty_like(stack_Lxn[0]) for stack_Lxn in flat]
        self._hidden = 0
        self.reduce_layers(range(len(self.names)), flat, step=step, epoch=epoch, out=sums)
        self.nonfinite = count_nonfinite(sums) + self._hidden_of_all(stacks[0].device)
        return [total.view(stack.shape[1:]) for total, stack in zip(sums, stacks, strict=True)]

    def _hidden_of_all(self, device: torch.device) -> int:
        """What inf and NaN all workers had that the sums do not show. Collective where the format hides them."""
        if self.workers.ranks == 1 or not hides_nonfinite(self.recipe):
            return self._hidden
        hidden = torch.tensor(self._hidden, dtype=torch.int64, device=device)
        dist.all_reduce(hidden, group=self.workers.group)
        return int(hidden)

    def _own_gradient(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        """The definition's +0 + g, for all layers at once: a step of a small model is a matter of overhead."""
        if self._shapes is None:
            self._shapes = [torch.empty(stack.shape[1:], device="meta") for stack in stacks]
        flat_n = _flatten_dense_tensors(stacks).add_(0.0)
        self.nonfinite = count_nonfinite([flat_n])
        return list(_unflatten_dense_tensors(flat_n, self._shapes))

    def reduce_layers(
        self,
        layers: Sequence[int],
        stacks: Sequence[Tensor],
        *,
        step: int,
        epoch: int,
        out: Sequence[Tensor],
    ) -> None:
        """`reduce` for some of the parameters, as DDP's buckets hold them.

        stacks[k]: (L, n) float32 gradients of this rank's L workers for parameter layers[k], contiguous.
        out[k]: (n,) float32, contiguous, where the sum goes; it may be stacks[k][0] itself.
        """
        if step != self._step:
            self._step, self._real_worker_bytes, self._sent_bytes = step, 0, 0
        in_full = [self.hybrid.covers(p, epoch) for p in layers]
        for full in (False, True):
            chosen = [k for k in range(len(layers)) if in_full[k] == full]
            if any(stacks[k].numel() for k in chosen):
                recipe = in_full_precision(self.recipe) if full else self.recipe
                self._sum(
                    [stacks[k] for k in chosen],
                    [self.names[layers[k]] for k in chosen],
                    recipe,
                    NoScaling() if full else self.rule,
                    [out[k] for k in chosen],
                )

    def _sum(
        self,
        stacks: Sequence[Tensor],
        names: Sequence[str],
        recipe: Recipe,
        rule: ScalingRule,
        out: Sequence[Tensor],
    ) -> None:
        key = (self.seed, self._step)
        self._hidden += count_hidden(stacks, recipe)
        if self.feedback:
            stacks = [
                self.feedback.compensate(name, stack) for name, stack in zip(names, stacks, strict=True)
            ]
        if isinstance(recipe, Requantised):
            sent = sum_layers(stacks, recipe, self.workers, out=out)
            self._real_worker_bytes += sent.real_worker
            self._sent_bytes += sent.sent
            shifts = [[0] * len(names)]
        else:
            shifts = self._sum_floats(stacks, names, recipe, rule, key, out)
        for k, name in enumerate(names):
            self._latest[name] = recipe, [of_group[k] for of_group in shifts]
            if self.feedback:
                self._keep_residual(name, stacks[k], key)

    def _sum_floats(
        self,
        stacks: Sequence[Tensor],
        names: Sequence[str],
        recipe: Recipe,
        rule: ScalingRule,
        key: tuple,
        out: Sequence[Tensor],
    ) -> list[list[int]]:
        """In a format without scales; the shifts with which the gradients were rounded, by group and layer."""
        numels = tuple(stack.shape[1] for stack in stacks)
        self._real_worker_bytes += Layout(numels, recipe.wire.fmt.bits, self.world_size, 1).sent_bytes()
        if self.exchange:
            before, agreed_before = self.exchange.sent_bytes, self.exchange.agreed
            workers = [[stack[i] for stack in stacks] for i in range(self.workers.share)]
            shifts = self.exchange.sum_layers(workers, names, recipe, rule, key=key, out=out)
            self._sent_bytes += self.exchange.sent_bytes - before
            agreed = self.exchange.agreed - agreed_before
        else:
            sums, shifts, agreed = emulate_layers(stacks, names, recipe, rule, key=key)
            torch._foreach_copy_(list(out), sums)
        self._real_worker_bytes += agreement_bytes(agreed, self.world_size)
        return shifts

    def _keep_residual(self, name: str, sent_Lxn: Tensor, key: tuple) -> None:
        recipe, shifts = self._latest[name]
        marks = recipe.levels(self.world_size)[0].marks
        for i, worker in enumerate(self.workers.mine):
            j, place = recipe.place(worker, self.world_size)
            draw = None
            if recipe.rounding == "stochastic":
                draw = Draw((*key, name + marks[j], "worker", place))
            sent_n = scale(quantize_scaled(sent_Lxn[i], shifts[j], recipe, draw), -shifts[j])
            self.feedback.keep(name, i, sent_Lxn[i], sent_n)

    def statistics(
        self, stacks: Sequence[Tensor], mean_gradient: Sequence[Tensor]
    ) -> list[dict[str, str | int | float | None]]:
        rows = []
        for p, name in enumerate(self.names):
            recipe, shifts = self._latest.get(name, (self.recipe, [0] * self.world_size))
            own_shifts = [shifts[recipe.place(worker, self.world_size)[0]] for worker in self.workers.mine]
            gradients = stacks[p].detach()
            row = layer_statistics(gradients, mean_gradient[p], own_shifts, recipe, self.workers)
            rows.append({"layer": name, "format": recipe.fmt.name, "shift": max(shifts), **row})
        return rows

    def wire_bytes(self) -> dict[str, int]:
        return {
            "bytes_per_step_sent": self._sent_bytes,
            "bytes_per_step_real_worker": self._real_worker_bytes,
        }

    def state_dict(self) -> dict[str, Any]:
        state = {"scaling": self.rule.state_dict()}
        if self.feedback:
            state["residuals"] = self.feedback.state_dict(self.workers)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rule.load_state_dict(state["scaling"])
        if self.feedback:
            self.feedback.load_state_dict(state["residuals"], self.workers)
