"""What a script does with complete gradients, watched: the steps of its optimizers, and what it calls before one.

Before each of them the gradients are exchanged, by on_step.py or by played.py; what zeroes them is watched too, and
where a process plays several workers, its backward passes.
"""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cpdrun.attach.held.exchange import Asked
from cpdrun.attach.held.on_step import OnStep
from cpdrun.attach.held.patches import Patches
from cpdrun.attach.held.played import Played
from cpdrun.attach.held.products import Products
from cpdrun.attach.held.script import Script, of_optimizer
from cpdrun.errors import UserError


class Steps:
    """taken: by the number of the optimizer, counted while they are watched.

    Under format=fp32 only a first step is watched, for whether its backward passes are as many as workers; after that
    nothing of ours is left in the way of a step, where a watched one takes some 50 us longer."""

    def __init__(
        self,
        asked: Asked,
        script: Script,
        products: Products,
        on_step: OnStep,
        played: Played,
        patches: Patches,
    ) -> None:
        self.asked, self.script, self.products = asked, script, products
        self.on_step, self.played, self.patches = on_step, played, patches
        self.taken: dict[int, int] = {}
        self._before = 0  # steps before this process, as a checkpoint says
        self._watch: Patches | None = None
        self._passes: int | None = None  # backward passes before the first step, where they are counted
        self.has_backward = False  # whether a backward pass ran while they were watched
        self.is_baseline = False  # of formats that could not be applied to a script without an optimizer

    @property
    def none_so_far(self) -> bool:
        """Whether this process is known to have run no backward pass and no step."""
        return self._watch is not None and not self.taken and not self.has_backward

    @property
    def most(self) -> int | None:
        """Of one optimizer; None where they are not watched."""
        return max(self.taken.values(), default=0) if self._watch else None

    @property
    def all(self) -> int:
        """Those of one optimizer, in this process and before it."""
        return self._before + max(self.taken.values(), default=0)

    def go_on_from(self, steps: int) -> None:
        """`all` is this from here on."""
        self._before = steps - max(self.taken.values(), default=0)
        self.products.at(steps)

    def install(self) -> None:
        """Optimizers are known as they are made."""
        self.patches.around(Optimizer, "add_param_group", self._add_param_group)

    def count_passes(self, counted: bool) -> None:
        """Whether the first step must come after a backward pass for each worker of this process."""
        self._passes = 0 if counted else None
        if counted:
            self.watch()

    def watch(self) -> None:
        """Steps; and where workers are played, backward passes and zeroed gradients."""
        if self._watch:
            return
        self._watch = Patches()
        self.patches.later(self._unwatch)
        # torch.compile, where a script compiles its steps, is not to look into what we do
        eager = torch.compiler.disable
        for hook in (
            register_optimizer_step_pre_hook(eager(self._before_step)),
            register_optimizer_step_post_hook(eager(self._after_step)),
        ):
            self._watch.later(hook.remove)
        self._watch.around(torch.autograd, "backward", eager(self._backward))
        self._watch.around(Optimizer, "zero_grad", eager(self._zero_grad))
        self._watch.around(nn.Module, "zero_grad", eager(self._zero_grad))

    def _unwatch(self) -> None:
        if self._watch:
            self._watch.undo()
            self._watch = None

    def _unwatch_if_seen(self) -> None:
        """Between steps, for a hook of a step cannot take itself away."""
        counted = self._passes is None and self.taken
        if counted and self.asked.plain and not self.products.in_use and not self.played.in_use:
            self._unwatch()

    def watch_uses(self) -> None:
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
        self.take(optimizer)

    def take(self, optimizer: Optimizer) -> None:
        """From here on it is one of the script's."""
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
        self.taken[number] = self.taken.get(number, 0) + 1
        if self.taken[number] == 2:
            # by now each of several optimizers has taken a step
            self.asked.check_patterns()
        self.products.at(self.all)

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> None:
        if not self.has_backward:
            self.has_backward = True
            self._check_can_round()
        if not self._plays:
            if self._passes is not None:
                self._passes += 1
            self._unwatch_if_seen()
            original(*args, **kwargs)
            return
        with self.played.backward_pass():
            original(*args, **kwargs)

    def _check_can_round(self) -> None:
        """Raise UserError, at the first backward pass, if the script trains by steps that nothing here sees."""
        asked = self.products.asked or not self.asked.plain or self.is_baseline
        seen = self.script.optimizers or self.script.wrappers or self.products.placed or self.played.in_use
        if asked and not seen:
            raise UserError(
                "the script calls backward() and has made no optimizer of torch.optim, so cpdrun can round neither its "
                "model nor its gradients: step by torch.optim.SGD or another one, and make it before the first "
                "backward pass"
            )

    def _zero_grad(self, original: Any, owner: Any, *args: Any, **kwargs: Any) -> None:
        of = of_optimizer(owner) if isinstance(owner, Optimizer) else owner.parameters()
        if self._plays:
            self.played.drop(of)
        elif not self.asked.plain:
            self.on_step.drop(of)
        else:
            self._unwatch_if_seen()
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
