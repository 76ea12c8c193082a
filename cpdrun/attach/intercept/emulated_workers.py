"""Emulation of N workers with fewer processes: store each worker's gradient, and compute the mean as N machines would.

    for w in run.workers:
        with run.worker(w):
            loss(model, batch_of(w)).backward()

In this context, the values that are added to the `.grad` of parameters are the gradients of worker w. After the last
worker of the process, the gradients are divided by N. With divided=True, the script has already divided its losses by
the number of its micro-batches, so the gradients are only divided by the number of processes, as DDP does. Then the
gradients of all processes are summed, and the sum is added to `.grad`. The script clips and takes its step after that,
as with DDP. Buffers, such as BatchNorm's running statistics, are those of worker 0. A script whose workers use random
numbers (dropout, augmentation) should seed them by w, so that the result does not depend on the process that emulates
w.

If a script never calls `run.worker`, its backward passes between two steps count as the workers 0, 1 and so on. Losses
must then be divided as in gradient accumulation. The sum is computed after the last pass. A script is refused if it is
unclear which pass belongs to which worker. This is the case with several optimizers, if the first step has fewer passes
than workers, and if any step has more passes than workers. If a later step has fewer passes (a smaller last batch), the
missing workers send zeros, and the sum is computed at the first call of clip_grad_norm_, GradScaler.unscale_ or step.
Buffers are not changed in scripts without `run.worker`.

Shapes: W workers of this process, n elements of a parameter.
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
    """The gradients of one step, separately for each worker of this process.

    Attributes:
        mean: The object that computes the mean over all workers. None before the first exchange.
        finished: For each worker whose backward passes have ended in this step, whether the script divided its losses
            by their number.
    """

    def __init__(self, settings: ExchangeSettings, script: Script) -> None:
        self.settings, self.script = settings, script
        self.mean: GradientMean | None = None
        self.finished: dict[int, bool] = {}
        self._stacks = WeakIdKeyDictionary()  # the gradients (W, n) of each parameter
        self._set_aside: list[tuple[nn.Parameter, Tensor | None]] = []
        self._touched = WeakIdKeyDictionary()  # the parameters that received a gradient from some worker

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
        """Restore the gradients that `set_aside` removed."""
        for p, before in self._set_aside:
            p.grad = before
        self._set_aside = []

    def forget(self, parameters: Iterable[nn.Parameter]) -> None:
        """Discard the removed gradients of these parameters, because the script has zeroed them."""
        zeroed = {id(p) for p in parameters}
        self._set_aside = [(p, None if id(p) in zeroed else before) for p, before in self._set_aside]

    def check_turn(self, w: int, divided: bool) -> None:
        """Raise UserError if worker w was already used in this step, or divides its losses unlike the other workers."""
        if w in self.finished:
            missing = ", ".join(map(str, self.missing))
            raise UserError(
                f"run.worker({w}) was used twice in a step, before workers {missing}. Use each worker once per step"
            )
        if self.finished and divided not in self.finished.values():
            raise UserError(
                f"run.worker({w}, divided={divided}): the other workers of this step used divided={not divided}. Use "
                "the same value for all workers"
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
        """Add the mean over all workers to `.grad`. The gradients of missing workers are zero. Collective."""
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
        """Return the parameters that received a gradient from any worker of any process. Collective."""
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
    """The exchange of gradients if this process emulates several workers.

    Args:
        settings: The settings of the exchange.
        script: The script.
        ddp: The script's DDP modules. This exchange replaces theirs.
    """

    def __init__(
        self, settings: ExchangeSettings, script: Script, ddp: Sequence[DistributedDataParallel]
    ) -> None:
        super().__init__(settings, script)
        self.ddp = ddp
        self.gradients = WorkerGradients(settings, script)
        self._how: str | None = None
        self._inside = False  # whether a context `run.worker` is active
        self._has_full_step = False  # whether all workers had a backward pass in some step
        self._is_exchanged = (
            False  # whether the sum of counted passes is ready but not yet used by the script
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
            raise UserError(f"run.worker({w}) is nested in another run.worker. Leave the other context first")
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
        """Return the context of an outermost backward pass, which may count as a worker's backward pass."""
        if self._inside:
            yield
            return
        self._use(BY_COUNT)
        if len(self.script.optimizers) > 1:
            raise UserError(
                f"{workers_text(self.script)}, and the script has {len(self.script.optimizers)} optimizers, so "
                f"cpdrun cannot tell which backward pass belongs to which worker. Please {USE_RUN_WORKER}"
            )
        with self._current_worker():
            yield
            # A backward pass that computes no gradient of a parameter does not count as a worker's.
            if self.gradients.reaches_parameters:
                if self._is_exchanged:
                    raise UserError(
                        f"{workers_text(self.script)}, and one step has more than "
                        f"{self.script.workers_per_rank} backward passes. Please {USE_RUN_WORKER}"
                    )
                self.gradients.store(self.gradients.missing[0], True)
        if not self.gradients.missing:
            self._exchange()
            self._is_exchanged = True

    def complete(self, _parameters: Iterable[nn.Parameter] | None = None) -> None:
        """Exchange the gradients of all workers. Raises UserError if required gradients of workers are missing."""
        if self._inside:
            raise UserError(
                "the optimizer's step is inside run.worker. Call it after the backward pass of the last worker"
            )
        self._is_exchanged = False
        if not self.gradients.finished:
            if self._how is None:
                raise UserError(
                    f"{workers_text(self.script)}, but there was no backward pass before the optimizer's step. Please "
                    f"{USE_RUN_WORKER}"
                )
            return
        if self._how == BY_CONTEXT:
            missing = ", ".join(map(str, self.gradients.missing))
            raise UserError(
                f"the optimizer's step comes before the gradients of workers {missing}. Please {USE_RUN_WORKER}"
            )
        if self.gradients.missing:
            if not self._has_full_step:
                check_first_step(self.script, len(self.gradients.finished))
            self.script.note(
                "some steps have fewer backward passes than workers. The missing workers send zeros"
            )
        self._exchange()

    def before_step(self, _optimizer: torch.optim.Optimizer) -> None:
        """Exchange the gradients of all workers."""
        self.complete()

    def before_total_norm(self) -> None:
        """Raise UserError if get_total_norm is called with gradients that are not summed yet."""
        if self._how == BY_COUNT and self.gradients.finished:
            raise UserError(
                f"get_total_norm was called before the gradients of the workers were summed. Please {USE_RUN_WORKER}, "
                "or call clip_grad_norm_"
            )

    def discard(self, parameters: Iterable[nn.Parameter]) -> None:
        """Discard the gradients of all workers of this step. Inside `run.worker`, discard only earlier gradients."""
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
            raise UserError(
                f"a backward pass is outside of run.worker, although others are inside. Please {USE_RUN_WORKER}, in "
                "all steps"
            )
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
    """Raise UserError if DDP's forward pass was outside of run.worker, because DDP then exchanges gradients itself."""
    if ddp.require_forward_param_sync and any(p.grad is not None for p in ddp.module.parameters()):
        raise UserError(
            "run.worker contains only a backward pass. Put the forward pass into it, too, because DDP would otherwise "
            "exchange the gradients of each worker"
        )
