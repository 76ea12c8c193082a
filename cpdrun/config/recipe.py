"""`recipe=NAME` is a run's precision by the name that the field has for it: rules for what is rounded, and what a run
needs beside them, such as a loss scale. custom_fp/conf/recipe has one a file.

A resolved config has the recipe's keys where a run reads them, in `precision`, and under `recipe` its name; so a recipe
names a run as the same keys do that are typed one by one. It stands in place of what `precision` says, which then is to
be as it is by default. What a recipe leaves open, `ingredients`, is a section of the config, which its rules refer to:
${ingredients.format}.
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
    """Puts the recipe of a composed config into its precision. Raises ConfigError where both say what is rounded, for a
    key that no precision has, and for an ingredient that the recipe has not; that is left out `of_baseline`."""
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
