"""A script's tensors, looked at in some of its steps (`observe=N`), for what formats would do to them: it leaves
RUN/observed.npz, as a built-in run does.

    gradient                       of each worker, as its backward passes give it, before any exchange, over N as far as
                                   the script's losses are not: times GradScaler's scale, where a script has one
    weight, update                 before a step of the optimizer, and what the step adds
    activation, output_gradient    what the products of Linear and Conv layers read and get back, of worker 0's first
                                   forward pass of the step

Nothing is changed: hooks copy. A step is one of the first optimizer that the script makes, and its parameters are what
is looked at. Collective where there are several processes: all of them take those steps.

How many steps a script will take is unknown: one in EVERY is looked at, from the first on, so that observing costs a
tenth of a run where it costs as much as a step (scripts/benchmarks/observation.py); once more than N are
there, every second one is kept, and the steps between looks double. So between N / 2 and N are kept, evenly spread.
One that is stopped and goes on looks on behind what its file has.

Not seen, and said: parameters of other optimizers and of fully_shard, layers of a model that torch.compile compiles,
gradients of a step whose backward passes are not one for each of several workers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cpdrun.attach.held.patches import Patches
from cpdrun.attach.held.script import Script, of_optimizer, trainable
from cpdrun.comm.workers import Workers
from cpdrun.record import RunDir
from cpdrun.whatif.collect.modules import OperandRecorder, describe_layers
from cpdrun.whatif.collect.observation import Observation, merge
from cpdrun.whatif.collect.observer import Snapshot

EVERY = 10


class Spread:
    """Which steps to look at, when nobody knows how many there will be, and which of those to keep."""

    def __init__(self, most: int) -> None:
        self.most, self.every, self.kept = most, EVERY, list[int]()

    def is_due(self, step: int) -> bool:
        return step % self.every == 0 and (self.most > 1 or step == 0)

    def keep(self, step: int) -> None:
        """This one too; every second one of too many goes."""
        self.kept.append(step)
        if len(self.kept) > self.most:
            self.every *= 2
            self.kept = [kept for kept in self.kept if kept % self.every == 0]


class Observed:
    """Of one process of a script. write: whenever; the file is whole after each."""

    def __init__(self, most: int, script: Script, run: RunDir | None) -> None:
        self.script, self.run = script, run
        self.spread = Spread(most) if most and run is not None else None
        self.found = Observation()
        self.taken = 0
        self.compiled = self.inside = self.looking = False
        self.closure = False  # the step was given one
        self.divided = True  # the losses, by the workers that a process plays
        self.parameters: dict[str, nn.Parameter] = {}
        self.passes: list[dict[str, Tensor]] = []  # of each backward pass of the step, what it gave
        self.weights: list[Tensor] = []
        self.watched: OperandRecorder | None = None
        self.group: dist.ProcessGroup | None = None
        self._handles: list[Any] = []

    def install(self, patches: Patches) -> None:
        """Before optimizers are made."""
        if self.spread is None:
            return
        self._go_on()
        eager = torch.compiler.disable
        for hook in (
            register_optimizer_step_pre_hook(eager(self._before_step)),
            register_optimizer_step_post_hook(eager(self._after_step)),
        ):
            patches.later(hook.remove)
        patches.around(Optimizer, "add_param_group", self._made)
        patches.around(torch.autograd, "backward", eager(self._backward))
        for owner in (Optimizer, nn.Module):
            patches.around(owner, "zero_grad", eager(self._zero_grad))
        patches.around(torch, "compile", self._compile)
        patches.around(nn.Module, "compile", self._compile)
        patches.later(self._close)

    def _go_on(self) -> None:
        """Behind what an attempt before has seen; a run that begins anew has no checkpoint."""
        if self.run.saved_at() <= 0 or not self.run.observed.is_file():
            return
        try:
            self.found = Observation.load(self.run.observed)
        except (OSError, ValueError) as error:
            self.script.note(f"observe: what was seen before is lost ({error})")
            return
        for step in self.found.steps:
            self.spread.keep(step)
        gaps = [after - step for step, after in zip(self.found.steps, self.found.steps[1:], strict=False)]
        self.spread.every = max([self.spread.every, *gaps])
        self.taken = self.found.steps[-1] + self.spread.every if self.found.steps else 0

    def _is_first(self, optimizer: Optimizer) -> bool:
        return self.script.number(optimizer) == 0

    def _made(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self.take(optimizer)

    def take(self, optimizer: Optimizer) -> None:
        """From here on it is one of the script's."""
        if self.spread is not None and self._is_first(optimizer):
            self._open(optimizer)

    def _open(self, optimizer: Optimizer) -> None:
        """The step that comes is looked at, if it is due: the first one again with each of its groups."""
        self._close()
        if not self.spread.is_due(self.taken):
            return
        moved = trainable(of_optimizer(optimizer))
        if not moved:
            return
        self.looking = True
        self.parameters = dict(zip(self.script.named(moved), moved, strict=True))
        for name, p in self.parameters.items():
            self._handles.append(p.register_hook(self._caught(name)))
        models = self.script.models_with(moved)
        if models and not self.compiled:
            self.watched = _OfTraining(models[0], self.script.rank == 0)
            self.watched.open()

    def _close(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self.watched is not None:
            self.watched.close()
        self.watched, self.looking = None, False
        self._handles, self.passes, self.weights = [], [], []

    def _compile(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.compiled = True
        if self.watched is not None:
            self.watched.close()
            self.watched = None
        return original(*args, **kwargs)

    def _caught(self, name: str) -> Any:
        def catch(g: Tensor) -> None:
            if self.passes and self.inside:  # torch.autograd.grad calls hooks too
                g, of_pass = g.detach().to_dense().float(), self.passes[-1]
                of_pass[name] = of_pass[name] + g if name in of_pass else g.clone()

        return catch

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> None:
        outermost = self.looking and not self.inside
        if outermost:
            self.passes.append({})
            self.inside = True
        try:
            original(*args, **kwargs)
        finally:
            if outermost:
                self.inside = False
                if self.passes and not self.passes[-1]:
                    self.passes.pop()  # it reaches none of these parameters

    def _zero_grad(self, original: Any, *args: Any, **kwargs: Any) -> None:
        if not self.inside:
            self.passes.clear()  # of a step that was not taken
        original(*args, **kwargs)

    def _before_step(self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> None:
        if self.looking and self._is_first(optimizer):
            self.closure = len(args) > 1 or kwargs.get("closure") is not None
            self.weights = [p.detach().clone() for p in self.parameters.values()]

    def _after_step(self, optimizer: Optimizer, _args: tuple, _kwargs: dict[str, Any]) -> None:
        if not self._is_first(optimizer):
            return
        if self.looking:
            self._look()
        self.taken += 1
        self._open(optimizer)

    @torch.no_grad()
    def _look(self) -> None:
        """Collective."""
        ranks, rank = self.script.ranks, self.script.rank
        if ranks > 1 and self.group is None:
            self.group = dist.new_group(backend="gloo")
        workers = Workers(self.script.world_size, rank, ranks, self.group)
        snapshot = Snapshot(workers, len(self.parameters))
        stacks = self._stacks(workers)
        if stacks:
            snapshot.record_gradients(list(self.parameters), stacks)
        looked: list[tuple[str, str, Tensor]] = []
        if rank == 0:
            of_layers = list(zip(self.parameters.items(), self.weights, strict=True))
            looked += [("weight", name, weight.float()) for (name, _), weight in of_layers]
            looked += [("update", name, p.float() - weight.float()) for (name, p), weight in of_layers]
        if self.watched is not None:
            operands, attends = self.watched.close(), self.watched.attends
            looked += [(role, name, x.float()) for role, of in operands.items() for name, x in of.items()]
            self.found.about["attends"] = self.found.about.get("attends", False) or attends
        snapshot.record_tensors(looked)
        parts = workers.gather({rank: snapshot.statistics})
        if parts:
            self.found.by_step[self.taken] = merge(parts[r] for r in sorted(parts))
            self._describe()
        self.spread.keep(self.taken)
        self.found.by_step = {s: seen for s, seen in self.found.by_step.items() if s in self.spread.kept}
        if len(self.spread.kept) in (1, self.spread.most):
            self.write()

    def _stacks(self, workers: Workers) -> list[Tensor]:
        """(W, n) of each parameter, over N; none where the passes of some process are not its workers'. Collective."""
        passes, share = self.passes, workers.share
        if share == 1 and passes:
            passes = [{n: sum(p[n] for p in passes if n in p) for n in set().union(*passes)}]
        fits = torch.tensor(int(len(passes) == share))
        if self.closure:
            self._unseen("gradient: the optimizer's step calls a closure")
            return []
        if int(workers.sum_of_disjoint(fits)) < workers.ranks:
            self._unseen(f"gradient: {len(passes)} backward passes of {share} workers a process")
            return []
        divisor = workers.ranks if self.divided else workers.world_size
        zeros = {name: torch.zeros(p.shape, device=p.device) for name, p in self.parameters.items()}
        return [
            torch.stack([of_pass.get(name, zero) for of_pass in passes]).div_(divisor)
            for name, zero in zeros.items()
        ]

    def _describe(self) -> None:
        parameters = list(self.parameters.values())
        models = self.script.models_with(parameters)
        self.found.about = {
            "attends": False,
            **self.found.about,
            "world_size": self.script.world_size,
            "loss_scale": 1.0,
            "layers": list(self.parameters),
            "modules": describe_layers(models[0]) if models else [],
        }
        if self.compiled:
            self._unseen("activation, output_gradient: the model is compiled")
        moved = {id(p) for optimizer in self.script.optimizers for p in of_optimizer(optimizer)}
        if others := len(moved) - len(parameters):
            self._unseen(f"{others} of {len(moved)} parameters, of other optimizers or sharded")

    def _unseen(self, line: str) -> None:
        if line not in self.found.unobserved:
            self.found.unobserved.append(line)

    def write(self) -> None:
        """What was seen, into the run's file, by rank 0."""
        if self.spread is None or self.script.rank != 0 or not self.found.by_step:
            return
        steps = max(self.taken, self.found.steps[-1] + 1)
        self.found.about |= {"steps": steps, "steps_an_epoch": steps, "epochs": 1}
        self.found.save(self.run.observed)


class _OfTraining(OperandRecorder):
    """A script evaluates between its steps, too."""

    def counts(self) -> bool:
        return self.model.training and torch.is_grad_enabled()
