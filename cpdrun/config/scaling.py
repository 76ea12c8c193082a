"""How gradients are scaled is one knob, the group `scaling`: none, aps, aps_delayed, or a rule of one's own.

`aps=true` and `aps=false` are its short form, spelled out here. True is the rule that is chosen, or aps where none is;
false is none, whatever is chosen. A rule that is chosen needs no aps=true beside it. A resolved config says both:
`aps`, whether gradients are scaled, and `scaling`, by which rule.
"""

from collections.abc import Mapping
from typing import Any

from cpdrun.config.compose import EXPERIMENT, Composer
from cpdrun.config.keys import has_key

SCALING = "scaling"
SHORT_FOR, NONE = "aps", "none"


def with_short_form(composer: Composer, choices: Mapping[str, str]) -> dict[str, str]:
    """The choices of groups, with the rule that aps=true stands for where none is chosen: its keys may be set."""
    return dict(choices) if _is_chosen(composer, choices) else {**choices, SCALING: SHORT_FOR}


def spell_out(config: dict[str, Any], composer: Composer, choices: Mapping[str, str]) -> None:
    """Sets `aps` and `scaling` of a config that was composed from `with_short_form` of these choices."""
    none, short_for = (composer.file(SCALING, name) for name in (NONE, SHORT_FOR))
    if "aps" not in config or not has_key(config, f"{SCALING}._target_"):
        return  # deleted; validate says so
    aps, rule = config["aps"], config[SCALING]["_target_"]
    if aps is None:
        aps = _is_chosen(composer, choices) or rule != short_for["_target_"]
    if isinstance(aps, bool):  # if not, validate says so
        aps = aps and rule != none["_target_"]
        if not aps:
            config[SCALING] = none
    config["aps"] = aps


def _is_chosen(composer: Composer, choices: Mapping[str, str]) -> bool:
    """By a word, a case or an axis, or by the experiment."""
    if SCALING in choices:
        return True
    if composer.is_ours:  # of our own yaml an experiment's alone says it: no further choices to be composed
        choices = {group: choices[group] for group in (EXPERIMENT,) if group in choices}
    return composer.kind(SCALING, choices) != composer.file(SCALING, NONE)["_target_"]
