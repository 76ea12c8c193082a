"""Recipes, which set the precision of a run by a name of the field: `recipe=NAME`.

A recipe contains rules for what is rounded, and further settings such as a loss scale. custom_fp/conf/recipe has one
recipe per file. In a resolved config, the section `precision` has the recipe's keys and `recipe` has its name, so the
run is the same as if the keys had been typed one by one. A recipe replaces the section `precision`, which must then
have its default values. The section `ingredients` has the settings that a recipe leaves open. Its rules refer to them,
as in ${ingredients.format}.
"""

from collections.abc import Mapping
from typing import Any

from cpdrun.config.compose import Composer
from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.keys import INGREDIENTS, flatten
from cpdrun.config.overrides import typed_form

RECIPE, PRECISION, PLAIN = "recipe", "precision", "fp32"


def spell_out(
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
    plain = composer.file(PRECISION, PLAIN)
    for key in recipe:
        if key not in plain:
            raise ConfigError(
                f"recipe={name}: unknown key {key!r}{did_you_mean(str(key), plain)}; a recipe has rules, and keys of "
                f"precision: {', '.join(key for key in plain if key != '_target_')}"
            )
    said = dict(flatten(config.get(PRECISION) or {}))
    usual = dict(flatten(plain))
    if other := [key for key in said if key not in usual or said[key] != usual[key]]:
        given = f"precision.{other[0]}={typed_form(said[other[0]])}"
        of_precision = composer.choice(PRECISION, choices)
        given = given if of_precision in (None, PLAIN) else f"precision={of_precision}"
        raise ConfigError(
            f"recipe={name} says what is rounded, and so does {given}: take one of them; what a recipe says is "
            "changed by recipe.KEY=VALUE"
        )
    config[PRECISION] = {**plain, **recipe}
    config[RECIPE] = name
