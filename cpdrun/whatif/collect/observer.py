"""Looks at a run's tensors in some of its steps, and changes nothing: a run that is observed has the bits of one that
is not. It copies, counts and draws nothing from a generator.

Legend: N workers, W of them on this rank, P parameters.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable
from cpdrun.record import RunDir
from cpdrun.train.build import Parts
from cpdrun.whatif.collect.modules import Watched, modules_of
from cpdrun.whatif.collect.observation import Observation, merged
from cpdrun.whatif.collect.snapshot import Look

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
        self.shared = parts.learner.shares_weights
        self.found = Observation()
        self.step: int | None = None  # that is being looked at
        self.look = Look(workers, 0)
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
        self.step, self.look = step, Look(self.workers, len(self.parameters))
        if self.shared:
            self.weights = [p.detach().clone() for p in self.parameters.values()]
        self.watched.open()

    def gradients(self, stacks_WxP: Sequence[Tensor]) -> None:
        """As they are exchanged: (W, ...) of each parameter, divided by N. Collective where it is a step to see."""
        if self.step is None:
            return
        self.look.gradients(list(self.parameters), stacks_WxP)

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
        self.look.tensors(looked)
        parts = self.workers.gather({self.workers.rank: self.look.seen})
        if parts:
            self.found.of_steps[self.step] = merged(parts[rank] for rank in sorted(parts))
        self.fresh.append(self.step)
        self.step, self.weights = None, []

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
