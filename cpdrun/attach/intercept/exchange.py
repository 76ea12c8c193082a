"""Summation of the gradients of a script's workers in a number format, as in the built-in training loop.

`ExchangeSettings` reads the config and creates the sums. A `GradientMean` computes the mean gradient of a set of
parameters. A `GradientExchange` determines what happens to gradients during a step. training_events.py calls it when a
backward pass begins, when gradients are complete, and when the script discards them.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from cpdrun.attach.intercept.script import Script
from cpdrun.comm import AllReduceSync
from cpdrun.comm.script.ddp_hook import DENSE
from cpdrun.comm.sums.magnitudes import PreviousStep
from cpdrun.errors import UserError
from cpdrun.train.instantiate import naming, part

# The largest finite bfloat16 value. Larger values are nearly always too large for float32, too.
LARGEST_BFLOAT16 = torch.finfo(torch.bfloat16).max
USE_RUN_WORKER = "put `with run.worker(w):` around each worker's forward and backward pass"


class ExchangeSettings:
    """The settings of the exchange of gradients between workers.

    Args:
        config: The run's config.

    Attributes:
        plain: Whether the script's own exchange is not changed, because the config requests a plain sum in fp32 without
            scaling.
        longest_chain: The largest number of values that are added one after the other.
        remembers: A description of the state that the sum keeps between steps. "" if each step is independent.
        overflow_advice: Advice for users if gradients are too large for the format, or "".

    Raises:
        UserError: The config requests an exchange that is not available in scripts.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.format, self.world_size, self.seed = config["format"], config["world_size"], config["seed"]
        self._make = part("sync", config["sync"], _partial_=True)
        self._scaling = partial(part, "scaling", config["scaling"]) if config["aps"] else lambda: None
        self.full_precision: list[str] = list(config["full_precision"]["layers"])
        self._unmatched = set(self.full_precision)
        for key in ("first_epochs", "last_epochs"):
            if config["full_precision"][key]:
                raise UserError(
                    f"full_precision.{key} is not available in scripts, whose epochs are unknown to cpdrun. Use "
                    "full_precision.layers instead"
                )
        with naming("sync"):
            sync = self._sum(["any"], self.world_size, None, [])
        if not isinstance(sync, AllReduceSync):
            raise UserError(
                f"sync={type(sync).__name__} is not available in scripts. Use sync=all_reduce or sync=requantised. To "
                "compress gradients, call cpdrun.comm.ddp_hook(model, compressor='top_k') in the script"
            )
        self.plain = sync.sum.is_plain and not sync.shifts.scale
        self.longest_chain = sync.longest_chain
        self.remembers = _remembered(sync)
        self.overflow_advice = "" if sync.shifts.scale else _overflow_advice(sync)

    def __str__(self) -> str:
        return f"{self.format} with APS" if self._scaling() else str(self.format)

    def make_sum(
        self, names: Sequence[str], world_size: int, group: dist.ProcessGroup | None = None
    ) -> AllReduceSync:
        """Create the sum of the gradients of named parameters.

        Args:
            names: The names of the parameters.
            world_size: The number of workers.
            group: The process group of the ranks that share the workers.

        Raises:
            UserError: The settings are invalid for these parameters.
        """
        layers = [glob for glob in self.full_precision if any(fnmatchcase(name, glob) for name in names)]
        self._unmatched.difference_update(layers)
        with naming("sync"):
            return self._sum(names, world_size, group, layers)

    def check_patterns(self) -> None:
        """Raise UserError if a pattern in full_precision.layers matches no parameter that was exchanged so far."""
        if self._unmatched:
            pattern = min(self._unmatched)
            raise UserError(f"full_precision.layers: {pattern!r} matches no parameter of the script's models")

    def _sum(
        self, names: Sequence[str], world_size: int, group: dist.ProcessGroup | None, layers: list[str]
    ) -> Any:
        return self._make(
            format=self.format,
            scaling=self._scaling(),
            world_size=world_size,
            seed=self.seed,
            epochs=None,
            parameter_names=list(names),
            full_precision={"layers": layers, "first_epochs": 0, "last_epochs": 0},
            **({} if group is None else {"group": group}),
        )


class ResumableSum:
    """A sum with state, which is created when its parameters are known. A checkpoint may be loaded before that."""

    def __init__(self) -> None:
        self.step = 0
        self.sync: AllReduceSync | None = None
        self._loaded: dict[str, Any] = {}  # the state from a checkpoint, until the sum is created

    def set_sum(self, sync: AllReduceSync) -> None:
        """Use a new sum. The state of the sum that it replaces is copied to it."""
        if self.sync is not None:
            sync.go_on_from(self.sync)
        elif self._loaded:
            sync.load_state_dict(self._loaded)
        self.sync = sync

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sum, with the same keys as the state of a DDP hook. Collective."""
        return {"step": self.step, "sync": self.sync.state_dict() if self.sync else self._loaded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state for the next sum. Raises ValueError if the state belongs to another kind of sum."""
        self.step, self._loaded = state["step"], state["sync"]
        if self.sync is not None and self._loaded:
            self.sync.load_state_dict(self._loaded)


class GradientMean(ResumableSum):
    """Computes the mean of the gradients of all workers. Parameters may be added later.

    Args:
        settings: The settings of the exchange.
        script: The script. Its record lists the exchanged parameters.
        name: The name of the mean's state in checkpoints.
        world_size: The number of workers.
        group: The process group of the ranks that share the workers.
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        script: Script,
        name: str,
        world_size: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        super().__init__()
        self.settings, self.script, self.world_size, self.group = settings, script, world_size, group
        self.names: list[str] = []
        self._index = WeakIdKeyDictionary()
        script.register_state(name, self)

    def names_of(self, parameters: Sequence[nn.Parameter]) -> list[str]:
        """Return the names of the parameters.

        New parameters are first added to the sum, which keeps its state for the others.
        """
        new = [p for p in parameters if p not in self._index]
        if new:
            for p, name in zip(new, self.script.names_of(new), strict=True):
                self._index[p] = len(self.names)
                self.names.append(name)
            self.set_sum(self.settings.make_sum(self.names, self.world_size, self.group))
        return [self.names[self._index[p]] for p in parameters]

    def exchange_(
        self, how: str, parameters: Sequence[nn.Parameter], stacks: Sequence[Tensor]
    ) -> list[Tensor]:
        """Sum the gradients of the workers. Collective.

        Args:
            how: A description of the way in which gradients are exchanged, for the record.
            parameters: The parameters, which may be new.
            stacks: For each parameter, the gradients of this process's workers as a contiguous float32 tensor of shape
                (W, n). The tensors are overwritten.

        Returns:
            The sum of each parameter's gradients, of shape (n,), which is a view of the first row of its stack.
        """
        names = self.names_of(parameters)
        assert self.sync is not None
        sums = [stack[0] for stack in stacks]
        layers = [self._index[p] for p in parameters]
        self.sync.reduce_layers(layers, stacks, step=self.step, epoch=0, out=sums)
        self.step += 1
        self.script.record_exchange(how, names, [p.numel() for p in parameters])
        return sums


class GradientExchange:
    """The base class of handlers of gradients during a step. This class does not change gradients.

    If each process emulates several workers, the class checks that the first step has one backward pass for each
    worker. Otherwise, the number of workers in the record would be wrong.
    """

    def __init__(self, settings: ExchangeSettings, script: Script) -> None:
        self.settings, self.script = settings, script
        self.passes: int | None = (
            None  # the number of backward passes before the first step, or None if they are not counted
        )

    def backward_pass(self) -> AbstractContextManager[None]:
        """Return a context for an outermost backward pass."""
        if self.passes is not None:
            self.passes += 1
        return nullcontext()

    def complete(self, parameters: Iterable[nn.Parameter] | None = None) -> None:
        """Exchange gradients that are about to be used.

        Args:
            parameters: The parameters whose gradients are used. None means all parameters.
        """

    def before_step(self, optimizer: Optimizer) -> None:
        """Exchange the gradients that an optimizer is about to use."""
        if self.passes is not None and len(self.script.optimizers) == 1:
            passes, self.passes = self.passes, None
            check_first_step(self.script, passes)

    def before_total_norm(self) -> None:
        """Exchange all gradients before get_total_norm reads some of them.

        All gradients are exchanged, because get_total_norm receives gradients, not parameters.
        """
        self.complete()

    def discard(self, parameters: Iterable[nn.Parameter]) -> None:
        """Handle the event that the script zeroes the gradients of these parameters."""


def check_first_step(script: Script, passes: int) -> None:
    """Raise UserError if the first step did not have one backward pass for each worker of the process."""
    share = script.workers_per_rank
    if passes != share:
        raise UserError(
            f"{workers_text(script)}, but the first step has {passes} backward passes. Accumulate the gradients of "
            f"{share} passes per step, {USE_RUN_WORKER}, or set world_size={script.ranks * max(passes, 1)}"
        )


def workers_text(script: Script) -> str:
    """Return the beginning of an error message, which says how many workers a process emulates."""
    return (
        f"world_size={script.world_size}: each process emulates {script.workers_per_rank} of the "
        f"{script.world_size} workers"
    )


def dense(gradient: Tensor, name: str) -> Tensor:
    """Return a gradient as a float32 tensor of shape (n,), without a copy if possible.

    Raises:
        UserError: The gradient is sparse.
    """
    if gradient.layout != torch.strided:
        raise UserError(
            f"the gradient of {name} is sparse, but cpdrun can sum only dense gradients over workers. Please {DENSE}"
        )
    return gradient.detach().to(torch.float32).reshape(-1)


def _overflow_advice(sync: AllReduceSync) -> str:
    """Return advice for a script whose weights are not finite, or "" if the format cannot be the cause."""
    largest = getattr(sync.sum.fmt, "max", None)
    if sync.sum.overflow != "infinity" or largest is None or largest >= LARGEST_BFLOAT16:
        return ""
    return f": without APS, a gradient beyond {largest:g} is not finite in {sync.sum.fmt}. Try aps=true"


def _remembered(sync: AllReduceSync) -> str:
    states = {
        "the residual of error_feedback": sync.sum.error_feedback,
        "the step that keys stochastic rounding": sync.sum.is_stochastic,
        "the magnitudes of aps_delayed": isinstance(sync.shifts.magnitudes, PreviousStep),
    }
    return " and ".join(text for text, is_kept in states.items() if is_kept)
