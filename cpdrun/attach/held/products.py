"""The run's precision rules in a script's models: layers' products, activations and errors, as in a built-in run.

A model is taken hold of once: by cpdrun.attach(model), before DistributedDataParallel or fully_shard wrap it, or when
an optimizer is made of its parameters, whichever comes first; so before its first forward pass. Layers stay the same
objects, that other names for them in the script mean them too. What a script keeps for itself is refused: formats of
the weights, the optimizer and its state, and a loss scale (it has GradScaler).
"""

from collections.abc import Sequence
from typing import Any

from custom_fp.recipe.apply import apply_recipe, rounded_in, same_objects_, uncalled
from custom_fp.recipe.delayed import roll_with_steps
from torch import nn

from cpdrun.attach.held.models import unwrapped
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

    def place_around(self, parameters: Sequence[nn.Parameter]) -> None:
        """In the models that hold these."""
        if self.asked:
            for model in self.script.models_with(parameters):
                self.place(model)

    def place(self, model: nn.Module) -> None:
        """In the model, once. Raises UserError for a rule that fits the first of the script's models nowhere."""
        model = unwrapped(model)
        if not self.asked or self._is_placed(model):
            return
        before, precision = dict(model.named_modules(remove_duplicate=False)), self._precision()
        try:
            with naming("precision"):
                prepared = precision.prepare(model)
        except UserError:
            # a rule that means another of the script's models
            if not self.placed:
                raise
            self.script.note(f"{type(model).__name__}: no precision rule fits it, it stays in float32")
            self.placed.append((model, None))
            return
        same_objects_(before, prepared)
        if precision.remembers:
            roll_with_steps(model, precision.placement.histories.values())
            self.script.go_on(f"histories of model {len(self.placed)}", precision.placement)
        precision.at(self._step)
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
        if applied.state_dict():
            self.script.go_on(f"histories of model {len(self.placed)}", applied)
        applied.at(self._step)
        self.placed.append((model, applied))
        self._list(model)

    def _is_placed(self, model: nn.Module) -> bool:
        parts = {id(m) for m in model.modules()}
        return any(parts & {id(m) for m in placed.modules()} for placed, _ in self.placed)

    def _list(self, model: nn.Module) -> None:
        self._rounded |= rounded_in(model)
        for name, module in model.named_modules():
            name = name or type(module).__name__
            if name not in self._rounded and isinstance(module, MULTIPLY):
                self.in_fp32[name] = type(module).__name__.removeprefix("Quant")

    def check_called(self) -> None:
        """At the end of the script. Raises UserError for a rule of attention that no call met."""
        for _, precision in self.placed:
            if precision is not None:
                with naming("precision"):
                    precision.check_called()

    def at(self, step: int) -> None:
        """From here on as the rules say of this step."""
        self._step = step
        for _, precision in self.placed:
            if precision is not None:
                precision.at(step)


def _check_steps(precision: Any) -> None:
    """Raises UserError where weights or steps are rounded, which are the script's own."""
    if precision.rounds_weights:
        raise UserError(
            f"{precision.rounds_weights}: a script keeps its weights itself; what its layers multiply by is rounded by "
            "precision.rules=[{modules: '*', role: weight, format: e4m3}]"
        )
    stepping = precision.stepping if isinstance(precision, Formats) else None
    for key, rounded in (
        ("update", stepping and stepping.update),
        ("optimizer_state", stepping and stepping.state),
    ):
        if rounded:
            raise UserError(
                f"precision.{key}={rounded}: a script's optimizer takes its steps and keeps its state itself, in "
                f"float32: leave precision.{key} out"
            )
