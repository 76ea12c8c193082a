"""Detection of the events of a script's training steps: backward passes, and the use and the zeroing of gradients.

Gradients are complete when the script first uses them: in an optimizer's step, in clip_grad_norm_ or a similar
function, or in GradScaler.unscale_. One of three exchanges handles these events: `GradientExchange` does not change
gradients, `SingleWorker` rounds them, and `EmulatedWorkers` adds the gradients of several workers. DDP and fully_shard
detect by themselves when gradients are complete, so they have separate exchanges (ddp.py, fsdp.py).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cpdrun.attach.intercept.emulated_workers import EmulatedWorkers
from cpdrun.attach.intercept.exchange import ExchangeSettings, GradientExchange
from cpdrun.attach.intercept.model_rounding import ModelRounding
from cpdrun.attach.intercept.patches import Patches
from cpdrun.attach.intercept.script import Script, parameters_of
from cpdrun.attach.intercept.single_worker import SingleWorker
from cpdrun.errors import UserError

NO_OPTIMIZER = (
    "the script calls backward(), but has created no optimizer of torch.optim, so cpdrun can round neither its model "
    "nor its gradients. Create an optimizer, such as torch.optim.SGD, before the first backward pass"
)


class TrainingEvents:
    """Watches the optimizers, steps and backward passes of a script.

    In fp32, only the first step is watched, to compare its number of backward passes with the number of workers. Later
    steps are not slowed down. A watched step takes about 50 us longer.

    Attributes:
        steps: The number of watched steps of each optimizer, by the optimizer's number.
        has_backward: Whether a backward pass ran while steps were watched.
        is_baseline: Whether other runs of the sweep round gradients or products. The script then needs an optimizer in
            this run, too.
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        script: Script,
        rounding: ModelRounding,
        emulated: EmulatedWorkers,
        patches: Patches,
    ) -> None:
        self.settings, self.script, self.rounding = settings, script, rounding
        self.untouched = GradientExchange(settings, script)
        self.single, self.emulated, self.patches = SingleWorker(settings, script), emulated, patches
        self.steps: dict[int, int] = {}
        self._steps_before = 0  # the number of steps before this process, according to a checkpoint
        self._watch: Patches | None = None
        self.has_backward = False
        self.is_baseline = False

    @property
    def exchange(self) -> GradientExchange:
        """The exchange that handles the events now."""
        if self.emulated.in_use or (not self.settings.plain and self.script.workers_per_rank > 1):
            return self.emulated
        return self.untouched if self.settings.plain else self.single

    @property
    def has_trained(self) -> bool:
        """Whether a backward pass or a step was detected in this process."""
        return self._watch is None or bool(self.steps) or self.has_backward

    @property
    def most_steps(self) -> int | None:
        """The largest number of steps of an optimizer in this process, or None if steps are not watched."""
        return max(self.steps.values(), default=0) if self._watch else None

    @property
    def total_steps(self) -> int:
        """The largest number of steps of an optimizer, including those before this process."""
        return self._steps_before + max(self.steps.values(), default=0)

    def resume(self, total_steps: int) -> None:
        """Continue after this number of steps."""
        self._steps_before = total_steps - max(self.steps.values(), default=0)
        self.rounding.at(total_steps)

    def install(self) -> None:
        """Watch the creation of optimizers, and the functions that use gradients before a step."""
        self.patches.around(Optimizer, "add_param_group", self._add_param_group)
        if not self.settings.plain:
            _watch_uses(self, self.patches)

    def count_passes(self) -> None:
        """Count the backward passes of the first step, to check that there is one for each worker of this process."""
        self.untouched.passes = 0
        self.watch()

    def watch(self) -> None:
        """Watch steps, backward passes, and zeroed gradients."""
        if self._watch:
            return
        self._watch = Patches()
        self.patches.add_undo(self._unwatch)
        eager = torch.compiler.disable  # Hooks must not be compiled, even if a script compiles its steps.
        for hook in (
            register_optimizer_step_pre_hook(eager(self._before_step)),
            register_optimizer_step_post_hook(eager(self._after_step)),
        ):
            self._watch.add_undo(hook.remove)
        self._watch.around(torch.autograd, "backward", eager(self._backward))
        self._watch.around(Optimizer, "zero_grad", eager(self._zero_grad))
        self._watch.around(nn.Module, "zero_grad", eager(self._zero_grad))

    def _unwatch(self) -> None:
        if self._watch:
            self._watch.undo()
            self._watch = None

    def _unwatch_if_done(self) -> None:
        """Stop watching after the first step. This is called between steps, when no hook of a step is running."""
        is_counted = self.untouched.passes is None and self.steps
        if is_counted and self.settings.plain and not self.rounding.in_use and not self.emulated.in_use:
            self._unwatch()

    def add(self, optimizer: Any) -> None:
        """Add an optimizer of the script."""
        optimizer = _unwrapped(optimizer)
        self.script.number_of(optimizer)
        self.rounding.place_around(parameters_of(optimizer))
        if not self.settings.plain:
            self.single.add(optimizer)

    def _add_param_group(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self.add(optimizer)

    def _before_step(self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> tuple | None:
        if (wrapped := _with_closure(args, kwargs, lambda: self.exchange.before_step(optimizer))) is None:
            self.exchange.before_step(optimizer)
        return wrapped

    def _after_step(self, optimizer: Optimizer, _args: tuple, _kwargs: dict[str, Any]) -> None:
        number = self.script.number_of(optimizer)
        self.steps[number] = self.steps.get(number, 0) + 1
        if self.steps[number] == 2:
            # At the second step of an optimizer, all other optimizers have usually taken a step, too.
            self.settings.check_patterns()
        self.rounding.after_step(optimizer)
        self.rounding.at(self.total_steps)

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> None:
        if not self.has_backward:
            self.has_backward = True
            self._check_can_round()
        with self.exchange.backward_pass():
            self._unwatch_if_done()
            original(*args, **kwargs)
        self.rounding.first_step.after_backward()

    def _check_can_round(self) -> None:
        """Raise UserError at the first backward pass if the script has no optimizer that can be intercepted."""
        rounds = self.rounding.requested or not self.settings.plain or self.is_baseline
        script, rounding = self.script, self.rounding
        if rounds and not (script.optimizers or script.wrappers or rounding.placed or self.emulated.in_use):
            raise UserError(NO_OPTIMIZER)

    def _zero_grad(self, original: Any, owner: Any, *args: Any, **kwargs: Any) -> None:
        parameters = parameters_of(owner) if isinstance(owner, Optimizer) else owner.parameters()
        self.exchange.discard(parameters)
        self._unwatch_if_done()
        original(owner, *args, **kwargs)


def _watch_uses(events: TrainingEvents, patches: Patches) -> None:
    """Exchange gradients before any function that uses them before a step, such as clip_grad_norm_."""

    def clip(original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        events.exchange.complete(parameters)
        return original(parameters, *args, **kwargs)

    def total_norm(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        events.exchange.before_total_norm()
        return original(tensors, *args, **kwargs)

    def unscale(original: Any, scaler: Any, optimizer: Optimizer) -> None:
        events.exchange.before_step(_unwrapped(optimizer))
        original(scaler, optimizer)

    utils, eager = torch.nn.utils, torch.compiler.disable
    for place in (utils, utils.clip_grad):
        patches.around(place, "clip_grad_norm_", eager(clip))
        patches.around(place, "clip_grad_value_", eager(clip))
    patches.around(utils, "clip_grads_with_norm_", eager(clip))
    patches.around(utils, "get_total_norm", eager(total_norm))
    patches.around(torch.amp.GradScaler, "unscale_", eager(unscale))


def _with_closure(args: tuple, kwargs: dict[str, Any], after: Callable[[], None]) -> tuple | None:
    """Return the arguments of an optimizer's step with a closure that also calls `after`, or None without a closure."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
    if closure is None:
        return None

    def closure_and_after() -> Any:
        loss = closure()
        after()
        return loss

    if len(args) > 1:
        return (args[0], closure_and_after, *args[2:]), kwargs
    return args, {**kwargs, "closure": closure_and_after}


def _unwrapped(optimizer: Any) -> Any:
    """Return the optimizer inside a wrapper of Accelerate. An optimizer without a wrapper is returned unchanged."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, Optimizer) else optimizer
