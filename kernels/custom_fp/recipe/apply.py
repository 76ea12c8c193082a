"""Apply a recipe to a model. The model's layers then round as the recipe specifies, in training and evaluation.

    applied = custom_fp.apply_recipe(model, "nvfp4")
    print(applied)                # lists what is rounded, what stays in float32, and what is left to the training loop

A recipe is the name of a file in custom_fp/conf/recipe, the path of such a yaml file, a mapping, or a list of rules.
Settings for stored weights, the optimizer and the loss scale concern the training loop (`left_to_the_loop`). cpdrun's
own training loop follows these settings as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from custom_fp.layers.attachment import OPERATIONS
from custom_fp.layers.operations import operations_of
from custom_fp.recipe.coverage import Coverage, measure
from custom_fp.recipe.files import load, with_ingredients
from custom_fp.recipe.layers import layers_of
from custom_fp.recipe.parsing import SHORT_FORMS, read_rules, short_form
from custom_fp.recipe.placement import Placement
from custom_fp.recipe.rules import Rules
from custom_fp.suggestions import did_you_mean

LOOP_KEYS = (  # keys of a recipe that concern the training loop
    *("weights", "optimizer_state", "master_weights", "loss_scale", "update", "update_order"),
    *("update_rounding", "kahan_weights", "fp32_norms"),
)
OPERATIONS_KEY = "operations"
KEYS = tuple(dict.fromkeys(("rules", OPERATIONS_KEY, *SHORT_FORMS, "kahan", "aps", *LOOP_KEYS)))

ByModule = dict[nn.Module, dict[str | None, str]]


@dataclass
class Applied:
    """A recipe that was applied to a model.

    Attributes:
        model: The model.
        first_arithmetic: Maps each rounded module to a dict. The dict maps the module's operations, and None for the
            module itself, to texts that describe their arithmetic in the first step.
        left_to_the_loop: The settings of the recipe that the training loop must follow.
        placement: The rules that round the model, or None if the recipe has no such rules.
    """

    model: nn.Module = field(repr=False)
    first_arithmetic: ByModule = field(repr=False)
    left_to_the_loop: dict[str, Any]
    placement: Placement | None = field(repr=False)

    @property
    def at_first(self) -> dict[str, str]:
        """The arithmetic of each rounded layer and operation in the first step, keyed by its current name.

        Operations are included even if the model has not called them yet. Layers that were removed from the model are
        not included.
        """
        return _by_name(self.model, self.first_arithmetic)

    @property
    def rounded(self) -> dict[str, str]:
        """The arithmetic of each rounded layer in the first step, keyed by its current name.

        Operations such as matmul() are included once the model has called them.
        """
        not_called = uncalled(self.model)
        return {name: text for name, text in self.at_first.items() if name not in not_called}

    @property
    def untouched(self) -> dict[str, str]:
        """A dict that maps the name of each module with parameters that are not rounded to the class of the module.

        A module with rounded operations is omitted once the model has called one of them.
        """
        # MultiheadAttention uses the weights of its submodules without calling them, so they count as rounded.
        attention = tuple(
            f"{name}." if name else ""
            for name, module in self.model.named_modules()
            if isinstance(module, nn.MultiheadAttention) and (name or type(module).__name__) in self.at_first
        )
        return {
            name or type(module).__name__: type(module).__name__
            for name, module in self.model.named_modules()
            if next(module.parameters(recurse=False), None) is not None
            and (name or type(module).__name__) not in self.at_first
            and not operations_of(module).called
            and not name.startswith(attention)
        }

    def at(self, step: int) -> None:
        """Switch the model to the rules of this step, counted from 0. `apply_recipe` starts with step 0."""
        if self.placement is not None:
            self.placement.at(step)

    def coverage(self, model: nn.Module, *args: Any, **kwargs: Any) -> Coverage:
        """Run a forward and a backward pass, and return how many of the multiply-accumulates use each number format.

        The model stays in training or evaluation mode. Its gradients, buffers and delayed scales are restored, and so
        is the state of the random number generators.

        Args:
            model: The model, or a wrapper of it, such as DistributedDataParallel.
            *args: The arguments of the model.
            **kwargs: The keyword arguments of the model.

        Returns:
            A mapping such as {"nvfp4": 0.86, "bf16": 0.14, "float32": 0.0}. Print it to see what stayed in float32, and
            which layers the rules name but the model never called.
        """
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        return measure(model, self.placement, lambda: model(*args, **kwargs), inputs)

    def state_dict(self) -> dict[str, Any]:
        """Return the histories of delayed scales. A checkpoint must store them in addition to the model's state."""
        return {} if self.placement is None else self.placement.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the histories that `state_dict` returned."""
        if self.placement is not None:
            self.placement.load_state_dict(state)

    def check_called(self) -> None:
        """Raise ValueError if a rule selects only operations, such as attention, that the model has not called.

        Call this method after the model has processed a batch.
        """
        if self.placement is not None:
            self.placement.check_called()

    def __str__(self) -> str:
        lines = [
            f"rounded ({len(self.rounded)})",
            *(f"  {name}: {text}" for name, text in self.rounded.items()),
        ]
        lines += [f"left in float32 ({len(self.untouched)})"]
        lines += [f"  {name}: {kind}" for name, kind in self.untouched.items()]
        left = [f"  {key}: {value}" for key, value in self.left_to_the_loop.items()]
        return "\n".join([*lines, *(["left to the training loop", *left] if left else [])])


def apply_recipe(
    model: nn.Module,
    recipe: str | Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    operations: bool | Sequence[str] | None = None,
    **ingredients: Any,
) -> Applied:
    """Make a model round its computations as a recipe specifies, in training and evaluation.

    The model is changed in place. Modules and parameters stay the same objects, so optimizers and wrappers
    (DistributedDataParallel, fully_shard, torch.compile) that refer to them keep working. `module.__class__` is the
    user's class, while `type(module)` is a subclass that rounds.

    Saved models do not contain the recipe. They can be loaded without this package and with `weights_only=True`, and
    compute in float32 until a recipe is applied to them. `torch.jit`, `torch.export` and ONNX export the float32 model,
    with a warning. A copy of the model (copy.deepcopy, or another process) follows the recipe. Its delayed scales
    advance when an optimizer updates the parameters of the copy, and otherwise stay as they were.

    In tensor-parallel models (parallelize_module), tensors are rounded to the same values as without sharding. If a
    block or scale spans several ranks, the tensor is gathered first. Stochastic rounding, `history` and accumulators
    are refused for such models.

    Args:
        model: Any module.
        recipe: The name of a recipe, the path of a yaml file, a mapping, or a list of rules.
        operations: The products outside of layers to which the recipe's rules for Linear and Conv layers also apply.
            True selects all of them, including attention. A list selects some, such as ["matmul()", "linear()"]. None
            uses the setting `operations` of the recipe. The recipes of this package select none.
        **ingredients: Values that replace the recipe's own: apply_recipe(model, "nvfp4", rounding="nearest_even").

    Returns:
        The applied recipe. Print it to see what is rounded and what stays in float32.

    Raises:
        ValueError: If the recipe does not exist or cannot be read, if a rule that is not `optional` matches no layer,
            or if a recipe has already been applied to the model. The model is then unchanged.
    """
    typed = recipe if isinstance(recipe, str) else "recipe"
    given = with_ingredients(typed, load(recipe) if isinstance(recipe, str) else recipe, ingredients)
    given = _check_recipe(typed, given)
    if any("arithmetic" in m.__dict__ or OPERATIONS in m.__dict__ for m in model.modules()):
        raise ValueError(
            f"{typed}: a recipe was already applied to this {type(model).__name__}; apply it to a new model"
        )
    if operations is None:
        operations = given.get(OPERATIONS_KEY)
    rules = read_rules(f"{typed}.rules", given.get("rules", []), operations)
    short = [
        short_form(f"{typed}.{key}", key, given[key], given.get("aps", False), given.get("kahan", False))
        for key in SHORT_FORMS
        if key in given and key != "weights"
    ]
    left = {key: given[key] for key in LOOP_KEYS if key in given}
    left |= {rule.typed: "role parameter" for rule in rules if "parameter" in rule.roles}
    in_model = [rule for rule in [*rules, *short] if rule is not None and rule.roles != ("parameter",)]
    placement = None
    if in_model:
        model_rules = Rules(in_model, layers_of(model))
        model_rules.check()  # before the model is changed
        placement = Placement(model, model_rules)
        placement.histories.follow_optimizers()
    return Applied(model, _arithmetic_in(model), left, placement)


def rounded_in(model: nn.Module) -> dict[str, str]:
    """Return a dict that maps the name of each rounded layer and operation to its current arithmetic."""
    return _by_name(model, _arithmetic_in(model))


def _arithmetic_in(model: nn.Module) -> ByModule:
    found: ByModule = {}
    for module in model.modules():
        arithmetics = [
            (None, getattr(module, "arithmetic", None)),
            *operations_of(module).arithmetics.items(),
        ]
        if texts := {part: str(arithmetic) for part, arithmetic in arithmetics if arithmetic}:
            found[module] = texts
    return found


def _by_name(model: nn.Module, arithmetic: ByModule) -> dict[str, str]:
    return {
        (name or type(module).__name__) if part is None else f"{name}.{part}".lstrip("."): text
        for name, module in model.named_modules()
        for part, text in arithmetic.get(module, {}).items()
    }


def placement_in(model: nn.Module) -> Placement | None:
    """Return the rules that round a model, or None if no recipe was applied to this module itself."""
    attachment = model.__dict__.get("attachment")
    return attachment and attachment.placement


def uncalled(model: nn.Module) -> set[str]:
    """Return the names of operations that have a rule, but that the model has not called yet."""
    return {
        f"{name}.{part}".lstrip(".")
        for name, module in model.named_modules()
        for part in operations_of(module).arithmetics
        if part not in operations_of(module).called and not isinstance(module, nn.MultiheadAttention)
    }


def _check_recipe(typed: str, given: Any) -> Mapping[str, Any]:
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = {"rules": given}
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{typed}: a recipe must be a name, a mapping such as {{rules: [...]}}, or a list of rules, not {given!r}"
        )
    for key in given:
        if key not in KEYS:
            raise ValueError(
                f"{typed}: unknown key {key!r}{did_you_mean(str(key), KEYS)}; allowed: {', '.join(KEYS)}"
            )
    return given
