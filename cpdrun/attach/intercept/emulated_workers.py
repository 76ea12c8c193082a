"""Emulate N workers with fewer processes: keep each worker's gradient, and form the mean as N machines would.

    for w in run.workers:
        with run.worker(w):
            loss(model, batch_of(w)).backward()

What is added to a parameter's `.grad` in this context is the gradient of worker w. After the last worker of the
process, the gradients are divided by N. With divided=True, they are divided by the number of processes, as DDP does,
because the script has divided its losses by the number of its micro-batches. They are then summed with those of the
other processes, and the sum is added to `.grad`. Clipping and steps follow, as with DDP. Buffers, such as BatchNorm's
running statistics, follow worker 0. Random numbers of a worker (dropout, augmentation) are left to the script: it seeds
them by w if the result must not depend on the process that emulates w.

If a script never calls `run.worker`, its backward passes between two steps count as the workers 0, 1 and so on, with
losses that are divided as in gradient accumulation. The end of the last one forms the sum. This is refused if it is
unclear which pass belongs to which worker: with several optimizers, with fewer passes than workers in the first step,
and with more passes in any step. In a later step with fewer passes (a smaller last batch), the other workers send
zeros, and the sum is formed by the first of clip_grad_norm_, GradScaler.unscale_ and step. Buffers are then left to
the script.

Legend: W workers of this process, n elements of a parameter.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakIdKeyDictionary

from cpdrun.attach.intercept.exchange import (
    USE_RUN_WORKER,
    ExchangeSettings,
    GradientExchange,
    GradientMean,
    check_first_step,
    dense,
    workers_text,
)
from cpdrun.attach.intercept.script import Script
from cpdrun.errors import UserError
from cpdrun.train.learners.emulated_workers import SharedModel

BY_CONTEXT, BY_COUNT = "run.worker around each worker's backward pass", "a backward pass counts as a worker"


class WorkerGradients:
    """The gradients of one step, by worker.

    Attributes:
        mean: The mean over all workers; None before the first exchange.
        finished: The workers whose backward passes have ended, and whether their losses were divided.
    """

    def __init__(self, settings: ExchangeSettings, script: Script) -> None:
        self.settings, self.script = settings, script
        self.mean: GradientMean | None = None
        self.finished: dict[int, bool] = {}
        self._stacks = WeakIdKeyDictionary()  # (W, n) of each parameter
        self._set_aside: list[tuple[nn.Parameter, Tensor | None]] = []
        self._touched = WeakIdKeyDictionary()  # parameters that some worker has a gradient for

    @property
    def missing(self) -> list[int]:
        """The workers of this process whose backward passes have not ended."""
        return [w for w in self.script.local_workers if w not in self.finished]

    @property
    def reaches_parameters(self) -> bool:
        """Whether the current worker has a gradient."""
        return any(p.grad is not None for p, _ in self._set_aside)

    def set_aside(self) -> None:
        """Remove `.grad` from all parameters until `put_back`. Raises UserError if there is no optimizer."""
        self._set_aside = [(p, p.grad) for p in self.script.parameters() if p.requires_grad]
        if not self._set_aside:
            raise UserError(
                f"{workers_text(self.script)}: create an optimizer of torch.optim before the first backward pass"
            )
        for p, _ in self._set_aside:
            p.grad = None

    def put_back(self) -> None:
        """Restore what `set_aside` removed."""
        for p, before in self._set_aside:
            p.grad = before
        self._set_aside = []

    def forget(self, parameters: Iterable[nn.Parameter]) -> None:
        """Let `put_back` restore no gradients of these parameters, which the script has zeroed."""
        zeroed = {id(p) for p in parameters}
        self._set_aside = [(p, None if id(p) in zeroed else before) for p, before in self._set_aside]

    def check_turn(self, w: int, divided: bool) -> None:
        """Raise UserError if worker w has had its turn in this step, or divides its losses unlike the others."""
        if w in self.finished:
            missing = ", ".join(map(str, self.missing))
            raise UserError(
                f"run.worker({w}) twice in a step, without workers {missing}: use each worker once"
            )
        if self.finished and divided not in self.finished.values():
            raise UserError(
                f"run.worker({w}, divided={divided}): the other workers of this step had divided={not divided}"
            )

    @torch.no_grad()
    def store(self, w: int, divided: bool) -> None:
        """Store the current `.grad` as the gradients of worker w."""
        i = self.script.local_workers.index(w)
        for p, _ in self._set_aside:
            row_n = self._stack(p)[i]
            if p.grad is None:
                row_n.zero_()
            else:
                row_n.copy_(dense(p.grad, "a parameter"))
                self._touched[p] = True
        self.finished[w] = divided

    def clear(self) -> None:
        """Discard the gradients of all workers."""
        self.finished.clear()
        self._touched.clear()

    @torch.no_grad()
    def exchange(self, how: str) -> None:
        """Add the mean over all workers to `.grad`, with zeros for missing workers. All ranks call this together."""
        parameters = self._agree_on([p for p in self.script.parameters() if p.requires_grad])
        if parameters:
            stacks = [self._stack(p) for p in parameters]
            for w in self.missing:
                torch._foreach_zero_([stack[self.script.local_workers.index(w)] for stack in stacks])
            divisor = self.script.ranks if True in self.finished.values() else self.script.world_size
            if divisor > 1:
                torch._foreach_div_(stacks, divisor)
            if self.mean is None:
                group: Any = dist.new_group() if self.script.ranks > 1 else None
                self.mean = GradientMean(self.settings, self.script, "workers", self.script.world_size, group)
            for p, sum_n in zip(parameters, self.mean.exchange_(how, parameters, stacks), strict=True):
                if p.grad is None:
                    p.grad = torch.empty_like(p).copy_(sum_n.view(p.shape))
                else:
                    p.grad.add_(sum_n.view(p.shape))
        self.clear()

    def _agree_on(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Return the parameters that some worker of some process has a gradient for. All ranks call this together."""
        touched = [p in self._touched for p in parameters]
        if self.script.ranks > 1:
            mask = torch.tensor(touched, dtype=torch.int32, device=parameters[0].device)
            dist.all_reduce(mask, op=dist.ReduceOp.MAX)
            touched = mask.bool().tolist()
        return [p for p, used in zip(parameters, touched, strict=True) if used]

    def _stack(self, p: nn.Parameter) -> Tensor:
        stack = self._stacks.get(p)
        if stack is None:
            shape = len(self.script.local_workers), p.numel()
            stack = self._stacks[p] = torch.zeros(shape, dtype=torch.float32, device=p.device)
        return stack


class EmulatedWorkers(GradientExchange):
    """The workers of this process.

    Args:
        settings: The settings of the exchange.
        script: The script.
        ddp: The script's DDP modules, whose exchange is replaced.
    """

    def __init__(
        self, settings: ExchangeSettings, script: Script, ddp: Sequence[DistributedDataParallel]
    ) -> None:
        super().__init__(settings, script)
        self.ddp = ddp
        self.gradients = WorkerGradients(settings, script)
        self._how: str | None = None
        self._inside = False  # whether a worker's backward pass is running
        self._has_full_step = False  # whether some step had all workers
        self._is_exchanged = (
            False  # whether counted passes were exchanged and the script has not used the sum yet
        )
        self._buffers: list[SharedModel] = []

    @property
    def in_use(self) -> bool:
        """Whether the script has emulated a worker."""
        return self._how is not None

    @contextmanager
    def worker(self, w: int, divided: bool) -> Iterator[None]:
        """Return the context of one worker's forward and backward pass (run.worker)."""
        self._use(BY_CONTEXT)
        if self._inside:
            raise UserError(f"run.worker({w}) inside another run.worker: end that one first")
        self.gradients.check_turn(w, divided)
        i = self.script.local_workers.index(w)
        if not self.gradients.finished:
            if not self._buffers:
                models = self.script.models_with(self.script.parameters())
                self._buffers = [SharedModel(model, self.script.workers) for model in models]
            for model in self._buffers:
                model.begin_step()
        for model in self._buffers:
            model.begin_worker(i)
        with ExitStack() as stack:
            for module in self.ddp:
                stack.enter_context(module.no_sync())
            stack.enter_context(self._current_worker())
            yield
            for module in self.ddp if self.settings.plain else ():
                _check_forward(module)
            self.gradients.store(w, divided)
        for model in self._buffers:
            model.end_worker(i)
        if not self.gradients.missing:
            self._exchange()

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Return the context of an outermost backward pass, which may be a whole worker's."""
        if self._inside:
            yield
            return
        self._use(BY_COUNT)
        if len(self.script.optimizers) > 1:
            raise UserError(
                f"{workers_text(self.script)}, and the script has {len(self.script.optimizers)} optimizers, so that "
                f"cpdrun cannot know which backward pass belongs to which worker: {USE_RUN_WORKER}"
            )
        with self._current_worker():
            yield
            # A pass that reaches no parameter belongs to no worker.
            if self.gradients.reaches_parameters:
                if self._is_exchanged:
                    raise UserError(
                        f"{workers_text(self.script)}, and one step has more than "
                        f"{self.script.workers_per_rank} backward passes: {USE_RUN_WORKER}"
                    )
                self.gradients.store(self.gradients.missing[0], True)
        if not self.gradients.missing:
            self._exchange()
            self._is_exchanged = True

    def complete(self, _parameters: Iterable[nn.Parameter] | None = None) -> None:
        """Exchange the gradients of all workers. Raises UserError if some are missing that should not be."""
        if self._inside:
            raise UserError("a step inside a worker's backward pass: take it after the last worker's")
        self._is_exchanged = False
        if not self.gradients.finished:
            if self._how is None:
                raise UserError(
                    f"{workers_text(self.script)}, and a step comes before any backward pass: {USE_RUN_WORKER}"
                )
            return
        if self._how == BY_CONTEXT:
            missing = ", ".join(map(str, self.gradients.missing))
            raise UserError(f"a step without the gradients of workers {missing}: {USE_RUN_WORKER}")
        if self.gradients.missing:
            if not self._has_full_step:
                check_first_step(self.script, len(self.gradients.finished))
            self.script.note("some steps have fewer backward passes than workers: the others send zeros")
        self._exchange()

    def before_step(self, _optimizer: torch.optim.Optimizer) -> None:
        """Exchange the gradients of all workers."""
        self.complete()

    def before_total_norm(self) -> None:
        """Raise UserError if get_total_norm is called with gradients that are not summed yet."""
        if self._how == BY_COUNT and self.gradients.finished:
            raise UserError(
                f"get_total_norm of gradients that are not summed yet: {USE_RUN_WORKER}, or call clip_grad_norm_"
            )

    def discard(self, parameters: Iterable[nn.Parameter]) -> None:
        """Discard what the workers of this step have computed, or, inside a worker, the gradients before it."""
        if self._inside:
            self.gradients.forget(parameters)
        else:
            self._is_exchanged = False
            self.gradients.clear()

    def _exchange(self) -> None:
        assert self._how is not None
        self._has_full_step |= not self.gradients.missing
        self.gradients.exchange(self._how)
        if self._how == BY_CONTEXT:
            for model in self._buffers:
                model.end_step()

    def _use(self, how: str) -> None:
        if self._how not in (None, how):
            raise UserError(f"a backward pass outside of run.worker: {USE_RUN_WORKER}, in all steps")
        self._how = how

    @contextmanager
    def _current_worker(self) -> Iterator[None]:
        self.gradients.set_aside()
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self.gradients.put_back()


def _check_forward(ddp: DistributedDataParallel) -> None:
    """Raise UserError if DDP exchanges by itself, and its forward pass was outside of the context."""
    if ddp.require_forward_param_sync and any(p.grad is not None for p in ddp.module.parameters()):
        raise UserError(
            "run.worker around a backward pass alone: put the forward pass in there too, because DDP needs it"
        )
