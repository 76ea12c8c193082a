"""Looks at a run's tensors in some of its steps, and changes nothing: a run that is observed has the bits of one that
is not. It copies, counts and draws nothing from a generator.

Legend: N workers, W of them on this rank, n elements of a layer, P parameters.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpdrun.comm.sums.magnitudes import largest_magnitude
from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable
from cpdrun.record import RunDir
from cpdrun.train.build import Parts
from cpdrun.train.observe import samples
from cpdrun.train.observe.modules import Watched, modules_of
from cpdrun.train.observe.observation import Observation, Seen, merged
from cpdrun.train.observe.tables import tables

OWN_WEIGHTS = "gradient, weight, update: each worker has weights of its own: not seen"


def steps_to_see(observe: int, steps: int) -> list[int]:
    """So many of a run's steps, evenly spread, the first and the last among them; all where it has no more."""
    if observe < 1 or steps < 1:
        return []
    n = min(observe, steps)
    return [round(i * (steps - 1) / max(1, n - 1)) for i in range(n)]


class Observer:
    """Of one run, on one rank. A learner tells it what there is to see in a step (`begin`, `gradients`, `end`); the
    loop has it written."""

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, run: RunDir):
        self.workers, self.run = workers, run
        self.due = frozenset(steps_to_see(config.get("observe", 0), parts.course.steps))
        self.parameters = trainable(parts.model) if self.due else {}
        self.layers = len(self.parameters)
        self.shared = parts.learner.shares_weights
        self.found = Observation()
        self.step: int | None = None  # that is being looked at
        self.here: dict[str, dict[str, Seen]] = {}
        self.weights: list[Tensor] = []
        self.fresh: list[int] = []  # steps that no file has yet
        self.watched: Watched | None = None
        if self.due:
            self.found.about = {
                "world_size": workers.world_size,
                "steps": parts.course.steps,
                "steps_an_epoch": parts.course.S,
                "epochs": parts.course.epochs,
                "loss_scale": parts.precision.loss_scale.value,
                "layers": list(self.parameters),
                "modules": modules_of(parts.model),
            }
            self.watched = Watched(parts.model, workers.mine.start == 0)
            if not self.shared:
                self.found.unseen = [OWN_WEIGHTS]

    def goes_on(self, step: int) -> None:
        """The run starts at this step, or goes on from there: what its files have of earlier ones is kept."""
        if not self.due or self.workers.rank != 0:
            return
        if step == 0:
            shutil.rmtree(self.run.observed_parts, ignore_errors=True)
            return
        whole, parts = self.run.observed, sorted(self.run.observed_parts.glob("*.npz"))
        for path in (*([whole] if whole.exists() or not parts else []), *parts):
            try:
                self.found.of_steps |= Observation.load(path).before(step).of_steps
            except (OSError, ValueError) as error:
                print(f"observe: what was seen before step {step} is lost ({error})", flush=True)

    def begin(self, step: int) -> None:
        """Before the workers of a step see their batches."""
        if step not in self.due:
            return
        self.step, self.here = step, {}
        if self.shared:
            self.weights = [p.detach().clone() for p in self.parameters.values()]
        self.watched.open()

    def gradients(self, stacks_WxP: Sequence[Tensor]) -> None:
        """As they are exchanged: (W, ...) of each parameter, divided by N. Collective where it is a step to see."""
        if self.step is None:
            return
        of_layers = [stack.detach().reshape(len(stack), -1) for stack in stacks_WxP]
        found = dict(zip(self.parameters, tables(of_layers), strict=True))
        exact = self._sums(of_layers)
        for (name, table), g_Wxn, sum_n in zip(found.items(), of_layers, exact, strict=True):
            seen = _seen(table, g_Wxn, g_Wxn.shape[1], self._gradient_sample(g_Wxn, sum_n))
            self.here.setdefault("gradient", {})[name] = seen

    def end(self) -> None:
        """After the optimizer's step."""
        if self.step is None:
            return
        looked: list[tuple[str, str, Tensor]] = []  # role, layer, values
        if self.workers.rank == 0 and self.shared:
            of_layers = zip(self.parameters.items(), self.weights, strict=True)
            before = [(name, p.detach(), weight) for (name, p), weight in of_layers]
            looked += [("weight", name, weight) for name, _, weight in before]
            looked += [("update", name, after - weight) for name, after, weight in before]
        operands = self.watched.close()
        self.found.about["attends"] = self.watched.attends
        looked += [(role, name, x) for role, of in operands.items() for name, x in of.items()]
        for (role, name, x), table in zip(looked, tables([x for _, _, x in looked]), strict=True):
            seen = _seen(table, x, x.numel(), {"values": self._sample(x.reshape(-1))})
            self.here.setdefault(role, {})[name] = seen
        parts = self.workers.gather({self.workers.rank: self.here})
        if parts:
            self.found.of_steps[self.step] = merged(parts[rank] for rank in sorted(parts))
        self.fresh.append(self.step)
        self.step, self.here, self.weights = None, {}, []

    def keep(self) -> None:
        """What was seen since the last time goes into a file beside the run's, by rank 0: a checkpoint is written, and
        a run that goes on from there needs it."""
        if self.fresh and self.workers.rank == 0:
            new = Observation(
                self.found.about, {s: self.found.of_steps[s] for s in self.fresh}, self.found.unseen
            )
            self.run.observed_parts.mkdir(exist_ok=True)
            new.save(self.run.observed_parts / f"{self.fresh[0]:012}.npz")
        self.fresh = []

    def write(self) -> None:
        """All that was seen goes into the run's file, by rank 0: the run ends, or stops."""
        if self.found.of_steps and self.workers.rank == 0:
            self.found.save(self.run.observed)
            shutil.rmtree(self.run.observed_parts, ignore_errors=True)
        self.fresh = []

    def _places(self, numel: int, device: torch.device) -> Tensor:
        return samples.places(numel, samples.size(numel, self.layers, self.workers.world_size), device)

    def _sample(self, x_n: Tensor) -> np.ndarray:
        return x_n[self._places(x_n.numel(), x_n.device)].float().cpu().numpy()

    def _sums(self, of_layers: Sequence[Tensor]) -> list[Tensor]:
        """The sum over all N workers, to find its largest element. Collective."""
        sums = [g_Wxn.sum(0) for g_Wxn in of_layers]
        if self.workers.ranks > 1:
            flat = self.workers.sum_of_disjoint(torch.cat(sums))
            sums = list(flat.split([total.numel() for total in sums]))
        return sums

    def _gradient_sample(self, g_Wxn: Tensor, sum_n: Tensor) -> dict[str, np.ndarray]:
        """Of my workers. extremes: the element whose sum is the largest, from which upper levels of an order take their
        shifts."""
        largest_sum = sum_n.abs().nan_to_num_(0.0, 0.0, 0.0)
        # a list of places and not one, which would be a view of a buffer that later steps write to
        where = largest_sum.argmax().reshape(1) if len(sum_n) else slice(0)
        at = self._places(g_Wxn.shape[1], g_Wxn.device)
        of_each = {
            "values": g_Wxn[:, at],
            "extremes": g_Wxn[:, where],
            "maxima": torch.stack([largest_magnitude(g_n) for g_n in g_Wxn]),
        }
        return {what: values.float().cpu().numpy() for what, values in of_each.items()}


def _seen(table: tuple[Tensor, Tensor], x: Tensor, numel: int, of_samples: dict[str, np.ndarray]) -> Seen:
    binades, rows = table[0].numpy().astype(np.int16), table[1].numpy()
    largest = float(largest_magnitude(x))
    nonfinite = 0
    if x.numel() and not bool(torch.isfinite(x.sum())):
        nonfinite = int((~torch.isfinite(x)).sum())
    zeros = x.numel() - nonfinite - round(rows[:, 0].sum())
    return Seen(binades, rows, zeros, nonfinite, largest, numel, of_samples)
