"""Sum the gradients of a script's workers in a number format, as the built-in training loop does.

`Asked` reads the settings from the config and creates the sums. A `Mean` is one sum and the parameters whose gradients
it computes.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from cpdrun.comm import AllReduceSync
from cpdrun.comm.script.ddp_hook import DENSE
from cpdrun.comm.sums.magnitudes import PreviousStep
from cpdrun.errors import UserError
from cpdrun.train.instantiate import naming, part

LARGEST_BFLOAT16 = torch.finfo(torch.bfloat16).max  # what is beyond it is beyond float32 too, or nearly so


class Asked:
    """Of the gradients between workers. Raises UserError for what a script's cannot be held to."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.format, self.world_size, self.seed = config["format"], config["world_size"], config["seed"]
        self._make = part("sync", config["sync"], _partial_=True)
        self._scaling = partial(part, "scaling", config["scaling"]) if config["aps"] else lambda: None
        self.full_precision: list[str] = list(config["full_precision"]["layers"])
        self._unmatched = set(self.full_precision)
        for key in ("first_epochs", "last_epochs"):
            if config["full_precision"][key]:
                raise UserError(
                    f"full_precision.{key}: what an epoch of a script is, cpdrun does not know; name "
                    "full_precision.layers instead"
                )
        with naming("sync"):
            sync = self._sum(["any"], self.world_size, None, [])
        if not isinstance(sync, AllReduceSync):
            raise UserError(
                f"sync={type(sync).__name__}: a script's workers share their weights and add gradients: take "
                "sync=all_reduce or sync=requantised; what compresses, a script takes by itself, from "
                "cpdrun.comm.ddp_hook(model, compressor='top_k')"
            )
        self.plain = sync.sum.is_plain and not sync.shifts.scale
        self.longest_chain = sync.longest_chain
        self.remembers = _remembered(sync)
        self.overflow_advice = "" if sync.shifts.scale else _overflow_advice(sync)

    def __str__(self) -> str:
        return f"{self.format} with APS" if self._scaling() else str(self.format)

    def sum_of(
        self, names: Sequence[str], world_size: int, group: dist.ProcessGroup | None = None
    ) -> AllReduceSync:
        """Of parameters by their names. group: of the ranks that share the workers. Raises UserError."""
        layers = [glob for glob in self.full_precision if any(fnmatchcase(name, glob) for name in names)]
        self._unmatched.difference_update(layers)
        with naming("sync"):
            return self._sum(names, world_size, group, layers)

    def check_patterns(self) -> None:
        """Raises UserError for a pattern of full_precision.layers that has matched no parameter so far."""
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


class Going:
    """A sum that goes on from step to step, made when its parameters are known."""

    def __init__(self) -> None:
        self.step = 0
        self.sync: AllReduceSync | None = None
        self._loaded: dict[str, Any] = {}  # from a checkpoint, until the sum is there

    def made(self, sync: AllReduceSync) -> None:
        """In place of one of fewer parameters, where there was one."""
        if self.sync is not None:
            sync.go_on_from(self.sync)
        elif self._loaded:
            sync.load_state_dict(self._loaded)
        self.sync = sync

    def state_dict(self) -> dict[str, Any]:
        """As `cpdrun.comm.script.ddp_hook.HookState` has it. Collective."""
        return {"step": self.step, "sync": self.sync.state_dict() if self.sync else self._loaded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Before the next sum is formed. Raises ValueError for the state of another kind of sum."""
        self.step, self._loaded = state["step"], state["sync"]
        if self.sync is not None and self._loaded:
            self.sync.load_state_dict(self._loaded)


class Mean(Going):
    """The sum of this process's and all other workers' gradients, for parameters that it gets to know one after the
    other. Legend: W workers of this process, n elements of a parameter."""

    def __init__(self, asked: Asked, world_size: int, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.asked, self.world_size, self.group = asked, world_size, group
        self.names: list[str] = []
        self._place = WeakIdKeyDictionary()

    def knows(self, parameter: nn.Parameter) -> bool:
        return parameter in self._place

    def know(self, parameters: Sequence[nn.Parameter], names: Sequence[str]) -> None:
        """From here on these take part too; what the sum remembers of others stays."""
        for p, name in zip(parameters, names, strict=True):
            self._place[p] = len(self.names)
            self.names.append(name)
        self.made(self.asked.sum_of(self.names, self.world_size, self.group))

    def name(self, parameter: nn.Parameter) -> str:
        return self.names[self._place[parameter]]

    def form_(self, parameters: Sequence[nn.Parameter], stacks: Sequence[Tensor]) -> list[Tensor]:
        """stacks[k]: (W, n) float32, contiguous, of parameter k; its sum (n,) comes back, and lies in stacks[k][0]."""
        sums = [stack[0] for stack in stacks]
        layers = [self._place[p] for p in parameters]
        self.sync.reduce_layers(layers, stacks, step=self.step, epoch=0, out=sums)
        self.step += 1
        return sums


def _overflow_advice(sync: AllReduceSync) -> str:
    """Return what to do about gradients beyond the format's largest value, or "" if they cannot be the reason."""
    largest = getattr(sync.sum.fmt, "max", None)
    if sync.sum.overflow != "infinity" or largest is None or largest >= LARGEST_BFLOAT16:
        return ""
    return f": without APS, a gradient beyond {largest:g} is not finite in {sync.sum.fmt}. Try aps=true"


def _remembered(sync: AllReduceSync) -> str:
    """What the sum keeps between steps, in words; empty where each step is by itself."""
    kept = {
        "the residual of error_feedback": sync.sum.error_feedback,
        "the step that stochastic rounding draws by": sync.sum.is_stochastic,
        "the magnitudes of aps_delayed": isinstance(sync.shifts.magnitudes, PreviousStep),
    }
    return " and ".join(words for words, found in kept.items() if found)


def dense(gradient: Tensor, name: str) -> Tensor:
    """(n,) float32 and contiguous; the gradient's own memory where that is so. Raises UserError for a sparse one."""
    if gradient.layout != torch.strided:
        raise UserError(f"the gradient of {name} is sparse, workers' sums are dense: {DENSE}")
    return gradient.detach().to(torch.float32).reshape(-1)
