"""N workers on fewer processes: each one's gradient is caught, and the mean of all is formed as N machines form it.

    for w in run.workers:
        with run.worker(w):
            loss(model, batch_of(w)).backward()

What is added to a parameter's `.grad` in there is worker w's gradient. When this process's last worker has been, they
are divided by N (with divided=True by the number of processes alone, which DDP would do: the script has divided its
losses by the number of its micro-batches), summed with those of the other processes, and the sum is in `.grad`, or
added to what was there. So clipping and steps come after it, as they do under DDP. Buffers (BatchNorm's running
statistics) follow worker 0. What a worker draws (dropout, augmentation) is the script's own: seed it by w where it
matters which process plays w.

Where a script never says `run.worker`, its backward passes between two steps count as the workers 0, 1 ..., their
losses divided as gradient accumulation has it; the last one's end forms the sum. That is refused where it cannot be
told which pass is whose: with several optimizers, in the first step with fewer passes than workers, ever with more. In
a later step with fewer (a last, smaller batch) the other workers send zeros, and the sum is formed by the first of
clip_grad_norm_, GradScaler.unscale_ and step. Buffers are left to the script then.

Legend: W workers of this process, n elements of a parameter.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakIdKeyDictionary

from cpdrun.attach.held.exchange import Asked, Mean, dense
from cpdrun.attach.held.script import Script
from cpdrun.comm.workers import Workers
from cpdrun.errors import UserError
from cpdrun.train.learners.emulated_workers import SharedModel

SAID, COUNTED = "run.worker around each worker's backward pass", "a backward pass counts as a worker"
USE = "put `with run.worker(w):` around each worker's forward and backward"


class Played:
    """The workers of this process. ddp: the script's DDP modules, whose own exchange they take the place of."""

    def __init__(self, asked: Asked, script: Script, ddp: Sequence[DistributedDataParallel]) -> None:
        self.asked, self.script, self.ddp = asked, script, ddp
        self.mean: Mean | None = None
        self.stacks = WeakIdKeyDictionary()  # of a parameter: (W, n)
        self.workers = range(0)
        self._how: str | None = None
        self._seen: dict[int, bool] = {}  # workers of this round, and whether their losses were divided
        self._inside = False
        self._set_aside: list[tuple[nn.Parameter, Tensor | None]] = []
        self._touched = WeakIdKeyDictionary()  # parameters that some worker of this round had a gradient for
        self._whole_round_seen = False
        self._formed = False  # of counted passes: the sum, and the script has not used it yet
        self._buffers: list[SharedModel] = []

    @property
    def in_use(self) -> bool:
        return self._how is not None

    # ---- by run.worker

    @contextmanager
    def worker(self, w: int, divided: bool) -> Iterator[None]:
        """Around one worker's forward and backward. Raises UserError."""
        self._begin_to(SAID)
        if self._inside:
            raise UserError(f"run.worker({w}): stands inside another run.worker; end that first")
        if w in self._seen:
            raise UserError(
                f"run.worker({w}) twice, before workers {self._missing()} have been: each is once a step"
            )
        if self._seen and divided not in self._seen.values():
            raise UserError(f"run.worker({w}, divided={divided}): the others of this step had {not divided}")
        i = self.workers.index(w)
        if not self._seen:
            self._watch_buffers()
        for model in self._buffers:
            model.begin_worker(i)
        with ExitStack() as stack:
            for module in self.ddp:
                stack.enter_context(module.no_sync())
            self._set_gradients_aside()
            self._inside = True
            try:
                yield
                self._check_forward()
                self._catch(w, divided)
            finally:
                self._inside = False
                self._put_back()
        for model in self._buffers:
            model.end_worker(i)
        if len(self._seen) == len(self.workers):
            self.exchange()

    def _check_forward(self) -> None:
        """DDP decides at the forward pass whether to exchange; where its own exchange is left in place, that must have
        been in here. Raises UserError."""
        for module in self.ddp if self.asked.plain else ():
            mine = any(p.grad is not None for p in module.module.parameters())
            if mine and module.require_forward_param_sync:
                raise UserError(
                    "run.worker around a backward pass alone: put the forward pass in there too, DDP needs it"
                )

    def _watch_buffers(self) -> None:
        if not self._buffers:
            models = self.script.models_with(self.script.parameters())
            workers = Workers(self.script.world_size, self.script.rank, self.script.ranks)
            self._buffers = [SharedModel(model, workers) for model in models]
        for model in self._buffers:
            model.begin_step()

    # ---- by counting backward passes

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Around an outermost backward pass of the script's. Raises UserError."""
        if self._inside:
            yield
            return
        self._begin_to(COUNTED)
        if len(self.script.optimizers) > 1:
            raise UserError(
                f"{self._plays()} and the script has {len(self.script.optimizers)} optimizers, so that which backward "
                f"pass is whose cannot be told: {USE}"
            )
        self._set_gradients_aside()
        self._inside = True
        try:
            yield
            # a pass that reaches no parameter is no worker's
            if any(p.grad is not None for p, _ in self._set_aside):
                if self._formed:
                    raise UserError(
                        f"{self._plays()}, and one step has more than {len(self.workers)} backward passes: {USE}"
                    )
                self._catch(self.workers[len(self._seen)], True)
        finally:
            self._inside = False
            self._put_back()
        if len(self._seen) == len(self.workers):
            self.exchange()
            self._formed = True

    # ---- both

    def complete(self) -> None:
        """The script is about to use the gradients. Raises UserError where some workers' are missing."""
        if self._inside:
            raise UserError("a step inside a worker's backward pass: it comes after the last worker's")
        self._formed = False
        if not self._seen:
            if self._how is None:
                raise UserError(f"{self._plays()}, and a step comes before any backward pass: {USE}")
            return
        if self._how == SAID:
            raise UserError(f"a step before workers {self._missing()} have been: {USE}")
        if len(self._seen) < len(self.workers):
            if not self._whole_round_seen:
                self.check_first(len(self._seen))
            self.script.note("some steps have fewer backward passes than workers: the others send zeros")
        self.exchange()

    def check_first(self, passes: int) -> None:
        """Of the first step. Raises UserError where it is not of this process's workers."""
        share = self.script.share
        if passes != share:
            raise UserError(
                f"{self._plays()}, and the first step has {passes} backward passes: let it accumulate {share}, {USE}, "
                f"or set world_size to {self.script.ranks * max(passes, 1)}"
            )

    def refuse_half_a_round(self, call: str) -> None:
        """Before a call that is given gradients which are not there yet. Raises UserError."""
        if self._how == COUNTED and self._seen:
            raise UserError(f"{call} of gradients that are not summed yet: {USE}, or call clip_grad_norm_")

    def drop(self, parameters: Iterable[nn.Parameter]) -> None:
        """The script zeroes the gradients of these: what was there before, or has been caught, counts no more."""
        if not self._inside:
            self._formed = False
            self._seen.clear()
            self._touched.clear()
            return
        zeroed = {id(p) for p in parameters}
        self._set_aside = [(p, None if id(p) in zeroed else before) for p, before in self._set_aside]

    @torch.no_grad()
    def exchange(self) -> None:
        """Collective."""
        self._whole_round_seen |= len(self._seen) == len(self.workers)
        divisor = self.script.ranks if True in self._seen.values() else self.script.world_size
        parameters = self._agreed_on([p for p in self.script.parameters() if p.requires_grad])
        if parameters:
            stacks = [self._stack(p) for p in parameters]
            for i, w in enumerate(self.workers):
                if w not in self._seen:
                    torch._foreach_zero_([stack[i] for stack in stacks])
            self._know(parameters)
            if divisor > 1:
                torch._foreach_div_(stacks, divisor)
            for p, sum_n in zip(parameters, self.mean.form_(parameters, stacks), strict=True):
                if p.grad is None:
                    p.grad = torch.empty_like(p).copy_(sum_n.view(p.shape))
                else:
                    p.grad.add_(sum_n.view(p.shape))
            names = [self.mean.name(p) for p in parameters]
            self.script.did_exchange(self._how, names, [p.numel() for p in parameters])
        if self._how == SAID:
            for model in self._buffers:
                model.end_step()
        self._seen.clear()
        self._touched.clear()

    def _begin_to(self, how: str) -> None:
        if self._how not in (None, how):
            raise UserError(f"a backward pass outside of run.worker: {USE}, all of them")
        self._how, self.workers = how, self.script.mine

    def _set_gradients_aside(self) -> None:
        self._set_aside = [(p, p.grad) for p in self.script.parameters() if p.requires_grad]
        if not self._set_aside:
            raise UserError(
                f"{self._plays()} before the script has made an optimizer of torch.optim's: make it first"
            )
        for p, _ in self._set_aside:
            p.grad = None

    @torch.no_grad()
    def _catch(self, w: int, divided: bool) -> None:
        i = self.workers.index(w)
        for p, _ in self._set_aside:
            row_n = self._stack(p)[i]
            if p.grad is None:
                row_n.zero_()
            else:
                row_n.copy_(dense(p.grad, "a parameter"))
                self._touched[p] = True
        self._seen[w] = divided

    def _put_back(self) -> None:
        for p, before in self._set_aside:
            p.grad = before
        self._set_aside = []

    def _stack(self, p: nn.Parameter) -> Tensor:
        stack = self.stacks.get(p)
        if stack is None:
            shape = len(self.workers), p.numel()
            stack = self.stacks[p] = torch.zeros(shape, dtype=torch.float32, device=p.device)
        return stack

    def _know(self, parameters: Sequence[nn.Parameter]) -> None:
        if self.mean is None:
            group = dist.new_group() if self.script.ranks > 1 else None
            self.mean = Mean(self.asked, self.script.world_size, group)
            self.script.go_on("workers", self.mean)
            self._whole_round_seen |= self.mean.step > 0
        unknown = [p for p in parameters if not self.mean.knows(p)]
        if unknown:
            self.mean.know(unknown, self.script.named(unknown))

    def _agreed_on(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Those that some worker of some process had a gradient for. Collective."""
        touched = [p in self._touched for p in parameters]
        if self.script.ranks > 1:
            mask = torch.tensor(touched, dtype=torch.int32, device=parameters[0].device)
            dist.all_reduce(mask, op=dist.ReduceOp.MAX)
            touched = mask.bool().tolist()
        return [p for p, used in zip(parameters, touched, strict=True) if used]

    def _missing(self) -> str:
        return ", ".join(str(w) for w in self.workers if w not in self._seen)

    def _plays(self) -> str:
        per = f"{self.script.share} of the {self.script.world_size} workers"
        return f"world_size={self.script.world_size}: each process plays {per}"
