"""All-reduce of gradients in a number format.

The training loop calls the all-reduce once per step. DDP calls it once per bucket.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from cpdrun.comm.full_precision import FullPrecision
from cpdrun.comm.sums import summation_of
from cpdrun.comm.sums.error_feedback import ErrorFeedback
from cpdrun.comm.sums.scaling import ScalingRule, Shifts
from cpdrun.comm.sums.sum import Sum, accepts_sum_options
from cpdrun.comm.sums.summation import Layers, Shards, Summation
from cpdrun.comm.sync.base import GradientSync
from cpdrun.comm.sync.statistics import count_hidden, count_nonfinite, hides_nonfinite, layer_statistics
from cpdrun.comm.workers import Workers


class AllReduceSync(GradientSync):
    """Computes the mean gradient of N workers, summed in a number format and a defined order.

    If torch.distributed is initialized, the workers are divided among its ranks. Otherwise, this process emulates all
    workers.

    Args:
        format: The name of the format, or a `Sum`.
        world_size: The number of workers N.
        parameter_names: The names of the parameters.
        scaling: The scaling rule, or None for no scaling.
        seed: The seed of stochastic rounding.
        full_precision: The settings of `FullPrecision`.
        epochs: The number of epochs of the run.
        group: The process group, or None for the default group.
        options: Settings of `Sum`. conf/sync/all_reduce.yaml describes them.

    Raises:
        ValueError: The settings do not fit together.
    """

    @accepts_sum_options
    def __init__(
        self,
        *,
        format: str | NumberFormat | Sum,
        world_size: int,
        parameter_names: Sequence[str],
        scaling: ScalingRule | None = None,
        seed: int = 0,
        full_precision: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        self.sum = Sum.of(format, **options)
        self.workers = Workers.of_group(world_size, group)
        self.shifts = Shifts(scaling)
        self.summation = summation_of(self.sum, self.workers, self.shifts)
        self.in_full_precision = summation_of(self.sum.in_full_precision(), self.workers)
        self.longest_chain = self.summation.longest_chain
        self.feedback = ErrorFeedback() if self.sum.error_feedback else None
        self.seed, self.names = seed, list(parameter_names)
        self.hybrid = FullPrecision(tuple(parameter_names), epochs=epochs, **dict(full_precision or {}))
        self.nothing_to_do = world_size == 1 and self.sum.is_plain and not self.shifts.scale
        self._shapes: list[Tensor] | None = None  # empty tensors with the shapes of the parameters
        self._step = -1
        self._latest: dict[
            str, tuple[Summation, list[int]]
        ] = {}  # how each layer was last summed, and the shifts of its groups
        self._real_worker_bytes = 0
        self._sent_bytes = 0
        self._hidden = 0  # the number of inf and NaN of this rank's workers that became finite numbers

    def reduce_stacked(self, stacks: Sequence[Tensor], *, step: int, epoch: int) -> list[Tensor]:
        flat = self.workers.rows(stacks, len(self.names))
        if self.nothing_to_do and stacks:
            return self._single_gradient(stacks)
        sums = [torch.empty_like(stack_Lxn[0]) for stack_Lxn in flat]
        self._hidden = 0
        self.reduce_layers(range(len(self.names)), flat, step=step, epoch=epoch, out=sums)
        if self.workers.ranks > 1 and stacks and any(hides_nonfinite(self.sum)):
            self._hidden = self.workers.total(self._hidden, stacks[0].device)
        self.nonfinite = count_nonfinite(sums) + self._hidden
        return [total.view(stack.shape[1:]) for total, stack in zip(sums, stacks, strict=True)]

    def _single_gradient(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        """Return +0 + g for all layers with one operation, which reduces the overhead for small models."""
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
        shards: Shards | None = None,
    ) -> None:
        """Reduce the gradients of some parameters, such as a bucket of DDP. Collective.

        Args:
            layers: The indices of the parameters.
            stacks: For each parameter, the gradients (L, n) of this rank's L workers, float32, contiguous.
            step: The number of the optimizer step.
            epoch: The epoch.
            out: For each parameter, memory (n,) for the sum, float32, contiguous. It may be the first row of the stack.
            shards: The shards of these parameters, if each rank needs only the part that it owns (see `Layers`).
        """
        if step != self._step:
            self._step, self._real_worker_bytes, self._sent_bytes = step, 0, 0
        in_full = [self.hybrid.covers(p, epoch) for p in layers]
        for full in (False, True):
            chosen = [k for k in range(len(layers)) if in_full[k] == full]
            if any(stacks[k].numel() for k in chosen):
                names, stays = [self.names[layers[k]] for k in chosen], shards and shards.select(chosen)
                values = [stacks[k] for k in chosen], [out[k] for k in chosen]
                what = Layers(names, *values, (self.seed, step), stays)
                self._sum(what, self.in_full_precision if full else self.summation)

    def _sum(self, layers: Layers, summation: Summation) -> None:
        self._hidden += count_hidden(layers.stacks, summation.sum)
        if self.feedback:
            layers = layers.together()
            layers = replace(layers, stacks=list(map(self.feedback.compensate, layers.names, layers.stacks)))
        done = summation.run(layers)
        self._real_worker_bytes += done.real_worker_bytes
        self._sent_bytes += done.sent_bytes
        for p, name in enumerate(layers.names):
            self._latest[name] = summation, [of_group[p] for of_group in done.shifts]
            if self.feedback:
                self._keep_residual(name, layers.stacks[p], layers.key)

    def _keep_residual(self, name: str, sent_Lxn: Tensor, key: tuple) -> None:
        assert self.feedback is not None
        for i in range(self.workers.share):
            self.feedback.keep(name, i, sent_Lxn[i], self._sent(name, i, sent_Lxn[i], key))

    def sent_by(self, name: str, i: int, gradient_n: Tensor, step: int) -> Tensor:
        """Return the values of a layer's gradient that other workers received in the latest sum of the layer.

        The gradient belongs to this rank's i-th worker.
        """
        return self._sent(name, i, gradient_n, (self.seed, step))

    def _sent(self, name: str, i: int, gradient_n: Tensor, key: tuple) -> Tensor:
        summation, shifts = self._latest[name]
        worker = self.workers.local[i]
        return summation.sent_by(worker, gradient_n, name, shifts[summation.group_of(worker)], key)

    def statistics(
        self, stacks: Sequence[Tensor], mean_gradient: Sequence[Tensor]
    ) -> list[dict[str, str | int | float | None]]:
        rows = []
        for p, name in enumerate(self.names):
            summation, shifts = self._latest.get(name, (self.summation, [0] * self.workers.world_size))
            own_shifts = [shifts[summation.group_of(worker)] for worker in self.workers.local]
            gradients, how = stacks[p].detach(), summation.sum
            row = layer_statistics(gradients, mean_gradient[p], own_shifts, how, self.workers)
            rows.append({"layer": name, "format": how.fmt.name, "shift": max(shifts), **row})
        return rows

    def wire_bytes(self) -> dict[str, int]:
        return {
            "bytes_per_step_sent": self._sent_bytes,
            "bytes_per_step_real_worker": self._real_worker_bytes,
        }

    def state_dict(self) -> dict[str, Any]:
        state = {"scaling": self.shifts.magnitudes.state_dict()}
        if self.feedback:
            state["residuals"] = self.feedback.state_dict(self.workers)
        return state

    def go_on_from(self, other: "AllReduceSync") -> None:
        """Copy the state of another synchronization for the layers that both have."""
        self.shifts.magnitudes, self.feedback = other.shifts.magnitudes, other.feedback

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shifts.magnitudes.load_state_dict(state["scaling"])
        if self.feedback:
            self.feedback.load_state_dict(state["residuals"], self.workers)


def decoded(*, requantise: str, error_feedback: bool, **run_settings: Any) -> AllReduceSync:
    """Create an `AllReduceSync` that decodes gradients, adds them in float32, and quantizes them again.

    conf/sync/requantised.yaml uses this function.
    """
    return AllReduceSync(requantise=requantise, error_feedback=error_feedback, **run_settings)
