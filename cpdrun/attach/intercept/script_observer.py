"""Record a script's tensors at some of its steps (`observe=N`), to predict the effects of formats.

The record is the file RUN/observed.npz, as in a built-in run. It contains statistics of these tensors:

    gradient                       The gradient of each worker before any exchange. It is divided by N unless the script
                                   has already divided its losses, and it contains the scale of GradScaler, if any.
    weight, update                 The weights before a step of the optimizer, and the change that the step makes.
    activation, output_gradient    The inputs of Linear and Conv layers and the gradients of their outputs, in the first
                                   forward pass of worker 0 in the step.

Hooks copy the tensors, so the training is not changed. Steps are those of the first optimizer that the script creates,
and only its parameters are recorded. If there are several processes, all of them must take these steps.

The number of steps of a script is unknown, so every tenth step is recorded, beginning with the first. Recording then
takes a tenth of the time of a run if a recorded step takes twice as long (scripts/benchmarks/observation.py). When more
than N steps are recorded, every second one is dropped, and the interval doubles. Thus N / 2 to N evenly spaced steps
remain. If a script resumes, recording continues after the last step in the file.

The following are not recorded, and the record lists them: parameters of other optimizers and of fully_shard, layers of
a model that torch.compile compiles, and, with several workers per process, the gradients of a step that does not have
one backward pass per worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cpdrun.attach.intercept.patches import Patches
from cpdrun.attach.intercept.script import Script, parameters_of, trainable
from cpdrun.comm.workers import Workers
from cpdrun.record import RunDir
from cpdrun.whatif.collect.modules import OperandRecorder, describe_layers
from cpdrun.whatif.collect.observation import Observation, merge
from cpdrun.whatif.collect.observer import Snapshot

EVERY = 10


class ObservedSteps:
    """The steps to observe if the number of steps is unknown.

    Args:
        most: The largest number of steps to keep.

    Attributes:
        every: The interval between observed steps.
        kept: The observed steps that were not dropped.
    """

    def __init__(self, most: int) -> None:
        self.most, self.every, self.kept = most, EVERY, list[int]()

    def is_due(self, step: int) -> bool:
        """Return whether a step should be observed."""
        return step % self.every == 0 and (self.most > 1 or step == 0)

    def keep(self, step: int) -> None:
        """Add an observed step. If there are too many, drop every second step."""
        self.kept.append(step)
        if len(self.kept) > self.most:
            self.every *= 2
            self.kept = [kept for kept in self.kept if kept % self.every == 0]


class BackwardPasses:
    """The gradients of some parameters, separately for each backward pass of a step.

    Attributes:
        passes: For each backward pass, the gradients by the parameters' names.
        inside: Whether a recorded backward pass is running.
    """

    def __init__(self) -> None:
        self.passes: list[dict[str, Tensor]] = []
        self.inside = False
        self._handles: list[Any] = []

    def open(self, parameters: dict[str, nn.Parameter]) -> None:
        """Start to record the gradients of these parameters."""
        self._handles = [p.register_hook(self._recorder(name)) for name, p in parameters.items()]

    def close(self) -> None:
        """Stop recording, and discard the gradients."""
        for handle in self._handles:
            handle.remove()
        self._handles, self.passes = [], []

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Return a context around a backward pass. A pass that computes no gradient of the parameters is discarded."""
        self.passes.append({})
        self.inside = True
        try:
            yield
        finally:
            self.inside = False
            if self.passes and not self.passes[-1]:
                self.passes.pop()

    def by_worker(self, workers: int) -> list[dict[str, Tensor]]:
        """Return the gradients of each backward pass, which counts as one worker.

        If there is only one worker, the gradients of all its passes are added.
        """
        if workers > 1 or not self.passes:
            return self.passes
        names = set[str]().union(*self.passes)
        summed: dict[str, Any] = {name: sum(p[name] for p in self.passes if name in p) for name in names}
        return [summed]

    def _recorder(self, name: str) -> Any:
        def record(g: Tensor) -> None:
            if (
                self.passes and self.inside
            ):  # torch.autograd.grad also calls hooks, but outside of a backward pass.
                g, gradients = g.detach().to_dense().float(), self.passes[-1]
                gradients[name] = gradients[name] + g if name in gradients else g.clone()

        return record


class ObservationFile:
    """The observation of a script, and the file of its run that stores the observation.

    Args:
        most: The largest number of observed steps.
        script: The script.
        run: The run.

    Attributes:
        spread: The steps to observe.
        found: The observation, on rank 0.
    """

    def __init__(self, most: int, script: Script, run: RunDir) -> None:
        self.script, self.run = script, run
        self.spread = ObservedSteps(most)
        self.found = Observation()

    def resume(self) -> int:
        """Load the file of an earlier attempt, and return the next step.

        If the run has no checkpoint, the script starts again, so there is no earlier observation to load.
        """
        if self.run.saved_at() <= 0 or not self.run.observed.is_file():
            return 0
        try:
            self.found = Observation.load(self.run.observed)
        except (OSError, ValueError) as error:
            self.script.note(f"observe: the observations of earlier attempts are lost ({error})")
            return 0
        steps = self.found.steps
        for step in steps:
            self.spread.keep(step)
        gaps = [after - step for step, after in itertools.pairwise(steps)]
        self.spread.every = max([self.spread.every, *gaps])
        return steps[-1] + self.spread.every if steps else 0

    def add(self, step: int, parts: dict[int, Any], parameters: dict[str, nn.Parameter]) -> None:
        """Add one step on rank 0. `parts` contains the statistics of each rank. It is empty on other ranks."""
        if parts:
            self.found.by_step[step] = merge(parts[r] for r in sorted(parts))
            self._describe(parameters)
        self.spread.keep(step)
        kept = self.spread.kept
        self.found.by_step = {step: seen for step, seen in self.found.by_step.items() if step in kept}
        if len(kept) in (1, self.spread.most):
            self.write(step)

    def add_attention(self, attends: bool) -> None:
        """Record whether the model calls scaled_dot_product_attention."""
        self.found.about["attends"] = self.found.about.get("attends", False) or attends

    def note_unobserved(self, line: str) -> None:
        """Record a description of tensors that are not observed."""
        if line not in self.found.unobserved:
            self.found.unobserved.append(line)

    def _describe(self, parameters: dict[str, nn.Parameter]) -> None:
        models = self.script.models_with(list(parameters.values()))
        self.found.about = {
            "attends": False,
            **self.found.about,
            "world_size": self.script.world_size,
            "loss_scale": 1.0,
            "layers": list(parameters),
            "modules": describe_layers(models[0]) if models else [],
        }
        everything = {id(p) for optimizer in self.script.optimizers for p in parameters_of(optimizer)}
        if others := len(everything) - len(parameters):
            self.note_unobserved(f"{others} of {len(everything)} parameters, of other optimizers or sharded")

    def write(self, steps: int) -> None:
        """Write the file on rank 0. `steps` is the number of steps so far."""
        if self.script.rank != 0 or not self.found.by_step:
            return
        steps = max(steps, self.found.steps[-1] + 1)
        self.found.about |= {"steps": steps, "steps_an_epoch": steps, "epochs": 1}
        self.found.save(self.run.observed)


class ScriptObserver:
    """The observation of one process of a script.

    Nothing is observed if there is no run, or if `most` is 0.

    Attributes:
        divided: Whether the script divides its losses by the number of workers of a process.
    """

    def __init__(self, most: int, script: Script, run: RunDir | None) -> None:
        self.script = script
        self.file = ObservationFile(most, script, run) if most and run is not None else None
        self.steps = 0
        self.backward = BackwardPasses()
        self.divided = True
        self._is_compiled = self._is_open = self._has_closure = False
        self._parameters: dict[str, nn.Parameter] = {}
        self._weights: list[Tensor] = []
        self._operands: OperandRecorder | None = None
        self._group: Any = None  # the gloo process group that gathers statistics, created when first needed

    def install(self, patches: Patches) -> None:
        """Watch the script. Call this before the script creates optimizers."""
        if self.file is None:
            return
        self.steps = self.file.resume()
        eager = torch.compiler.disable
        for hook in (
            register_optimizer_step_pre_hook(eager(self._before_step)),
            register_optimizer_step_post_hook(eager(self._after_step)),
        ):
            patches.add_undo(hook.remove)
        patches.around(Optimizer, "add_param_group", self._add_param_group)
        patches.around(torch.autograd, "backward", eager(self._backward))
        for owner in (Optimizer, nn.Module):
            patches.around(owner, "zero_grad", eager(self._zero_grad))
        patches.around(torch, "compile", self._compile)
        patches.around(nn.Module, "compile", self._compile)
        patches.add_undo(self._close)

    def _add_param_group(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self.add(optimizer)

    def add(self, optimizer: Optimizer) -> None:
        """Add an optimizer of the script, or new parameter groups of the optimizer."""
        if self.file is not None and self.script.number_of(optimizer) == 0:
            self._open(optimizer)

    def _open(self, optimizer: Optimizer) -> None:
        self._close()
        is_due = self.file is not None and self.file.spread.is_due(self.steps)
        parameters = trainable(parameters_of(optimizer)) if is_due else []
        if not parameters:
            return
        self._is_open = True
        self._parameters = dict(zip(self.script.names_of(parameters), parameters, strict=True))
        self.backward.open(self._parameters)
        models = self.script.models_with(parameters)
        if models and not self._is_compiled:
            self._operands = _TrainingOperandRecorder(models[0], self.script.rank == 0)
            self._operands.open()

    def _close(self) -> None:
        self.backward.close()
        if self._operands is not None:
            self._operands.close()
        self._operands, self._is_open, self._weights = None, False, []

    def _compile(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._is_compiled = True
        if self._operands is not None:
            self._operands.close()
            self._operands = None
        return original(*args, **kwargs)

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> None:
        if not self._is_open or self.backward.inside:
            original(*args, **kwargs)
            return
        with self.backward.backward_pass():
            original(*args, **kwargs)

    def _zero_grad(self, original: Any, *args: Any, **kwargs: Any) -> None:
        if not self.backward.inside:
            self.backward.passes.clear()  # The script discards the gradients of these passes.
        original(*args, **kwargs)

    def _before_step(self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> None:
        if self._is_open and self.script.number_of(optimizer) == 0:
            self._has_closure = len(args) > 1 or kwargs.get("closure") is not None
            self._weights = [p.detach().clone() for p in self._parameters.values()]

    def _after_step(self, optimizer: Optimizer, _args: tuple, _kwargs: dict[str, Any]) -> None:
        if self.script.number_of(optimizer) != 0:
            return
        if self._is_open:
            self._record()
        self.steps += 1
        self._open(optimizer)

    @torch.no_grad()
    def _record(self) -> None:
        """Record the step that was just taken. Collective."""
        file, ranks, rank = self.file, self.script.ranks, self.script.rank
        assert file is not None
        if ranks > 1 and self._group is None:
            self._group = dist.new_group(backend="gloo")
        workers = Workers(self.script.world_size, rank, ranks, self._group)
        snapshot = Snapshot(workers, len(self._parameters))
        stacks = self._gradients(file, workers)
        if stacks:
            snapshot.record_gradients(list(self._parameters), stacks)
        tensors: list[tuple[str, str, Tensor]] = []  # (role, layer, values)
        if rank == 0:
            layers = list(zip(self._parameters.items(), self._weights, strict=True))
            tensors += [("weight", name, weight.float()) for (name, _), weight in layers]
            tensors += [("update", name, p.float() - weight.float()) for (name, p), weight in layers]
        if self._operands is not None:
            operands, attends = self._operands.close(), self._operands.attends
            tensors += [(role, name, x.float()) for role, of in operands.items() for name, x in of.items()]
            file.add_attention(attends)
        snapshot.record_tensors(tensors)
        parts = workers.gather({rank: snapshot.statistics})
        if self._is_compiled and rank == 0:
            file.note_unobserved("activation, output_gradient: the model is compiled")
        file.add(self.steps, parts, self._parameters)

    def _gradients(self, file: ObservationFile, workers: Workers) -> list[Tensor]:
        """Return the gradients (W, n) of each parameter, divided by N. Collective.

        The result is [] if some process does not have the gradients.
        """
        passes = self.backward.by_worker(workers.share)
        fits = torch.tensor(int(len(passes) == workers.share))
        if self._has_closure:
            file.note_unobserved("gradient: the optimizer's step calls a closure")
            return []
        if int(workers.sum_of_disjoint(fits)) < workers.ranks:
            file.note_unobserved(
                f"gradient: {len(passes)} backward passes of {workers.share} workers a process"
            )
            return []
        divisor = workers.ranks if self.divided else workers.world_size
        return [_stack(name, p, passes).div_(divisor) for name, p in self._parameters.items()]

    def write(self) -> None:
        """Write the observation to the run's file on rank 0. This method may be called at any time."""
        if self.file is not None:
            self.file.write(self.steps)


def _stack(name: str, parameter: nn.Parameter, passes: list[dict[str, Tensor]]) -> Tensor:
    zero = torch.zeros(parameter.shape, device=parameter.device)
    return torch.stack([gradients.get(name, zero) for gradients in passes])


class _TrainingOperandRecorder(OperandRecorder):
    """A recorder that ignores forward passes for evaluation, which scripts may perform between two steps."""

    def counts(self) -> bool:
        return self.model.training and torch.is_grad_enabled()
