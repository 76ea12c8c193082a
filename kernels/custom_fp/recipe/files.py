"""Read recipes from yaml files.

A recipe name refers to a file in custom_fp/conf/recipe, or in the folder `recipe` of a package that an installed
distribution lists in its entry points (group `cpdrun.recipes`). A path refers to any other file. A recipe has these
keys:

    defaults: [nvfp4, _self_]          start from another recipe, and replace the keys that this file has
    ingredients: {format: nvfp4, ...}  settings that the caller may change; rules refer to them as ${ingredients.format}
    rules: [...]                       the rules (see rules.py)
    operations: [matmul(), ...]        operations that rules for '*' also select; true selects all products
    others                             settings of a training loop, such as loss_scale
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from custom_fp.suggestions import did_you_mean

INGREDIENTS = "ingredients"
_REFERENCE = re.compile(r"\$\{ingredients\.(\w+)\}")
_DEFAULTS, _SELF = "defaults", "_self_"


def load(recipe: str) -> Any:
    """Return the contents of a recipe's yaml file.

    Raises:
        ValueError: If there is no such recipe, or if its file cannot be read.
    """
    import yaml

    file: Any
    if recipe.endswith((".yaml", ".yml")):
        file = Path(recipe)
        if not file.is_file():
            raise ValueError(f"recipe {recipe}: there is no such file")
    else:
        files = _by_name()
        if recipe not in files:
            near = did_you_mean(recipe, files)
            raise ValueError(f"unknown recipe {recipe!r}{near}; allowed: {', '.join(sorted(files))}")
        file = files[recipe]
    try:
        return _with_defaults(recipe, yaml.safe_load(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {recipe}: {' '.join(str(error).split())}") from None


def _by_name() -> dict[str, Any]:
    """Return the yaml file of each recipe by its name, without executing code. custom_fp's own take precedence."""
    packages = [entry.value for entry in entry_points(group="cpdrun.recipes")]
    folders = [resources.files(package) / "recipe" for package in (*packages, "custom_fp.conf")]
    return {
        file.name.removesuffix(".yaml"): file
        for folder in folders
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }


def _with_defaults(recipe: str, given: Any) -> Any:
    if not isinstance(given, Mapping) or _DEFAULTS not in given:
        return given
    names = given[_DEFAULTS]
    if not (isinstance(names, list) and len(names) == 2 and isinstance(names[0], str) and names[1] == _SELF):
        raise ValueError(
            f"recipe {recipe}: defaults={names} must be the name of a recipe and _self_, such as [nvfp4, {_SELF}]"
        )
    if names[0] == recipe:
        raise ValueError(f"recipe {recipe}: defaults must name another recipe, not the recipe itself")
    other = load(names[0])
    own = {key: value for key, value in given.items() if key != _DEFAULTS}
    return {**other, **own, INGREDIENTS: {**other.get(INGREDIENTS, {}), **own.get(INGREDIENTS, {})}}


def with_ingredients(typed: str, given: Any, replaced: Mapping[str, Any]) -> Any:
    """Return the recipe with each ${ingredients.NAME} replaced by the value of the ingredient.

    Values in `replaced` take precedence over those in the recipe. Rules whose format becomes null are removed, so an
    ingredient can switch off a rule.

    Raises:
        ValueError: If `replaced` has a name that is not an ingredient of the recipe.
    """
    own = given.get(INGREDIENTS) or {} if isinstance(given, Mapping) else {}
    for name in replaced:
        if name not in own:
            has = f"allowed: {', '.join(own)}" if own else "the recipe has no ingredients"
            raise ValueError(f"{typed}: unknown ingredient {name!r}{did_you_mean(name, own)}; {has}")
    if not own:
        return given
    values = {**own, **replaced}
    recipe = {key: _insert(typed, value, values) for key, value in given.items() if key != INGREDIENTS}
    return without_removed_rules(recipe)


def without_removed_rules(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe without the rules whose format is null."""
    rules = recipe.get("rules")
    if not isinstance(rules, list):
        return dict(recipe)
    kept = [r for r in rules if not (isinstance(r, Mapping) and "format" in r and r["format"] is None)]
    return {**recipe, "rules": kept}


def _insert(typed: str, node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, Mapping):
        return {key: _insert(typed, value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [_insert(typed, value, values) for value in node]
    reference = _REFERENCE.fullmatch(node) if isinstance(node, str) else None
    if reference is None:
        return node
    if reference[1] not in values:
        raise ValueError(f"{typed}: {node} is not an ingredient of the recipe; allowed: {', '.join(values)}")
    return values[reference[1]]
