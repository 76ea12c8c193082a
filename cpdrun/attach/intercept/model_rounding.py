"""Apply the run's precision rules to a script's models: to products, activations and errors, as in a built-in run.

Rules are applied to a model once and before its first forward pass: by cpdrun.attach(model), when
DistributedDataParallel or fully_shard wraps it, or when an optimizer of its parameters is created. Modules stay the
same objects. Formats of the weights, of the optimizer and of its state, and a loss scale are refused, because the
script handles these itself.

A script saves its own classes only (custom_fp.layers.attachment), so a model that torch.load returns is in float32. If
it has the class and the parameters of a model with rules, it is taken for a checkpoint of that model, and the rules
are applied to it, because scripts evaluate their best checkpoint. Other models that no optimizer updates stay in
float32. Those among them that got weights from a file are named when the script ends.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from custom_fp.layers.attention import QuantMultiheadAttention
from custom_fp.recipe.apply import apply_recipe, placement_in, rounded_in, uncalled
from torch import nn
from torch.utils._pytree import tree_leaves

from cpdrun.attach.intercept.patches import Patches
from cpdrun.attach.intercept.script import Script, unwrapped
from cpdrun.errors import UserError
from cpdrun.train.instantiate import naming, part
from cpdrun.train.precision.run_formats import Formats

MULTIPLYING = (
    *(nn.Linear, nn.modules.conv._ConvNd, nn.Embedding),
    *(nn.MultiheadAttention, nn.RNNBase, nn.Bilinear),
)


class ModelRounding:
    """The script's models and the rules that round them.

    Attributes:
        requested: Whether the run has precision rules.
        placed: Each model, and its precision. None if no rule fits it.
        in_fp32: The classes of the layers that multiply in float32, by name.

    Raises:
        UserError: The config asks for a precision that a script cannot have.
    """

    def __init__(self, config: dict[str, Any], script: Script) -> None:
        self.config, self.script = config, script
        self.placed: list[tuple[nn.Module, Any]] = []
        self._from_file: set[int] = set()  # indexes of `placed`; the script may never call these models
        self._step = 0
        self._rounded: dict[str, str] = {}
        self.in_fp32: dict[str, str] = {}
        precision = self._make_precision()
        self.requested = not isinstance(precision, Formats) or bool(precision.typed or precision.short)
        _check_is_possible(precision)
        if config["precision"]["loss_scale"] != 1:
            scale = config["precision"]["loss_scale"]
            raise UserError(
                f"precision.loss_scale={scale}: a script scales its own loss, as by GradScaler; take 1.0"
                + (" (recipe.loss_scale=1.0)" if config.get("recipe") else "")
            )

    def _make_precision(self) -> Any:
        precision = part("precision", self.config["precision"])
        precision.seed = self.config["seed"]
        return precision

    @property
    def in_use(self) -> bool:
        """Whether some layers follow rules, the run's or the script's own."""
        return self.requested or bool(self.placed)

    @property
    def rounded(self) -> dict[str, str]:
        """The arithmetic of each rounded layer in the first step. Attention is listed once it has been computed."""
        uncomputed = {name for model, _ in self.placed for name in uncalled(model)}
        return {name: text for name, text in self._rounded.items() if name not in uncomputed}

    def place_around(self, parameters: Sequence[nn.Parameter]) -> None:
        """Apply the run's rules to the models that contain these parameters."""
        if self.requested:
            for model in self.script.models_with(parameters):
                self.place(model)

    def place(self, model: nn.Module, from_file: bool = False) -> None:
        """Apply the run's rules to the model, once. A copy of a model that has them has them already.

        Raises:
            UserError: A rule does not match the first of the script's models.
        """
        model = unwrapped(model)
        if not self.requested or self.is_placed(model):
            return
        if from_file:
            self._from_file.add(len(self.placed))
        if placement := placement_in(model):
            self._add(model, placement, placement.state_dict() and placement)
            return
        precision = self._make_precision()
        try:
            with naming("precision"):
                precision.prepare(model)
        except UserError:
            if not self.placed:
                raise
            # The rule may be meant for another of the script's models.
            self.script.note(f"{type(model).__name__}: no precision rule fits it, it stays in float32")
            self.placed.append((model, None))
            return
        if precision.remembers:
            precision.placement.histories.follow_optimizers()
        precision.at(self._step)
        self._add(model, precision, precision.remembers and precision.placement)

    def apply_recipe(self, model: nn.Module, recipe: Any) -> None:
        """Apply the script's own recipe, cpdrun.attach(model, recipe=...), unless the run has rules.

        Raises:
            UserError: The recipe cannot be applied.
        """
        model = unwrapped(model)
        if self.requested:
            name = f"recipe={self.config['recipe']}" if self.config.get("recipe") else "precision"
            self.script.note(f"the run's {name} replaces the script's recipe={recipe}")
            self.place(model)
            return
        if self.is_placed(model):
            return
        try:
            applied = apply_recipe(model, recipe)
        except ValueError as error:
            raise UserError(f"cpdrun.attach: {error}") from None
        for key, value in applied.left_to_the_loop.items():
            self.script.note(f"{key}={value} of recipe={recipe} is left to the script")
        applied.at(self._step)
        self._add(model, applied, applied.state_dict() and applied)

    def _add(self, model: nn.Module, precision: Any, state_owner: Any) -> None:
        if state_owner:
            self.script.register_state(f"histories of model {len(self.placed)}", state_owner)
        self.placed.append((model, precision))
        self._rounded |= rounded_in(model)
        in_attention = {m.out_proj for m in model.modules() if isinstance(m, QuantMultiheadAttention)}
        for name, module in model.named_modules():
            name = name or type(module).__name__
            if name not in self._rounded and isinstance(module, MULTIPLYING) and module not in in_attention:
                self.in_fp32[name] = type(module).__name__

    def is_placed(self, model: nn.Module) -> bool:
        """Return whether the model shares a module with one that rules were applied to."""
        modules = {id(m) for m in model.modules()}
        return any(modules & {id(m) for m in placed.modules()} for placed, _ in self.placed)

    def check(self) -> None:
        """Raise UserError, at the end of the script, for rules that rounded nothing."""
        if self.requested and not any(precision is not None for _, precision in self.placed):
            raise UserError(
                "precision reached no layer: the script made no optimizer of torch.optim and wrapped no model"
            )
        for number, (_, precision) in enumerate(self.placed):
            if precision is not None and number not in self._from_file:
                with naming("precision"):
                    precision.check_called()

    def at(self, step: int) -> None:
        """Round as the rules say for this step."""
        self._step = step
        for _, precision in self.placed:
            if precision is not None:
                precision.at(step)


class LoadedModels:
    """The models that the script loads from files. Checkpoints of models with rules get the rules."""

    def __init__(self, rounding: ModelRounding) -> None:
        self.rounding, self.script = rounding, rounding.script
        self._in_fp32: dict[int, tuple[weakref.ref[nn.Module], str]] = {}  # models, and what they are called

    def install(self, patches: Patches) -> None:
        """Intercept torch.load and load_state_dict."""
        patches.around(torch, "load", self._load)
        patches.around(nn.Module, "load_state_dict", self._load_state_dict)

    def _load(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = original(*args, **kwargs)
        for model in tree_leaves(loaded) if self.rounding.placed else ():
            if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
                continue
            name = type(unwrapped(model)).__name__
            if self._is_checkpoint(model):
                self.rounding.place(model, from_file=True)
                self.script.note(f"{name}: the run's rules also apply to the model that torch.load returned")
            elif next(model.parameters(), None) is not None:
                self._in_fp32[id(model)] = weakref.ref(model), f"{name} (from torch.load)"
        return loaded

    def _load_state_dict(self, original: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self._is_checkpoint(model):
            name = type(unwrapped(model)).__name__
            self._in_fp32[id(model)] = weakref.ref(model), f"{name} (from load_state_dict)"
        return original(model, *args, **kwargs)

    def _is_checkpoint(self, model: nn.Module) -> bool:
        """Return whether a model without rules has the class and the parameters of one that has them."""
        model = unwrapped(model)
        if self.rounding.is_placed(model):
            return False
        placed = (other for other, precision in self.rounding.placed if precision)
        return any(_class_and_shapes(model) == _class_and_shapes(other) for other in placed)

    def add_notes(self) -> None:
        """Name, at the end of the script, the models that got weights from a file and no rules."""
        for ref, name in self._in_fp32.values():
            model = ref()
            if model is None or not self.rounding.is_placed(unwrapped(model)):
                self.script.note(
                    f"{name} computed in float32: no optimizer holds its parameters. cpdrun.attach(model) applies the "
                    "run's rules to it"
                )


def _class_and_shapes(model: nn.Module) -> tuple[type, list[tuple[str, torch.Size]]]:
    return model.__class__, [(name, p.shape) for name, p in model.named_parameters()]


def _check_is_possible(precision: Any) -> None:
    """Raise UserError if weights or steps are rounded, which the script handles itself."""
    if precision.rounds_weights:
        raise UserError(
            f"{precision.rounds_weights}: a script stores its weights itself. Round the weights that its layers "
            "multiply by: precision.rules=[{modules: '*', role: weight, format: e4m3}]"
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
