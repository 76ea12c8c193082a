"""The observer, which records statistics of a run's tensors in some of its steps.

The observer only copies and counts, and it draws no random numbers. Therefore an observed run is bit-identical to one
that is not observed.

Legend: N workers, W of them on this rank, P parameters.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable
from cpdrun.record import RunDir
from cpdrun.whatif.collect.modules import OperandRecorder, describe_layers
from cpdrun.whatif.collect.observation import Observation, merged
from cpdrun.whatif.collect.snapshot import Snapshot

if TYPE_CHECKING:
    from cpdrun.train.build import Parts

OWN_WEIGHTS = "gradient, weight, update: each worker has weights of its own: not seen"


def observed_steps(observe: int, steps: int) -> list[int]:
    """Return the steps to observe.

    Args:
        observe: The number of steps to observe.
        steps: The number of steps of the run.

    Returns:
        `observe` evenly spaced steps in ascending order, including the first and the last, or only the first if
        `observe` is 1. All steps if the run does not have more, and none if one of the arguments is below 1.
    """
    if observe < 1 or steps < 1:
        return []
    n = min(observe, steps)
    return [round(i * (steps - 1) / max(1, n - 1)) for i in range(n)]


class Observer:
    """Record the observation of one run on one rank.

    The training loop calls `begin` and `end` around each step, and `keep` and `write` to store the observation. The
    learner calls `gradients` in each step.

    Args:
        config: The resolved configuration. `observe` is the number of steps to observe.
        parts: The parts of the run.
        workers: The workers that this rank emulates.
        run: The folder of the run.

    Attributes:
        due: The steps to observe.
        parameters: The trainable parameters by name; empty if no step is observed.
        shared: Whether all workers share the same weights. If not, gradients and weights are not observed.
        found: The observation so far. Only rank 0 has the observed steps.
        step: The step that is being observed; None between observed steps.
        look: The snapshot of the step that is being observed.
        weights: Copies of the parameters before the step.
        fresh: The observed steps that have not been written to a file yet.
        watched: The hooks that record the operands of layers; None if no step is observed.
    """

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, run: RunDir):
        self.workers, self.run = workers, run
        self.due = frozenset(observed_steps(config.get("observe", 0), parts.course.steps))
        self.parameters = trainable(parts.model) if self.due else {}
        self.shared = parts.learner.shares_weights
        self.found = Observation()
        self.step: int | None = None
        self.look = Snapshot(workers, 0)
        self.weights: list[Tensor] = []
        self.fresh: list[int] = []
        self.watched: OperandRecorder | None = None
        if self.due:
            self.found.about = {
                "world_size": workers.world_size,
                "steps": parts.course.steps,
                "steps_an_epoch": parts.course.S,
                "epochs": parts.course.epochs,
                "loss_scale": parts.precision.loss_scale.value,
                "layers": list(self.parameters),
                "modules": describe_layers(parts.model),
            }
            self.watched = OperandRecorder(parts.model, workers.mine.start == 0)
            if not self.shared:
                self.found.unseen = [OWN_WEIGHTS]

    def goes_on(self, step: int) -> None:
        """Prepare to start the run, or to resume it from `step`.

        At step 0, rank 0 deletes the files that an earlier attempt left in the folder of parts. At a later step, it
        loads the observations of the steps before `step` from the run's files. An observation that cannot be read is
        lost, and a message is printed.
        """
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
        """Start observing a step if it is due. Call this before the workers receive their batches."""
        if step not in self.due:
            return
        self.step, self.look = step, Snapshot(self.workers, len(self.parameters))
        if self.shared:
            self.weights = [p.detach().clone() for p in self.parameters.values()]
        self.watched.open()

    def gradients(self, stacks_WxP: Sequence[Tensor]) -> None:
        """Record the gradients that the workers exchange. Collective in steps that are observed.

        Args:
            stacks_WxP: One tensor of shape (W, ...) per parameter: the gradients of this rank's W workers, divided by
                the total number N of workers.
        """
        if self.step is None:
            return
        self.look.gradients(list(self.parameters), stacks_WxP)

    def end(self) -> None:
        """Record weights, updates and operands after the optimizer's step. Collective in steps that are observed."""
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
        """Write the steps that were observed since the last call to a separate file on rank 0.

        Call this when a checkpoint is written. A run that resumes from the checkpoint needs the file.
        """
        if self.fresh and self.workers.rank == 0:
            new = Observation(
                self.found.about, {s: self.found.of_steps[s] for s in self.fresh}, self.found.unseen
            )
            self.run.observed_parts.mkdir(exist_ok=True)
            new.save(self.run.observed_parts / f"{self.fresh[0]:012}.npz")
        self.fresh = []

    def write(self) -> None:
        """Write the whole observation to the run's file on rank 0 when the run ends or stops."""
        if self.found.of_steps and self.workers.rank == 0:
            self.found.save(self.run.observed)
            shutil.rmtree(self.run.observed_parts, ignore_errors=True)
        self.fresh = []
