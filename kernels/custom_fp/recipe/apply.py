"""Application of a recipe to a model. From then on, its layers round as the recipe says, in training and evaluation.

    applied = custom_fp.apply_recipe(model, "nvfp4")
    print(applied)                # what is rounded, what stays in float32, what is left to the training loop

A recipe is the name of a file in custom_fp/conf/recipe, the path of such a yaml file, a mapping, or a list of rules.
What a recipe says about stored weights, the optimizer and the loss scale concerns the training loop
(`left_to_the_loop`). cpdrun's own training loop follows these parts, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from custom_fp.layers.attention import SCORES, VALUES
from custom_fp.recipe.files import load, with_ingredients
from custom_fp.recipe.layers import layers_of
from custom_fp.recipe.placement import Placement
from custom_fp.recipe.reading import SHORT_FORMS, read_rules, short_form
from custom_fp.recipe.rules import Rules
from custom_fp.suggestions import did_you_mean

# keys of a recipe that say nothing of products
OF_THE_LOOP = ("weights", "optimizer_state", "master_weights", "loss_scale", "update", "update_order")
OF_THE_LOOP += ("update_rounding", "kahan_weights", "fp32_norms")
KEYS = tuple(dict.fromkeys(("rules", *SHORT_FORMS, "kahan", "aps", *OF_THE_LOOP)))


@dataclass
class Applied:
    """What became of a recipe in one model.

    left_to_the_loop: what the recipe says of no product.
    """

    model: nn.Module = field(repr=False)
    at_first: dict[str, str]
    left_to_the_loop: dict[str, Any]
    placement: Placement | None = field(repr=False)

    @property
    def rounded(self) -> dict[str, str]:
        """How each layer computes, in the first step, by its name; and each product of attention, once it has been."""
        waiting = uncalled(self.model)
        return {name: how for name, how in self.at_first.items() if name not in waiting}

    @property
    def untouched(self) -> dict[str, str]:
        """The classes of all other modules that hold parameters."""
        heads = tuple(f"{name}." for name in self.at_first if _is_attention(self.model, name))
        return {
            name or type(module).__name__: type(module).__name__
            for name, module in self.model.named_modules()
            if next(module.parameters(recurse=False), None) is not None
            and (name or type(module).__name__) not in self.at_first
            and not name.startswith(heads or ("\0",))
        }

    def at(self, step: int) -> None:
        """From here on the model computes as rules say of this step, counted from 0; at first as of step 0."""
        if self.placement is not None:
            self.placement.at(step)

    def state_dict(self) -> dict[str, Any]:
        """What goes from step to step: the histories of delayed scales. For a checkpoint, beside the model's."""
        return {} if self.placement is None else self.placement.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.placement is not None:
            self.placement.load_state_dict(state)

    def check_called(self) -> None:
        """Once the model has been called: ValueError for a rule of attention alone that met no call of it."""
        if self.placement is not None:
            self.placement.check_called()

    def __str__(self) -> str:
        lines = [
            f"rounded ({len(self.rounded)})",
            *(f"  {name}: {how}" for name, how in self.rounded.items()),
        ]
        lines += [f"left in float32 ({len(self.untouched)})"]
        lines += [f"  {name}: {kind}" for name, kind in self.untouched.items()]
        left = [f"  {key}: {value}" for key, value in self.left_to_the_loop.items()]
        return "\n".join([*lines, *(["left to the training loop", *left] if left else [])])


def apply_recipe(
    model: nn.Module, recipe: str | Mapping[str, Any] | Sequence[Mapping[str, Any]], **ingredients: Any
) -> Applied:
    """Let a model compute by a recipe from here on, in training and evaluation.

    The model is changed in place. Modules and parameters stay the same objects, so optimizers and wrappers
    (DistributedDataParallel, fully_shard, torch.compile) that hold them keep working. What is saved of the model is the
    user's: files load without this package, in float32, and a recipe is applied to the loaded model again. A deep copy
    computes by the recipe, with delayed scales of its own.

    Args:
        model: Any module.
        recipe: A name, the path of a yaml file, a mapping or a list of rules.
        **ingredients: Values that replace the recipe's own: apply_recipe(model, "nvfp4", rounding="nearest_even").

    Raises:
        ValueError: The recipe does not exist or cannot be read, a rule that is not `optional` reaches nothing, or the
            model has been given a recipe before. The model is unchanged then.
    """
    typed = recipe if isinstance(recipe, str) else "recipe"
    given = with_ingredients(typed, load(recipe) if isinstance(recipe, str) else recipe, ingredients)
    given = _checked(typed, given)
    if any("arithmetic" in m.__dict__ or "attention_products" in m.__dict__ for m in model.modules()):
        raise ValueError(f"{typed}: {type(model).__name__} computes by rules already; make it anew")
    rules = read_rules(f"{typed}.rules", given.get("rules", []))
    short = [
        short_form(f"{typed}.{key}", key, given[key], given.get("aps", False), given.get("kahan", False))
        for key in SHORT_FORMS
        if key in given and key != "weights"
    ]
    left = {key: given[key] for key in OF_THE_LOOP if key in given}
    left |= {rule.typed: "role parameter" for rule in rules if "parameter" in rule.roles}
    of_products = [rule for rule in [*rules, *short] if rule is not None and rule.roles != ("parameter",)]
    placement = None
    if of_products:
        rules = Rules(of_products, layers_of(model))
        rules.ask_all()
        rules.check()  # while the model is as it was
        placement = Placement(model, rules)
        placement.histories.follow_optimizers()
    return Applied(model, rounded_in(model), left, placement)


def rounded_in(model: nn.Module) -> dict[str, str]:
    """How each layer and each product of attention is computed that an arithmetic of this moment reaches."""
    found = {}
    for name, module in model.named_modules():
        if getattr(module, "arithmetic", None):
            found[name or type(module).__name__] = str(module.arithmetic)
        if attention := module.__dict__.get("attention_products"):
            parts = {part: getattr(attention, part) for part in (SCORES, VALUES)}
            found |= {f"{name}.{part}".lstrip("."): str(of) for part, of in parts.items() if of}
    return found


def placement_in(model: nn.Module) -> Placement | None:
    """Return the rules at work in a model, or None if it has none of its own."""
    attachment = model.__dict__.get("attachment")
    return attachment and attachment.placement


def uncalled(model: nn.Module) -> set[str]:
    """Names of products of attention, of modules that have not called scaled_dot_product_attention yet."""
    return {
        f"{name}.{part}".lstrip(".")
        for name, module in model.named_modules()
        for part in (SCORES, VALUES)
        if (attention := module.__dict__.get("attention_products"))
        and not (attention.called or isinstance(module, nn.MultiheadAttention))
    }


def _is_attention(model: nn.Module, name: str) -> bool:
    """Whether this is torch's layer, which computes by its own projections and the layer it has for one."""
    return name.rpartition(".")[2] not in (SCORES, VALUES) and isinstance(
        model.get_submodule("" if name == type(model).__name__ else name), nn.MultiheadAttention
    )


def _checked(typed: str, given: Any) -> Mapping[str, Any]:
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = {"rules": given}
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{typed}: a recipe is a name, a mapping such as {{rules: [...]}}, or a list of rules, not {given!r}"
        )
    for key in given:
        if key not in KEYS:
            raise ValueError(
                f"{typed}: unknown key {key!r}{did_you_mean(str(key), KEYS)}; a recipe has {', '.join(KEYS)}"
            )
    return given
