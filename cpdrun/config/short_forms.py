"""Short forms of settings: `recipe=NAME` and `aps=true`.

A recipe sets the precision of a run by one name. custom_fp/conf/recipe has one recipe per file: rules for what is
rounded, and further settings such as a loss scale. In a resolved config, the section `precision` has the recipe's keys
and `recipe` has its name, so the run is the same as if the keys had been typed one by one. A recipe replaces the
section `precision`, which must then have its default values. The section `ingredients` has the settings that a recipe
leaves open. Its rules refer to them, as in ${ingredients.format}.

The group `scaling` selects how gradients are scaled: none, aps, aps_delayed, or a rule of the user's own. `aps=true`
is short for the chosen rule, or for scaling=aps if none is chosen. `aps=false` is short for scaling=none, whatever is
chosen. A resolved config has both: `aps` says whether gradients are scaled, and `scaling` by which rule.
"""

from collections.abc import Mapping
from typing import Any

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
        of_baseline: Whether the config is that of a baseline. If so, ingredients that its recipe does not have are
            deleted.

    Raises:
        ConfigError: Both the recipe and `precision` say what is rounded, the recipe has an unknown key, or it does not
            have one of the ingredients.
    """
    recipe = config[RECIPE]
    for key in list(config.get(INGREDIENTS) or ()):
        if f"${{{INGREDIENTS}.{key}}}" not in str(recipe):
            if of_baseline:
                del config[INGREDIENTS][key]
                continue
            chosen = composer.choice(RECIPE, choices) or "null"
            raise ConfigError(f"{INGREDIENTS}.{key}: recipe={chosen} leaves none of that name open")
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
                f"recipe={name}: unknown key {key!r}{did_you_mean(str(key), defaults)}; a recipe has rules, and keys "
                f"of precision: {', '.join(key for key in defaults if key != '_target_')}"
            )
    given, usual = dict(flatten(config.get(PRECISION) or {})), dict(flatten(defaults))
    if other := [key for key in given if key not in usual or given[key] != usual[key]]:
        choice = composer.choice(PRECISION, choices)
        is_plain = choice in (None, FP32)
        setting = f"precision.{other[0]}={typed_form(given[other[0]])}" if is_plain else f"precision={choice}"
        raise ConfigError(
            f"recipe={name} says what is rounded, and so does {setting}: take one of them; what a recipe says is "
            "changed by recipe.KEY=VALUE"
        )
    config[PRECISION] = {**defaults, **recipe}
    config[RECIPE] = name


def with_scaling_rule(composer: Composer, choices: Mapping[str, str]) -> dict[str, str]:
    """Return the choices of groups, with scaling=aps if no rule is chosen. Then the keys of the rule can be set."""
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
        return  # one of them was deleted; `validate` reports it
    aps, rule = config["aps"], config[SCALING]["_target_"]
    if aps is None:
        aps = _is_scaling_chosen(composer, choices) or rule != aps_rule["_target_"]
    if isinstance(aps, bool):  # `validate` reports other values
        aps = aps and rule != no_scaling["_target_"]
        if not aps:
            config[SCALING] = no_scaling
    config["aps"] = aps


def _is_scaling_chosen(composer: Composer, choices: Mapping[str, str]) -> bool:
    """Return whether the command line, a case, an axis or the experiment chooses a scaling rule."""
    if SCALING in choices:
        return True
    if composer.is_ours:  # in conf/, only an experiment can choose it, so other groups need not be composed
        choices = {group: choices[group] for group in (EXPERIMENT,) if group in choices}
    return composer.kind(SCALING, choices) != composer.file(SCALING, NO_SCALING)["_target_"]
