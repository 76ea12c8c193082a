"""A run's name: what is in it, and a hash of all of it. The same run has the same name everywhere.

The hash leaves out what cannot change the result: paths, the launcher, and names for people. For a script it includes
the script's code but not the settings that say where its metrics are.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from custom_fp.formats.names import is_own, parse

from cpdrun.config.keys import INGREDIENTS, flatten
from cpdrun.config.moved import CLASSIFICATION, FIRST_NAME, FIRST_TASK
from cpdrun.config.script import METRIC_SETTINGS, is_script, stem
from cpdrun.config.secrets import mask_value

# others take them in (sync: ${topology}, model: ${norm}) where they have a use for them
PARTS_OF_OTHERS = ("norm", "topology", "compressor")
NOT_IDENTITY = (
    "exp",
    "case",
    "name",
    "results_dir",
    "init_from",  # init_sha256 says what is in it
    "nproc",
    "loaders",
    "patience_s",
    "elastic",
    "limit_s",
    "launcher",
    "statistics",
    "observe",
    "checkpoint",
    *PARTS_OF_OTHERS,
)
# A script distributes its data over its ranks, so their number is part of the run.
NOT_IDENTITY_OF_SCRIPTS = (
    *(key for key in NOT_IDENTITY if key != "nproc"),
    *(f"script.{key}" for key in ("grace_s", *METRIC_SETTINGS)),
)
READ_BY_PRODUCTS = ("input", "weight", "output_gradient")
# keys that a run may leave as they are: there they are no part of it, so that a new one renames nothing
UNUSED: dict[str, Any] = {
    "parameter_groups": [],
    "max_steps": None,
    "tf32": False,
    "give_up_after": None,
    "init_into": None,
    "init_skip": [],
    "init_sha256": None,
    "precision.aps": False,
    "precision.rules": [],
    "sync.compat": None,
    "sync.requantise": None,
    "sync.nesterov": False,
    "sync.closing_rounds": 0,
    "data.bpe_vocab": None,
    "precision.activation_rounding": "nearest_even",
    "precision.activation_range": "tensor",
}


def run_name(config: Mapping[str, Any]) -> str:
    """Return `<slug>-<hash10>`, such as convnet-e4m3-aps-w8-s0-1f0c2d3e4a or train-fp32-nvfp4-w1-s0-5a11c0ffee."""
    script = is_script(config)
    model = stem(config["script"]) if script else config["model"]["_target_"].rsplit(".", 1)[-1].lower()
    aps = ["aps"] if config["aps"] else []
    recipe = [str(config["recipe"])] if script and config.get("recipe") else []
    slug = [model, config["format"], *aps, *recipe, f"w{config['world_size']}", f"s{config['seed']}"]
    return f"{'-'.join(slug)}-{identity_hash(config)}"


def identity_hash(config: Mapping[str, Any]) -> str:
    """The first ten hexadecimal digits of the SHA-256 of the config's identity."""
    unused = [] if config["aps"] else ["scaling"]
    if config.get("recipe") is None or isinstance(config.get("precision"), Mapping):  # which has what it says
        unused += ["recipe", INGREDIENTS]
    data = config.get("data")
    if "task" in config and isinstance(data, Mapping) and "_target_" in data:  # others may say `task: mnli`
        of_data = FIRST_TASK.get(data["_target_"], CLASSIFICATION)
        unused += ["task"] if config["task"] == {"_target_": of_data} else []
    left_out = NOT_IDENTITY_OF_SCRIPTS if is_script(config) else NOT_IDENTITY
    identity = {
        key: FIRST_NAME.get(value, value)
        if key.endswith("_target_") and isinstance(value, str)
        else _without_secrets(key, value)
        for key, value in flatten(config)
        if _belongs(key, left_out) and key.split(".")[0] not in unused and not _is_unused(key, value)
    }
    if _has_blocks_along_sums(config.get("precision")):
        identity["precision.blocks"] = (
            "along sums"  # in memory order once, of the same rules: those are other runs
        )
    text = json.dumps(identity, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _without_secrets(key: str, value: Any) -> Any:
    return mask_value(key, value) if isinstance(value, str) else value


def _has_blocks_along_sums(precision: Any) -> bool:
    """Whether a rule rounds what a product reads to a format with scales."""
    rules = precision.get("rules") if isinstance(precision, Mapping) else None
    for rule in rules if isinstance(rules, list) else ():
        if isinstance(rule, Mapping):
            roles = rule.get("role")
            reads = any(role in READ_BY_PRODUCTS for role in (roles if isinstance(roles, list) else [roles]))
            if reads and _has_scales(rule.get("format")):
                return True
    return False


def _has_scales(name: Any) -> bool:
    """Of a format of ours; one in a module of the user's own is not imported for it."""
    try:
        return not is_own(name) and parse(name).has_scales
    except ValueError:  # the run's start says what is wrong with it
        return False


def _is_unused(key: str, value: Any) -> bool:
    return key in UNUSED and value == UNUSED[key]


def belongs_to_identity(key: str) -> bool:
    """Whether the value of a dotted key can change a run's result: it is no path and no matter of launching."""
    return _belongs(key, NOT_IDENTITY)


def _belongs(key: str, left_out: Collection[str]) -> bool:
    sections = (key[:i] for i, letter in enumerate(key) if letter == ".")
    return key not in left_out and not any(s in left_out for s in sections) and not key.endswith("_dir")
