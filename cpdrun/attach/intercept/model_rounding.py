"""Apply the run's precision rules to the models in a script: to products, activations, errors and optimizer states.

Rules are applied to a model once, before its first forward pass. This happens when the script calls
cpdrun.attach(model), when it wraps the model with DistributedDataParallel or fully_shard, or when it creates an
optimizer for the model's parameters, whichever comes first. The modules remain the same objects. If the config or a
recipe sets a format for optimizer states, the states (such as momentum) are rounded in place after each step of an
optimizer from torch.optim. The script's own checkpoints therefore contain rounded states.

A config must not round the stored weights or the operations of an optimizer step, and it must not set a loss scale. The
script handles these itself, so such a config is an error.

A script saves only its own classes (custom_fp.layers.attachment), so a model that torch.load returns computes in
float32. If the model has the same class and parameters as a model with rules, it is treated as a checkpoint of that
model, and the rules are applied to it, because scripts evaluate their best checkpoint. Other models that no optimizer
updates stay in float32. If weights were loaded into such a model from a file, a note names the model when the script
ends.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from custom_fp.formats.names import parse
from custom_fp.layers.multihead_attention import QuantMultiheadAttention
from custom_fp.operators.dtensors import is_sharded
from custom_fp.recipe.apply import apply_recipe, placement_in, rounded_in, uncalled
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from cpdrun.attach.intercept.first_step import FirstStepCoverage
from cpdrun.attach.intercept.patches import Patches
from cpdrun.attach.intercept.script import Script, parameters_of, unwrapped
from cpdrun.errors import UserError
from cpdrun.models.normed.norms import is_norm
from cpdrun.optim.rounded_sgd import ORDERS
from cpdrun.train.instantiate import naming, part
from cpdrun.train.precision.base import optimizer_state
from cpdrun.train.precision.optimizer_steps import OptimizerRounding
from cpdrun.train.precision.run_formats import Formats

MULTIPLYING = (
    *(nn.Linear, nn.modules.conv._ConvNd, nn.Embedding),
    *(nn.MultiheadAttention, nn.RNNBase, nn.Bilinear),
)


class ModelRounding:
    """The script's models and the rules that round them.

    Attributes:
        requested: Whether the run has precision rules.
        placed: Each model and its precision, which is None if no rule matches the model.
        in_fp32: The classes of the layers that multiply in float32, keyed by the name of the layer.
        first_step: The object that counts the products of the first training step.

    Raises:
        UserError: If the config requests a precision that is not available in scripts.
    """

    def __init__(self, config: dict[str, Any], script: Script) -> None:
        self.config, self.script = config, script
        self.placed: list[tuple[nn.Module, Any]] = []
        # The indices in `placed` of models that were loaded from a file. Some scripts never call such models.
        self._from_file: set[int] = set()
        self._step = 0
        self._rounded: dict[str, str] = {}
        self.in_fp32: dict[str, str] = {}
        self.first_step = FirstStepCoverage(script)
        precision = self._make_precision()
        self._states: list[StateRounding] = []
        if isinstance(precision, Formats) and (state := precision.optimizer_rounding.state):
            self._states.append(StateRounding("precision.", state, precision.fp32_norms))
        self.requested = (
            not isinstance(precision, Formats)
            or bool(precision.typed or precision.short)
            or bool(self._states)
        )
        _check_is_possible(precision)
        if config["precision"]["loss_scale"] != 1:
            scale = config["precision"]["loss_scale"]
            raise UserError(
                f"precision.loss_scale={scale}: a script must scale its loss itself, for example with GradScaler. Set "
                "the loss scale to 1.0" + (" (recipe.loss_scale=1.0)" if config.get("recipe") else "")
            )

    def _make_precision(self) -> Any:
        precision = part("precision", self.config["precision"])
        precision.seed = self.config["seed"]
        return precision

    @property
    def in_use(self) -> bool:
        """Whether rules of the run or of the script apply to some layers."""
        return self.requested or bool(self.placed)

    @property
    def rounded(self) -> dict[str, str]:
        """The arithmetic of each rounded layer in the first step, keyed by the name of the layer.

        Layers that did not run in the first step are left out. Attention is included after its first computation.
        """
        uncomputed = {name for model, _ in self.placed for name in uncalled(model)}
        uncomputed |= set(self.first_step.coverage.never_called if self.first_step.coverage else ())
        return {name: text for name, text in self._rounded.items() if name not in uncomputed}

    def place_around(self, parameters: Sequence[nn.Parameter]) -> None:
        """Apply the run's rules to the models that contain these parameters."""
        if self.requested:
            for model in self.script.models_with(parameters):
                self.place(model)

    def place(self, model: nn.Module, from_file: bool = False) -> None:
        """Apply the run's rules to a model, unless they are already applied to it, as to a copy of a model with rules.

        Raises:
            UserError: A rule does not match the script's first model.
        """
        model = unwrapped(model)
        if not self.requested or self.is_placed(model):
            return
        if from_file:
            self._from_file.add(len(self.placed))
        if placement := placement_in(model):
            self._add(model, placement, placement.state_dict() and placement)
            self._count(model)
            return
        precision = self._make_precision()
        try:
            with naming("precision"):
                precision.prepare(model)
        except UserError:
            if not self.placed:
                raise
            # The rule may be intended for another model of the script.
            self.script.note(
                f"{type(model).__name__} stays in float32, because the precision rules do not match it"
            )
            self.placed.append((model, None))
            return
        if precision.remembers:
            precision.placement.histories.follow_optimizers()
        precision.at(self._step)
        self._add(model, precision, precision.remembers and precision.placement)
        self._count(model)

    def _count(self, model: nn.Module, from_script: bool = False) -> None:
        """Include the model's products in the count of the first step.

        Args:
            model: A model to which rules were just applied.
            from_script: Whether the rules come from the script's call to cpdrun.attach, which error messages then name.
        """
        placement = placement_in(model)
        if placement is None or len(self.placed) - 1 in self._from_file:
            return

        def check_called(never_called: list[str]) -> None:
            with naming("cpdrun.attach" if from_script else "precision"):
                placement.check_called(never_called)

        self.first_step.add(model, check_called)

    def apply_recipe(self, model: nn.Module, recipe: Any) -> None:
        """Apply the recipe that the script passes to cpdrun.attach(model, recipe=...), unless the run has rules.

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
        left = dict(applied.left_to_the_loop)
        if state := left.pop("optimizer_state", None):
            keeps_norms = left.pop("fp32_norms", False)
            self._states.append(StateRounding(f"recipe={recipe}: ", state, keeps_norms, model))
        for key, value in left.items():
            self.script.note(
                f"{key}={value} of recipe={recipe} has no effect, because the script must do this itself"
            )
        applied.at(self._step)
        self._add(model, applied, applied.state_dict() and applied)
        self._count(model, from_script=True)

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

    def after_step(self, optimizer: Optimizer) -> None:
        """Round the state of an optimizer that has just taken a step.

        Raises:
            UserError: If the state is sharded and its format has scales.
        """
        for rounding in self._states:
            parameters = parameters_of(optimizer)
            if rounding.model is not None and not {*map(id, parameters)} & {
                *map(id, rounding.model.parameters())
            }:
                continue
            norms = [
                m for model, _ in self.placed for m in model.modules() if rounding.keeps_norms and is_norm(m)
            ]
            in_fp32 = {id(p) for norm in norms for p in norm.parameters(recurse=False)}
            rounding.round_(optimizer, [p for p in parameters if id(p) not in in_fp32])
            self.script.note(
                f"the state of {type(optimizer).__name__} is rounded to {rounding.format} after each step"
            )

    def is_placed(self, model: nn.Module) -> bool:
        """Return whether the rules were applied to the model before, or to a model that shares a module with it."""
        modules = {id(m) for m in model.modules()}
        return any(modules & {id(m) for m in placed.modules()} for placed, _ in self.placed)

    def check(self) -> None:
        """Raise UserError if the rules had no effect on any layer. Called at the end of the script."""
        self.first_step.end()
        if self.requested and not any(precision is not None for _, precision in self.placed):
            raise UserError(
                "the precision rules had no effect on any layer, because the script created no optimizer of "
                "torch.optim and wrapped no model. Call cpdrun.attach(model)"
            )
        for rounding in self._states:
            if not rounding.has_rounded:
                raise UserError(
                    f"{rounding.typed}optimizer_state={rounding.format} had no effect, because no optimizer of "
                    "torch.optim took a step. Use an optimizer from torch.optim, or remove this setting"
                )
        for number, (_, precision) in enumerate(self.placed):
            if precision is not None and number not in self._from_file:
                with naming("precision"):
                    precision.check_called()

    def at(self, step: int) -> None:
        """Apply the rules for the given step from now on."""
        self._step = step
        for _, precision in self.placed:
            if precision is not None:
                precision.at(step)


class StateRounding:
    """The rounding of the states of a script's optimizers.

    Args:
        typed: The text that error messages put before the setting `optimizer_state`, such as "precision.".
        format: The format of the states.
        keeps_norms: Whether states for parameters of normalization layers stay in float32.
        model: Only states of optimizers that update this model are rounded. None means the states of all optimizers.

    Attributes:
        has_rounded: Whether any state has been rounded. False until one of these optimizers has taken a step.
    """

    def __init__(self, typed: str, format: str, keeps_norms: bool, model: nn.Module | None = None) -> None:
        self.typed, self.keeps_norms, self.model, self.has_rounded = typed, keeps_norms, model, False
        self.format = format
        self._rounding = OptimizerRounding(None, ORDERS[0], format)

    def round_(self, optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> None:
        """Round, in place, the optimizer states of the given parameters.

        Raises:
            UserError: If a state is sharded and the format has scales.
        """
        sharded = [p for p in parameters if optimizer_state(optimizer, p) and is_sharded(p)]
        if sharded and parse(self.format).has_scales:
            raise UserError(
                f"{self.typed}optimizer_state={self.format} has scales for blocks of elements, but fully_shard would "
                "split these blocks. Use a format without scales, such as bf16 or e5m2"
            )
        with torch.no_grad():
            self._rounding.round_state(optimizer, parameters)
        self.has_rounded = True


class LoadedModels:
    """The models that the script loads from files. Rules are applied to checkpoints of models with rules."""

    def __init__(self, rounding: ModelRounding) -> None:
        self.rounding, self.script = rounding, rounding.script
        self._in_fp32: dict[
            int, tuple[weakref.ref[nn.Module], str]
        ] = {}  # models without rules, and their names

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
                self.script.note(
                    f"{name}: the run's rules are also applied to the model that torch.load returned"
                )
            elif next(model.parameters(), None) is not None:
                self._in_fp32[id(model)] = weakref.ref(model), f"{name} (from torch.load)"
        return loaded

    def _load_state_dict(self, original: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self._is_checkpoint(model):
            name = type(unwrapped(model)).__name__
            self._in_fp32[id(model)] = weakref.ref(model), f"{name} (from load_state_dict)"
        return original(model, *args, **kwargs)

    def _is_checkpoint(self, model: nn.Module) -> bool:
        """Return whether a model without rules looks like one with rules: same class, parameter names and shapes."""
        model = unwrapped(model)
        if self.rounding.is_placed(model):
            return False
        placed = (other for other, precision in self.rounding.placed if precision)
        return any(_class_and_shapes(model) == _class_and_shapes(other) for other in placed)

    def add_notes(self) -> None:
        """Add a note for each model that loaded weights from a file but to which no rules apply.

        Called at the end of the script.
        """
        for ref, name in self._in_fp32.values():
            model = ref()
            if model is None or not self.rounding.is_placed(unwrapped(model)):
                self.script.note(
                    f"{name} computed in float32, because no optimizer updates its parameters. To apply the run's "
                    "rules to this model, call cpdrun.attach(model)"
                )


def _class_and_shapes(model: nn.Module) -> tuple[type, list[tuple[str, torch.Size]]]:
    return model.__class__, [(name, p.shape) for name, p in model.named_parameters()]


def _check_is_possible(precision: Any) -> None:
    """Raise UserError if the config rounds stored weights or the arithmetic of optimizer steps.

    Both are under the control of the script.
    """
    if precision.rounds_weights:
        raise UserError(
            f"{precision.rounds_weights} is not available in scripts, which store their weights themselves. To round "
            "weights in products only, set precision.rules=[{modules: '*', role: weight, format: e4m3}]"
        )
    if isinstance(precision, Formats) and (update := precision.optimizer_rounding.update):
        raise UserError(
            f"precision.update={update} is not available in scripts, because their own optimizers compute the steps in "
            "float32. Remove precision.update, or set precision.optimizer_state to round the state of the optimizer"
        )
