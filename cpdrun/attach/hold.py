"""What cpdrun takes hold of in a training script: the exchange of its gradients, and the products of its layers.

    hold = Hold(config)     of a run's config.yaml
    hold.install()          before the script's first line
    ...                     the script
    hold.check()            an attachment that took hold of nothing is an error
    hold.facts()            for the record, at any time

How, in `held/`: under DistributedDataParallel (ddp.py), under fully_shard (sharded.py), before the step of a process
that is the only worker (on_step.py), and of several workers that a process plays (played.py). Products: products.py.

With format=fp32, no scaling and a plain sum the script's own exchange is left wholly alone, its order too: the weights
are those that the script has without cpdrun, bit for bit, whereas built-in runs add float32 in the order of workers.
The exception is `run.worker` where a process plays several and the losses are not divided: cpdrun forms that sum.
"""

import atexit
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
import yaml
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cpdrun.attach.environment import RUN_DIR
from cpdrun.attach.held.ddp import HoldsDdp
from cpdrun.attach.held.exchange import Asked
from cpdrun.attach.held.facts import facts_of
from cpdrun.attach.held.models import unwrapped
from cpdrun.attach.held.on_step import OnStep
from cpdrun.attach.held.patches import Patches
from cpdrun.attach.held.played import Played
from cpdrun.attach.held.products import Products
from cpdrun.attach.held.script import Script, of_optimizer
from cpdrun.errors import UserError
from cpdrun.record import RunDir


class Hold:
    """One for a process. Raises UserError where the config asks for what a script cannot be held to."""

    current: ClassVar["Hold | None"] = None

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.asked = Asked(config)
        self.script = Script(config["world_size"])
        self.products = Products(config, self.script)
        self.ddp = HoldsDdp(self.asked, self.script, self.products)
        self.on_step = OnStep(self.asked, self.script)
        self.played = Played(self.asked, self.script, self.ddp.models)
        self.patches = Patches()
        self.sharded: Any = None
        self._watching = False
        self._steps: dict[int, int] = {}  # by the number of the optimizer
        self._passes: int | None = None  # backward passes before the first step, where they are counted

    @classmethod
    def around(cls) -> "Hold":
        """The one installed in this process; without one, as where the script was not started by cpdrun's runner but by
        a process of its own, one of the run that CPDRUN_RUN_DIR names, installed now and checked when Python ends."""
        if cls.current is None:
            run = RunDir(Path(os.environ[RUN_DIR]))
            hold = cls(yaml.safe_load(run.config.read_text(encoding="utf-8")))
            hold.install()
            atexit.register(hold.check_at_exit)
        return cls.current

    def install(self) -> None:
        """From here on what the script constructs is taken hold of."""
        Hold.current = self
        self.ddp.install(self.patches)
        self.patches.around(Optimizer, "add_param_group", self._add_param_group)
        if not self.asked.plain or self.products.asked:
            self._install_sharded()
            self._watch()
        if self.asked.plain and self.script.share > 1:
            # left alone, but not called a run of so many workers unless it is one
            self._watch()
            self._passes = 0
        if not self.asked.plain:
            self._watch_uses()
        if self.asked.remembers:
            self.script.note(
                f"{self.asked.remembers} goes from step to step and is in no checkpoint of the script's: a run that is "
                "stopped and goes on gives other bits than one that is not"
            )

    def uninstall(self) -> None:
        """torch as it was; what has been constructed meanwhile stays held."""
        self.patches.undo()
        self._watching = False
        Hold.current = None

    def take(self, given: Any) -> None:
        """A model or an optimizer, made before `install` or after. Raises UserError for anything else."""
        if isinstance(given, Optimizer):
            self._take_optimizer(given)
        elif isinstance(given, nn.Module):
            self.script.know(unwrapped(given))
            self.products.place(given)
            if isinstance(given, DistributedDataParallel):
                self.ddp.take(given)
        else:
            raise UserError(f"cpdrun.attach takes models and optimizers, not {type(given).__name__}")

    # ---- what the script calls

    @property
    def workers(self) -> range:
        """Those of the run's workers that this process plays."""
        return self.script.mine

    def worker(self, w: int, *, divided: bool = False) -> AbstractContextManager[None]:
        """Around forward and backward of one of `workers`; see `cpdrun.attach.run.Run.worker`."""
        if w not in self.workers:
            raise UserError(
                f"run.worker({w}): this process plays the workers {list(self.workers)}: run.workers"
            )
        # where a process is one worker, DDP, FSDP or the step exchange its gradient; divided losses of several add up
        # in the script's own way where nothing is rounded
        alone = self.script.ranks == 1 or self.script.wrappers
        if alone if self.script.share == 1 else self.asked.plain and divided:
            self._passes = None
            return nullcontext()
        self._watch()
        return self.played.worker(w, divided)

    @property
    def remembers(self) -> bool:
        """Whether what is held goes on from step to step, so that a script that is started again from a checkpoint of
        its own would not end with the same bits."""
        return bool(self.asked.remembers) or self.products.asked

    # ---- for the record

    def facts(self) -> dict[str, Any]:
        """What was attached and what was left alone, for the record: JSON."""
        steps = max(self._steps.values(), default=0) if self._watching else None
        syncs = [sync for sync in self._syncs() if sync is not None]
        return facts_of(self.asked, self.script, self.products, syncs) | {"optimizer_steps": steps}

    def check(self) -> None:
        """At the end of the script. Raises UserError where a format or a precision took hold of nothing."""
        if not self.asked.plain and not self.script.exchanged:
            raise UserError(
                f"format={self.asked} took hold of no gradient: the script took {sum(self._steps.values())} steps of "
                "torch.optim's optimizers; train in this process, with one of them"
            )
        if self.products.asked and not self.products.took_hold:
            raise UserError(
                "precision took hold of no layer: the script made no optimizer of torch.optim's and wrapped no model"
            )
        self.asked.check_patterns()

    def check_at_exit(self) -> None:
        """`check`, where nobody is left who would catch what it raises."""
        try:
            self.check()
        except UserError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            os._exit(error.exit_code)

    def _syncs(self) -> list[Any]:
        means = [*self.on_step.means.values(), *filter(None, [self.played.mean])]
        sharded = self.sharded.sums if self.sharded else []
        return [
            *(state.sync for state in self.ddp.states),
            *(s.sync for s in sharded),
            *(m.sync for m in means),
        ]

    # ---- around torch

    def _install_sharded(self) -> None:
        from cpdrun.attach.held.sharded import HoldsFsdp

        self.sharded = HoldsFsdp(self.asked, self.script, self.products)
        self.sharded.install(self.patches)

    def _watch(self) -> None:
        """Steps; and where workers are played, backward passes and zeroed gradients."""
        if self._watching:
            return
        self._watching = True
        # torch.compile, where a script compiles its steps, is not to look into what we do
        eager = torch.compiler.disable
        for hook in (
            register_optimizer_step_pre_hook(eager(self._before_step)),
            register_optimizer_step_post_hook(eager(self._after_step)),
        ):
            self.patches.later(hook.remove)
        self.patches.around(torch.autograd, "backward", eager(self._backward))
        self.patches.around(Optimizer, "zero_grad", eager(self._zero_grad))
        self.patches.around(nn.Module, "zero_grad", eager(self._zero_grad))

    def _watch_uses(self) -> None:
        """What a script calls with complete gradients, beside a step."""
        utils, eager = torch.nn.utils, torch.compiler.disable
        for place in (utils, utils.clip_grad):
            self.patches.around(place, "clip_grad_norm_", eager(self._clip))
            self.patches.around(place, "clip_grad_value_", eager(self._clip))
        self.patches.around(utils, "clip_grads_with_norm_", eager(self._clip))
        self.patches.around(utils, "get_total_norm", eager(self._total_norm))
        self.patches.around(torch.amp.GradScaler, "unscale_", eager(self._unscale))

    @property
    def _plays(self) -> bool:
        return self.played.in_use or (not self.asked.plain and self.script.share > 1)

    def _complete(self, parameters: list[nn.Parameter] | None) -> None:
        """Of these, None: of all, the gradients are about to be used."""
        if self._plays:
            self.played.complete()
        elif not self.asked.plain:
            self.on_step.complete(self.script.parameters() if parameters is None else parameters)

    def _add_param_group(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._take_optimizer(optimizer)

    def _take_optimizer(self, optimizer: Optimizer) -> None:
        optimizer = _that_steps(optimizer)
        self.script.number(optimizer)
        self.products.place_around(of_optimizer(optimizer))
        if not self.asked.plain:
            self.on_step.take(optimizer)

    def _before_step(self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> tuple | None:
        """args: the optimizer itself, and the closure where there is one."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._complete_of(optimizer)
            return None

        def closure_then_exchange() -> Any:
            loss = closure()
            self._complete_of(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], closure_then_exchange, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure_then_exchange}

    def _complete_of(self, optimizer: Optimizer) -> None:
        if not self._plays and not self.asked.plain:
            self.on_step.before_step(optimizer)
        else:
            self._complete(of_optimizer(optimizer))
            if self._passes is not None and not self.played.in_use and len(self.script.optimizers) == 1:
                passes, self._passes = self._passes, None
                self.played.check_first(passes)

    def _after_step(self, optimizer: Optimizer, _args: tuple, _kwargs: dict[str, Any]) -> None:
        number = self.script.number(optimizer)
        self._steps[number] = self._steps.get(number, 0) + 1
        if self._steps[number] == 2:
            # by now each of several optimizers has taken a step
            self.asked.check_patterns()
        self.products.at(max(self._steps.values()))

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> None:
        if not self._plays:
            if self._passes is not None:
                self._passes += 1
            original(*args, **kwargs)
            return
        with self.played.backward_pass():
            original(*args, **kwargs)

    def _zero_grad(self, original: Any, owner: Any, *args: Any, **kwargs: Any) -> None:
        of = of_optimizer(owner) if isinstance(owner, Optimizer) else owner.parameters()
        if self._plays:
            self.played.drop(of)
        elif not self.asked.plain:
            self.on_step.drop(of)
        original(owner, *args, **kwargs)

    def _clip(self, original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        self._complete(parameters)
        return original(parameters, *args, **kwargs)

    def _total_norm(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if self._plays:
            self.played.refuse_half_a_round("get_total_norm")
        else:
            self._complete(None)
        return original(tensors, *args, **kwargs)

    def _unscale(self, original: Any, scaler: Any, optimizer: Optimizer) -> None:
        self._complete_of(_that_steps(optimizer))
        original(scaler, optimizer)


def _that_steps(optimizer: Any) -> Any:
    """Accelerate's stands for the one in it, which alone takes steps."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, Optimizer) else optimizer
