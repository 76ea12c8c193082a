"""Apply the run's precision rules to a script's models: to products, activations and errors, as in a built-in run.

Rules are applied to a model once: by cpdrun.attach(model), before DistributedDataParallel or fully_shard wrap it, or
when an optimizer is made of its parameters, whichever comes first. That is before its first forward pass. Modules stay
the same objects. What a script does itself is refused: formats of the weights, the optimizer and its state, and a loss
scale (it has GradScaler).

What the script saves of a model is its own (custom_fp.layers.attachment), so a model that it loads with torch.load is
in float32. If it has the class and the parameters of a model that the rules were applied to, it is taken for a
checkpoint of that model, and the rules are applied to it: scripts evaluate their best checkpoint so. Other models that
no optimizer holds stay in float32, and those among them that got weights from a file are named when the script ends.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from custom_fp.layers.attention import QuantMultiheadAttention
from custom_fp.recipe.apply import apply_recipe, placement_in, rounded_in, uncalled
from torch import nn
from torch.utils._pytree import tree_leaves

from cpdrun.attach.held.models import unwrapped
from cpdrun.attach.held.patches import Patches
from cpdrun.attach.held.script import Script
from cpdrun.errors import UserError
from cpdrun.train.instantiate import naming, part
from cpdrun.train.precision.formats import Formats

MULTIPLY = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding, nn.MultiheadAttention, nn.RNNBase, nn.Bilinear)


class Products:
    """Raises UserError for a precision that a script cannot be held to."""

    def __init__(self, config: dict[str, Any], script: Script) -> None:
        self.config, self.script = config, script
        self.placed: list[tuple[nn.Module, Any]] = []  # models, and the precision of each
        self._loaded: dict[
            int, tuple[weakref.ref[nn.Module], str]
        ] = {}  # in float32: models, and how they are named
        self._reloaded: set[int] = set()  # of `placed`, which the script may never call
        self._step = 0
        self._rounded: dict[str, str] = {}  # layers, and how
        self.in_fp32: dict[str, str] = {}  # layers that multiply, and their classes
        precision = self._precision()
        self.asked = not isinstance(precision, Formats) or bool(precision.typed or precision.short)
        _check_steps(precision)
        if config["precision"]["loss_scale"] != 1:
            scale = config["precision"]["loss_scale"]
            raise UserError(
                f"precision.loss_scale={scale}: a script scales its own loss, as by GradScaler; take 1.0"
                + (" (recipe.loss_scale=1.0)" if config.get("recipe") else "")
            )

    def _precision(self) -> Any:
        precision = part("precision", self.config["precision"])
        precision.seed = self.config["seed"]
        return precision

    @property
    def in_use(self) -> bool:
        """Whether some of the script's layers compute by rules, of the run or its own."""
        return self.asked or bool(self.placed)

    @property
    def took_hold(self) -> bool:
        return any(precision is not None for _, precision in self.placed)

    @property
    def rounded(self) -> dict[str, str]:
        """Layers, and how each computes in the first step; products of attention once they have been computed."""
        waiting = {name for model, _ in self.placed for name in uncalled(model)}
        return {name: how for name, how in self._rounded.items() if name not in waiting}

    def install(self, patches: Patches) -> None:
        """Watch the models that the script loads."""
        patches.around(torch, "load", self._load)
        patches.around(nn.Module, "load_state_dict", self._load_state_dict)

    def _load(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = original(*args, **kwargs)
        for model in tree_leaves(loaded) if self.placed else ():
            if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
                continue
            name = type(unwrapped(model)).__name__
            if self._is_checkpoint(model):
                self._reloaded.add(len(self.placed))
                self.place(model)
                self.script.note(
                    f"{name}: the model that torch.load returned computes by the run's rules, too"
                )
            elif next(model.parameters(), None) is not None:
                self._loaded[id(model)] = weakref.ref(model), f"{name} (from torch.load)"
        return loaded

    def _load_state_dict(self, original: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self._is_checkpoint(model):
            name = type(unwrapped(model)).__name__
            self._loaded[id(model)] = weakref.ref(model), f"{name} (from load_state_dict)"
        return original(model, *args, **kwargs)

    def _is_checkpoint(self, model: nn.Module) -> bool:
        """Return whether a model without rules has the class and the parameters of one that has them."""
        model = unwrapped(model)
        if self._is_placed(model):
            return False
        return any(_shape(model) == _shape(placed) for placed, precision in self.placed if precision)

    def note_models_in_float32(self) -> None:
        """Name, at the end of the script, the models that got weights from a file and no rules."""
        for ref, name in self._loaded.values():
            model = ref()
            if model is None or not self._is_placed(unwrapped(model)):
                self.script.note(
                    f"{name} computed in float32: no optimizer holds its parameters. cpdrun.attach(model) applies the "
                    "run's rules to it"
                )

    def place_around(self, parameters: Sequence[nn.Parameter]) -> None:
        """In the models that hold these."""
        if self.asked:
            for model in self.script.models_with(parameters):
                self.place(model)

    def place(self, model: nn.Module) -> None:
        """Apply the run's rules to the model, once. A copy of a model that has them has them already.

        Raises UserError if a rule does not match the first of the script's models.
        """
        model = unwrapped(model)
        if not self.asked or self._is_placed(model):
            return
        if placement := placement_in(model):
            self._add(model, placement, placement.state_dict() and placement)
            return
        precision = self._precision()
        try:
            with naming("precision"):
                precision.prepare(model)
        except UserError:
            # a rule that means another of the script's models
            if not self.placed:
                raise
            self.script.note(f"{type(model).__name__}: no precision rule fits it, it stays in float32")
            self.placed.append((model, None))
            return
        if precision.remembers:
            precision.placement.histories.follow_optimizers()
        precision.at(self._step)
        self._add(model, precision, precision.remembers and precision.placement)

    def _add(self, model: nn.Module, precision: Any, remembered: Any) -> None:
        """Register a model that has rules. `remembered` is its state from the run's checkpoint, if there is any."""
        if remembered:
            self.script.go_on(f"histories of model {len(self.placed)}", remembered)
        self.placed.append((model, precision))
        self._list(model)

    def take_recipe(self, model: nn.Module, recipe: Any) -> None:
        """The script's own, of `cpdrun.attach(model, recipe=...)`, where the run has none, and no rules. Raises
        UserError for one that cannot be applied."""
        model = unwrapped(model)
        if self.asked:
            named = f"recipe={self.config['recipe']}" if self.config.get("recipe") else "precision"
            self.script.note(f"the run's {named} stands in place of the script's recipe={recipe}")
            self.place(model)
            return
        if self._is_placed(model):
            return
        try:
            applied = apply_recipe(model, recipe)
        except ValueError as error:
            raise UserError(f"cpdrun.attach: {error}") from None
        for key, value in applied.left_to_the_loop.items():
            self.script.note(f"{key}={value} of recipe={recipe} is the script's own")
        applied.at(self._step)
        self._add(model, applied, applied.state_dict() and applied)

    def _is_placed(self, model: nn.Module) -> bool:
        parts = {id(m) for m in model.modules()}
        return any(parts & {id(m) for m in placed.modules()} for placed, _ in self.placed)

    def _list(self, model: nn.Module) -> None:
        self._rounded |= rounded_in(model)
        by_their_parent = {m.out_proj for m in model.modules() if isinstance(m, QuantMultiheadAttention)}
        for name, module in model.named_modules():
            name = name or type(module).__name__
            if name not in self._rounded and isinstance(module, MULTIPLY) and module not in by_their_parent:
                self.in_fp32[name] = type(module).__name__

    def check_called(self) -> None:
        """Raise UserError, at the end of the script, for a rule of attention that no call met."""
        for number, (_, precision) in enumerate(self.placed):
            if precision is not None and number not in self._reloaded:
                with naming("precision"):
                    precision.check_called()

    def at(self, step: int) -> None:
        """From here on as the rules say of this step."""
        self._step = step
        for _, precision in self.placed:
            if precision is not None:
                precision.at(step)


def _shape(model: nn.Module) -> tuple[type, list[tuple[str, torch.Size]]]:
    return model.__class__, [(name, p.shape) for name, p in model.named_parameters()]


def _check_steps(precision: Any) -> None:
    """Raises UserError where weights or steps are rounded, which are the script's own."""
    if precision.rounds_weights:
        raise UserError(
            f"{precision.rounds_weights}: a script keeps its weights itself; what its layers multiply by is rounded by "
            "precision.rules=[{modules: '*', role: weight, format: e4m3}]"
        )
    rounding = precision.optimizer_rounding if isinstance(precision, Formats) else None
    for key, rounded in (
        ("update", rounding and rounding.update),
        ("optimizer_state", rounding and rounding.state),
    ):
        if rounded:
            raise UserError(
                f"precision.{key}={rounded}: a script's optimizer takes its steps and keeps its state itself, in "
                f"float32: leave precision.{key} out"
            )
