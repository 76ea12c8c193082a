"""Coverage of a script's first training step: the share of the multiply-accumulates that read each format.

Counting begins when the script first calls a model with rules in training mode and with gradients enabled. It ends
before the optimizer takes its first step, so the loss and the backward pass are included. If the script has several
optimizers, for example one for each of the two models of a GAN, counting ends before the last optimizer takes its first
step, or before any optimizer takes its second step. The optimizer steps themselves are not counted. If the script has
no optimizer from torch.optim, counting ends with the first backward pass.

Each product is counted every time it is computed. The count therefore includes all workers and micro-batches of the
step, and products that activation checkpointing computes twice are counted twice. Each process counts its own products.
Counting does not change the results of the script.

The counter is a TorchDispatchMode. While such a mode is active, PyTorch runs compiled functions without compiling them,
which can change the results. Therefore, nothing is counted if the script compiles a model or a function before the end
of its first step.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from custom_fp.layers.products import Arithmetic
from custom_fp.recipe.apply import placement_in
from custom_fp.recipe.coverage import Coverage, MacCounter, count_macs
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cpdrun.attach.intercept.patches import Patches
from cpdrun.attach.intercept.script import Script
from cpdrun.train.precision.product_entries import (
    arithmetics,
    by_elements,
    operations_entry,
    products_of,
    sum_operand_bits,
)

MOST_LINES = 12  # the largest number of lines about the coverage in the log
NO_STEP = "the script took no training step with a model that has rules"

# A check of one model. It is called with the names of the model's layers that never ran, and raises UserError if one of
# the model's rules selects only layers that never ran.
CheckCalled = Callable[[list[str]], None]


class FirstStepCoverage:
    """Counts the products of a script's first training step.

    Attributes:
        coverage: The coverage. None until the first step has been counted.
        problem: The reason why the step cannot be counted, or an empty string.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.coverage: Coverage | None = None
        self.problem = ""
        self._models: list[tuple[nn.Module, CheckCalled]] = []
        self._modules: dict[nn.Module, nn.Module] = {}  # maps each module to its model
        self._compiled = ""
        self._watch = Patches()
        self._counter: MacCounter | None = None
        self._counting: AbstractContextManager[MacCounter] | None = None  # reset to None after it is exited
        self._thread = 0
        self._stepped: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether the first step has been counted or cannot be counted."""
        return self.coverage is not None or bool(self.problem)

    def install(self, patches: Patches) -> None:
        """Watch for calls to torch.compile. Call this before the script starts."""
        patches.around(torch, "compile", self._compile)
        patches.around(nn.Module, "compile", self._compile)
        patches.add_undo(self._stop)

    def add(self, model: nn.Module, check_called: CheckCalled) -> None:
        """Include the products of a model in the count.

        Args:
            model: A model to which rules were just applied.
            check_called: A function that is called at the end of the count with the names of the layers that never ran.
        """
        placement = placement_in(model)
        if self.is_over or placement is None or not placement.placed:
            return
        if not self._models and not self._compiled:
            self._wait()
        self._models.append((model, check_called))
        self._modules |= dict.fromkeys(model.modules(), model)
        if self._compiled:
            self._give_up(self._compiled)

    def _wait(self) -> None:
        eager = torch.compiler.disable
        for hook in (
            register_module_forward_pre_hook(self._before_call),
            register_optimizer_step_pre_hook(eager(self._before_step)),
            register_optimizer_step_post_hook(eager(self._after_step)),
        ):
            self._watch.add_undo(hook.remove)
        self._watch.around(torch.amp.GradScaler, "step", self._scaler_step)

    def _stop(self) -> None:
        """Stop counting and remove all hooks.

        Optimizer hooks must not call this function, because it would remove them while they run.
        """
        self._stop_counting()
        if self._counting is None:
            self._watch.undo()

    def _stop_counting(self) -> None:
        """Pause the counter and exit its context. If the context cannot be exited yet, a later call exits it."""
        if self._counter is None or self._counting is None:
            return
        self._counter.is_paused = True
        # A dispatch mode can be exited only in the thread that entered it, and only if it is the innermost mode.
        if threading.get_ident() == self._thread and _get_current_dispatch_mode() is self._counter:
            counting, self._counting = self._counting, None
            counting.__exit__(None, None, None)

    def _compile(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_over:
            self._stop()
        target = args[0] if args else kwargs.get("model")
        if target is not None and not self.is_over:
            is_model = isinstance(getattr(target, "__self__", target), nn.Module)
            name = getattr(target, "__qualname__", type(target).__name__)
            self._compiled = self._compiled or ("the model" if is_model else name) + " is compiled"
            if self._models:
                self._give_up(self._compiled)
        return original(*args, **kwargs)

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self._stop()
        self.script.print(f"coverage: {self.summary}")

    # ---- the events of the first step

    def _before_call(self, module: nn.Module, _: Any) -> None:
        """Start counting if this is the first time that a model runs in training mode with gradients enabled."""
        if self.is_over:
            self._stop()
        is_ours = self._counter is None and not self.is_over and module in self._modules
        if not is_ours or not torch.is_grad_enabled() or torch.jit.is_tracing():
            return
        model = self._modules[module]
        if not any(m.training for m in model.modules()) or _get_current_dispatch_mode() is not None:
            return
        if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
            self._give_up("DataParallel computes in several threads")
            return
        self._counting = count_macs(
            {prefix: (model, placement_in(model)) for prefix, (model, _) in self._by_prefix().items()}
        )
        self._counter, self._thread = self._counting.__enter__(), threading.get_ident()
        # PyTorch collected the hooks of this call before the counter added its own, so they do not enter this module.
        self._counter.enter(module)

    def _before_step(self, optimizer: Optimizer, _args: tuple, _kwargs: dict[str, Any]) -> None:
        if self.is_over:
            self._stop_counting()
        elif self._counter is not None:
            number = self.script.number_of(optimizer)
            if number in self._stepped or not self._waits_for(number):
                self.end()
            else:
                self._counter.is_paused = True

    def _after_step(self, optimizer: Optimizer, _args: tuple, _kwargs: dict[str, Any]) -> None:
        if self.is_over:
            self._stop_counting()
        elif self._counter is not None:  # counting may have begun in a closure that the step called
            number = self.script.number_of(optimizer)
            self._stepped.add(number)
            self._counter.is_paused = False
            if not self._waits_for(number):
                self.end()

    def _waits_for(self, number: int) -> bool:
        """Return whether an optimizer other than the given one has yet to take its first step."""
        return bool(set(self.script.optimizers.values()) - self._stepped - {number})

    def _scaler_step(
        self, original: Any, scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(scaler, optimizer, *args, **kwargs)
        # If the scaler skipped the step, the optimizer's hooks did not run. Calling `_after_step` twice is harmless.
        if self._counter is not None and not self.is_over:
            self._after_step(getattr(optimizer, "optimizer", optimizer), (), {})
        return result

    def after_backward(self) -> None:
        """End the count after a backward pass if the script has no optimizer."""
        if self._counter is not None and not self.is_over and not self.script.optimizers:
            self.end()

    # ---- the result

    def end(self) -> None:
        """End the count and print the coverage, or the reason why the step was not counted.

        Raises:
            UserError: If, in every model that ran, some rule selects only layers that never ran.
        """
        if self.is_over or not self._models:
            return
        if self._counter is None:
            self._give_up(NO_STEP)
            return
        self.coverage = self._counter.coverage()
        self._stop_counting()
        self.script.print(f"coverage: {self.summary}")
        _, *lines = str(self.coverage).splitlines()
        more = [f"  and {len(lines) - MOST_LINES} more, in env.json"] if len(lines) > MOST_LINES else []
        for line in [*lines[:MOST_LINES], *more]:
            self.script.print(line)
        self._check_called(self._counter.entered, self.coverage.never_called)

    def _check_called(self, entered: set[nn.Module], never_called: list[str]) -> None:
        """Raise UserError if every model that ran has a rule that selects only layers that were never called."""
        errors = []
        called = {
            prefix: check
            for prefix, (model, check) in self._by_prefix().items()
            if entered & {*model.modules()}
        }
        for prefix, check in called.items():
            try:
                check([name.removeprefix(prefix) for name in never_called if name.startswith(prefix)])
            except Exception as error:
                errors.append(error)
        if errors and len(errors) == len(called):
            raise errors[0]

    @property
    def summary(self) -> str:
        """The share of multiply-accumulates in each format, or why the step was not counted.

        An example is "nvfp4 86%, bf16 14%, float32 0%".
        """
        return self.coverage.summary() if self.coverage is not None else f"not counted: {self.problem}"

    def products(self) -> dict[str, Any] | None:
        """Return the entry `products` of env.json.

        Returns:
            None until the count has ended. Then a dictionary with the same keys as in runs of cpdrun's own training
            loop, see `products_of`. If the step was not counted, the keys `in float32` and `never called` are left out,
            and `coverage` contains the reason.
        """
        if not self.is_over:
            return None
        by_layer: dict[str, Arithmetic] = {}
        for prefix, (model, _) in self._by_prefix().items():
            by_layer |= arithmetics(model, prefix)
        if self.coverage is not None:
            return products_of(by_layer, self.coverage)
        entry = products_of(by_layer, Coverage({}, [], []))
        del entry["in float32"]
        return entry | {"coverage": self.summary}

    def operations(self) -> dict[str, Any] | None:
        """Return the entry `products` of done.json.

        Returns:
            None until the count has ended. After that, a dictionary of the operations in one worker's step (see
            `operations_entry`). If the operations are unknown, its only key is `problem`, and its value is the reason.
        """
        if not self.is_over:
            return None
        if self.coverage is None:
            return {"problem": self.problem}
        phases = [phase for model, _ in self._models for phase in _phases(model)]
        if phases:
            return {"problem": f"only the first step was counted, and the rules change at step {min(phases)}"}
        share = self.script.workers_per_rank
        by_format = {kind: count / share for kind, count in by_elements(self.coverage).items()}
        return operations_entry(by_format, sum_operand_bits(self.coverage) / share, self.coverage.uncounted)

    def _by_prefix(self) -> dict[str, tuple[nn.Module, CheckCalled]]:
        """Return a dict that maps each layer-name prefix to its model and check. A single model has no prefix."""
        if len(self._models) == 1:
            return {"": self._models[0]}
        found: dict[str, tuple[nn.Module, CheckCalled]] = {}
        for i, (model, check) in enumerate(self._models):
            name = model.__class__.__name__
            found[f"{name}." if f"{name}." not in found else f"{name} {i}."] = model, check
        return found


def _phases(model: nn.Module) -> list[int]:
    """Return the steps after the first one at which the model's rules change."""
    placement = placement_in(model)
    return [] if placement is None else [step for step in placement.rules.phases if step > 0]
