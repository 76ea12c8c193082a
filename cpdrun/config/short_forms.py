"""Short forms of settings: `recipe=NAME` and `aps=true`.

A recipe is a named precision. custom_fp/conf/recipe contains one recipe per file: rules that define what is rounded,
and further settings such as a loss scale. In a resolved config, the section `precision` contains the keys of the
recipe, and `recipe` contains its name, so the run is the same as if the keys had been typed one by one. A recipe
replaces the section `precision`, which must otherwise have its default values. The section `ingredients` contains the
settings that a recipe leaves to the user. Its rules refer to them, as in ${ingredients.format}.

The group `scaling` selects how gradients are scaled: none, aps, aps_delayed, or the user's own rule. `aps=true` selects
the chosen rule, or scaling=aps if no rule is chosen. `aps=false` always means scaling=none. A resolved config contains
both keys: `aps` is true if gradients are scaled, and `scaling` is the rule.
"""

from collections.abc import Mapping
from typing import Any

from custom_fp.recipe.files import without_removed_rules

from cpdrun.config.compose import EXPERIMENT, RECIPE, Composer
from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.overrides import INGREDIENTS, flatten, has_key, typed_form

PRECISION, FP32 = "precision", "fp32"
SCALING = "scaling"
APS_RULE, NO_SCALING = "aps", "none"  # choices of the group `scaling`


def expand_recipe(
    config: dict[str, Any], composer: Composer, choices: Mapping[str, str], *, of_baseline: bool = False
) -> None:
    """Set the section `precision` of a composed config to that of its recipe, in place.

    Args:
        config: The composed config.
        composer: The composer of the configuration.
        choices: The choices of groups, keyed by group.
        of_baseline: Whether the config is that of a baseline. Ingredients that its recipe does not have are then
            deleted.

    Raises:
        ConfigError: Both `recipe` and `precision` are set, the recipe has an unknown key, or an ingredient is given
            that the recipe does not have.
    """
    recipe = config[RECIPE]
    for key in list(config.get(INGREDIENTS) or ()):
        if f"${{{INGREDIENTS}.{key}}}" not in str(recipe):
            if of_baseline:
                del config[INGREDIENTS][key]
                continue
            chosen = composer.choice(RECIPE, choices) or "null"
            raise ConfigError(f"{INGREDIENTS}.{key}: recipe={chosen} has no ingredient of that name")
    if recipe is None:
        return
    name = composer.choice(RECIPE, choices)
    if not isinstance(recipe, Mapping) or not name:
        raise ConfigError(
            f"recipe={typed_form(recipe)}: must be one of {', '.join(composer.groups()[RECIPE])}"
        )
    defaults = composer.file(PRECISION, FP32)
    for key in recipe:
        if key not in defaults:
            raise ConfigError(
                f"recipe={name}: unknown key {key!r}{did_you_mean(str(key), defaults)}. A recipe has rules, and the "
                f"keys of precision: {', '.join(key for key in defaults if key != '_target_')}"
            )
    given, usual = dict(flatten(config.get(PRECISION) or {})), dict(flatten(defaults))
    if other := [key for key in given if key not in usual or given[key] != usual[key]]:
        choice = composer.choice(PRECISION, choices)
        is_plain = choice in (None, FP32)
        setting = f"precision.{other[0]}={typed_form(given[other[0]])}" if is_plain else f"precision={choice}"
        raise ConfigError(
            f"recipe={name} and {setting} both set what is rounded. Use only one of them. To change a recipe, type "
            "recipe.KEY=VALUE"
        )
    config[PRECISION] = {**defaults, **recipe}
    config[RECIPE] = name


def drop_removed_rules(config: dict[str, Any]) -> None:
    """Remove, in place, the rules of the recipe whose format is null.

    The format of a rule is null if the rule refers to an ingredient that is set to null. Interpolations must already be
    resolved.
    """
    if config[RECIPE] is not None and isinstance(config.get(PRECISION), Mapping):
        config[PRECISION] = without_removed_rules(config[PRECISION])


def with_scaling_rule(composer: Composer, choices: Mapping[str, str]) -> dict[str, str]:
    """Return the choices of groups, with scaling=aps if no rule is chosen, so that keys of the rule can be set."""
    return dict(choices) if _is_scaling_chosen(composer, choices) else {**choices, SCALING: APS_RULE}


def expand_aps(config: dict[str, Any], composer: Composer, choices: Mapping[str, str]) -> None:
    """Set `aps` and `scaling` of a composed config, in place.

    Args:
        config: The config, which was composed from `with_scaling_rule(composer, choices)`.
        composer: The composer of the configuration.
        choices: The choices of groups, keyed by group.
    """
    no_scaling, aps_rule = (composer.file(SCALING, name) for name in (NO_SCALING, APS_RULE))
    if "aps" not in config or not has_key(config, f"{SCALING}._target_"):
        return  # `validate` reports a deleted key.
    aps, rule = config["aps"], config[SCALING]["_target_"]
    if aps is None:
        aps = _is_scaling_chosen(composer, choices) or rule != aps_rule["_target_"]
    if isinstance(aps, bool):  # `validate` reports other values.
        aps = aps and rule != no_scaling["_target_"]
        if not aps:
            config[SCALING] = no_scaling
    config["aps"] = aps


def _is_scaling_chosen(composer: Composer, choices: Mapping[str, str]) -> bool:
    """Return whether the command line, a case, an axis or the experiment chooses a scaling rule."""
    if SCALING in choices:
        return True
    if (
        composer.is_ours
    ):  # In conf/, only an experiment can choose a rule, so no other groups need to be composed.
        choices = {group: choices[group] for group in (EXPERIMENT,) if group in choices}
    return composer.kind(SCALING, choices) != composer.file(SCALING, NO_SCALING)["_target_"]
