"""Observe a run's tensors at some of its steps.

The observer only copies and counts values, and draws no random numbers. Observing a run does not change its results.

Shapes: N workers, W of them on this rank, P parameters.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cpdrun.comm.sums.magnitudes import largest_magnitude
from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable
from cpdrun.record import RunDir
from cpdrun.whatif.collect.modules import OperandRecorder, describe_layers
from cpdrun.whatif.collect.moments import tables
from cpdrun.whatif.collect.observation import Observation, TensorStatistics, merge

if TYPE_CHECKING:
    from cpdrun.train.build import Parts


OWN_WEIGHTS = "gradient, weight, update: each worker has its own weights"


def observed_steps(observe: int, steps: int) -> list[int]:
    """Return `observe` evenly spaced steps of a run with `steps` steps.

    The first and the last step are included. If the run has fewer steps, all of them are returned. If an argument is
    below 1, the list is empty.
    """
    if observe < 1 or steps < 1:
        return []
    n = min(observe, steps)
    return [round(i * (steps - 1) / max(1, n - 1)) for i in range(n)]


class Observer:
    """Observe the tensors of a run on one rank.

    The training loop calls `begin` before and `end` after each step, and `save_part` and `save` to write the
    observation. The learner calls `gradients` at each step. The config's key `observe` is the number of steps to
    observe.

    Attributes:
        due: The steps to observe.
        parameters: The trainable parameters keyed by name; empty if no step is due.
        shared: Whether all workers share the same weights. If not, only operands are observed.
        found: The observation so far. Only rank 0 has the observed steps.
        step: The step that is being observed; None between observed steps.
        snapshot: The statistics of that step.
        weights: Copies of the parameters before that step.
        unsaved: The observed steps that no file contains yet.
        watched: The recorder of the layers' operands; None if no step is due.
    """

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, run: RunDir):
        self.workers, self.run = workers, run
        self.due = frozenset(observed_steps(config.get("observe", 0), parts.duration.steps))
        self.parameters = trainable(parts.model) if self.due else {}
        learner: Any = parts.learner
        self.shared = learner.shares_weights
        self.found = Observation()
        self.step: int | None = None
        self.snapshot = Snapshot(workers, 0)
        self.weights: list[Tensor] = []
        self.unsaved: list[int] = []
        self.watched: OperandRecorder | None = None
        if self.due:
            self.found.about = {
                "world_size": workers.world_size,
                "steps": parts.duration.steps,
                "steps_an_epoch": parts.duration.steps_per_epoch,
                "epochs": parts.duration.epochs,
                "loss_scale": parts.precision.loss_scale.value,
                "layers": list(self.parameters),
                "modules": describe_layers(parts.model),
            }
            self.watched = OperandRecorder(parts.model, workers.local.start == 0)
            if not self.shared:
                self.found.unobserved = [OWN_WEIGHTS]

    def resume(self, step: int) -> None:
        """Prepare to start the run, or to resume it from `step`.

        At step 0, rank 0 deletes what an earlier attempt left. At a later step, it loads the observation of the earlier
        steps. If a file cannot be read, a message is printed, and its steps are lost.
        """
        if not self.due or self.workers.rank != 0:
            return
        if step == 0:
            shutil.rmtree(self.run.observed_parts, ignore_errors=True)
            return
        whole, parts = self.run.observed, sorted(self.run.observed_parts.glob("*.npz"))
        for path in (*([whole] if whole.exists() or not parts else []), *parts):
            try:
                self.found.by_step |= Observation.load(path).before(step).by_step
            except (OSError, ValueError) as error:
                print(f"observe: the observations before step {step} are lost ({error})", flush=True)

    def begin(self, step: int) -> None:
        """Start to observe a step if it is due. Call this before workers receive their batches."""
        if step not in self.due:
            return
        self.step, self.snapshot = step, Snapshot(self.workers, len(self.parameters))
        if self.shared:
            self.weights = [p.detach().clone() for p in self.parameters.values()]
        assert self.watched is not None
        self.watched.open()

    def gradients(self, stacks_WxP: Sequence[Tensor]) -> None:
        """Record the workers' gradients, divided by N. All ranks must call this together.

        stacks_WxP contains a tensor of shape (W, ...) for each of the P parameters.
        """
        if self.step is None:
            return
        self.snapshot.record_gradients(list(self.parameters), stacks_WxP)

    def end(self) -> None:
        """Record weights, updates, and operands after the optimizer's step. All ranks must call this together."""
        if self.step is None:
            return
        tensors: list[tuple[str, str, Tensor]] = []  # role, layer, values
        if self.workers.rank == 0 and self.shared:
            of_layers = zip(self.parameters.items(), self.weights, strict=True)
            before = [(name, p.detach(), weight) for (name, p), weight in of_layers]
            tensors += [("weight", name, weight) for name, _, weight in before]
            tensors += [("update", name, after - weight) for name, after, weight in before]
        assert self.watched is not None
        operands = self.watched.close()
        self.found.about["attends"] = self.watched.attends
        tensors += [(role, name, x) for role, of in operands.items() for name, x in of.items()]
        self.snapshot.record_tensors(tensors)
        parts = self.workers.gather({self.workers.rank: self.snapshot.statistics})
        if parts:
            self.found.by_step[self.step] = merge(parts[rank] for rank in sorted(parts))
        self.unsaved.append(self.step)
        self.step, self.weights = None, []

    def save_part(self) -> None:
        """Write the newly observed steps to a separate file, on rank 0.

        Call this with each checkpoint. A run that resumes from the checkpoint needs the file.
        """
        if self.unsaved and self.workers.rank == 0:
            new = Observation(
                self.found.about, {s: self.found.by_step[s] for s in self.unsaved}, self.found.unobserved
            )
            self.run.observed_parts.mkdir(exist_ok=True)
            new.save(self.run.observed_parts / f"{self.unsaved[0]:012}.npz")
        self.unsaved = []

    def save(self) -> None:
        """Write the whole observation, on rank 0. Call this when the run ends or stops."""
        if self.found.by_step and self.workers.rank == 0:
            self.found.save(self.run.observed)
            shutil.rmtree(self.run.observed_parts, ignore_errors=True)
        self.unsaved = []


# The number of neighboring elements in a block. Samples consist of whole blocks.
RUN = 32

# The largest sample of one layer and one worker, in elements.
MAX_SAMPLED_ELEMENTS = 1024

# The target for all samples of one step, in elements (8 MiB). Many workers and layers make each sample smaller, down to
# one block.
MAX_SAMPLED_VALUES = 1 << 21


def sample_size(numel: int, layers: int, workers: int) -> int:
    """Return how many elements of a layer to sample: a multiple of RUN, or all."""
    most = min(MAX_SAMPLED_ELEMENTS, max(RUN, MAX_SAMPLED_VALUES // max(1, layers * workers) // RUN * RUN))
    return min(numel, most)


@lru_cache(maxsize=1024)
def sample_places(numel: int, elements: int, device: torch.device) -> Tensor:
    """Return the indices of the elements to sample, (elements,) int64, ascending.

    They form evenly spaced blocks of RUN neighbors, or all elements if `elements` is at least `numel`. The tensor is
    cached and must not be changed.
    """
    if elements >= numel:
        return torch.arange(numel, device=device)
    runs = elements // RUN
    all_runs = numel // RUN
    first = torch.arange(runs, device=device) * all_runs // runs * RUN
    return (first[:, None] + torch.arange(RUN, device=device)).reshape(-1)


class Snapshot:
    """Collect the statistics of one step on one rank, as statistics[role][layer].

    The number of the model's parameters, `layers`, limits the size of the samples.
    """

    def __init__(self, workers: Workers, layers: int) -> None:
        self.workers, self.layers = workers, layers
        self.statistics: dict[str, dict[str, TensorStatistics]] = {}

    def record_gradients(self, names: Sequence[str], stacks: Sequence[Tensor]) -> None:
        """Record the gradients of this rank's workers (`Observer.gradients`)."""
        of_layers = [stack.detach().reshape(len(stack), -1) for stack in stacks]
        found = self.statistics.setdefault("gradient", {})
        for name, table, g_Wxn, sum_n in zip(
            names, tables(of_layers), of_layers, self._sums(of_layers), strict=True
        ):
            found[name] = _statistics(table, g_Wxn, g_Wxn.shape[1], self._gradient_sample(g_Wxn, sum_n))

    def record_tensors(self, tensors: Sequence[tuple[str, str, Tensor]]) -> None:
        """Record tensors, given as (role, layer name, values), of roles other than gradient."""
        for (role, name, x), table in zip(tensors, tables([x for _, _, x in tensors]), strict=True):
            values = self._sample(x.detach().reshape(-1))
            self.statistics.setdefault(role, {})[name] = _statistics(
                table, x.detach(), x.numel(), {"values": values}
            )

    def _places(self, numel: int, device: torch.device) -> Tensor:
        return sample_places(numel, sample_size(numel, self.layers, self.workers.world_size), device)

    def _sample(self, x_n: Tensor) -> np.ndarray:
        return x_n[self._places(x_n.numel(), x_n.device)].float().cpu().numpy()

    def _sums(self, of_layers: Sequence[Tensor]) -> list[Tensor]:
        """Sum each layer's gradients over all N workers, (n,).

        All ranks must call this together. The sums only serve to find the element with the largest magnitude.
        """
        sums = [g_Wxn.sum(0) for g_Wxn in of_layers]
        if self.workers.ranks > 1:
            flat = self.workers.sum_of_disjoint(torch.cat(sums))
            sums = list(flat.split([total.numel() for total in sums]))
        return sums

    def _gradient_sample(self, g_Wxn: Tensor, sum_n: Tensor) -> dict[str, np.ndarray]:
        """Return one layer's samples of this rank's workers (`TensorStatistics.samples`).

        `extremes` contains the element whose sum over all workers has the largest magnitude. After the first level,
        simulated reduction orders derive their shifts from it.
        """
        largest_sum = sum_n.abs().nan_to_num_(0.0, 0.0, 0.0)
        # Index with a tensor. An int would return a view of a buffer that later steps overwrite.
        where = largest_sum.argmax().reshape(1) if len(sum_n) else slice(0)
        at = self._places(g_Wxn.shape[1], g_Wxn.device)
        of_each = {
            "values": g_Wxn[:, at],
            "extremes": g_Wxn[:, where],
            "maxima": torch.stack([largest_magnitude(g_n) for g_n in g_Wxn]),
        }
        return {what: values.float().cpu().numpy() for what, values in of_each.items()}


def _statistics(
    table: tuple[Tensor, Tensor], x: Tensor, numel: int, of_samples: dict[str, np.ndarray]
) -> TensorStatistics:
    binades, rows = table[0].numpy().astype(np.int16), table[1].numpy()
    largest = float(largest_magnitude(x))
    nonfinite = 0
    if x.numel() and not bool(torch.isfinite(x.sum())):
        nonfinite = int((~torch.isfinite(x)).sum())
    zeros = x.numel() - nonfinite - round(rows[:, 0].sum())
    return TensorStatistics(binades, rows, zeros, nonfinite, largest, numel, of_samples)
