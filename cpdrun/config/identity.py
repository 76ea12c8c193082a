"""The name of a run: a short description and a hash of its config. The same run has the same name everywhere.

The hash does not include settings that cannot change the result: paths, the launcher, and names that are only
displayed. For a script, the hash includes the script's code, but not the settings for reading its metrics.

config.yaml in the folder of a run contains these keys:

Keys:
    format (required): The number format. In cpdrun's own runs, it is that of the gradients between workers.
    seed: An integer. A run without a seed is in no pair.
    aps: Whether gradients were scaled (auto-precision scaling). The default is false.
    world_size: The number of workers that exchanged gradients.

Every other key is a setting, and mappings may be nested. A setting that differs between runs is an axis of the report.
These keys are exceptions, because they say how and where a run was made: `exp`, `name`, `results_dir`, keys that end in
`_dir`, `nproc`, `loaders`, `patience_s`, `elastic`, `limit_s`, `launcher`, `statistics`, `observe`, `checkpoint`,
`init_from`, `norm`, `topology`, `compressor`, and, without `aps`, `scaling`. `case` names a case, which stands for the
settings that it contains.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from custom_fp.formats.names import is_own, parse

from cpdrun.config.class_names import CLASSIFICATION, FIRST_NAME, FIRST_TASK
from cpdrun.config.input_files import IDENTIFIED_BY
from cpdrun.config.overrides import INGREDIENTS, flatten, get_key, has_key
from cpdrun.config.script import METRIC_SETTINGS, is_script, stem
from cpdrun.config.secrets import mask_value

# Sections that are included by the sections that use them, as in `sync: {topology: ${topology}}`. The hash covers them
# only as parts of the including sections.
PARTS_OF_OTHERS = ("norm", "topology", "compressor")
NOT_IDENTITY = (
    "exp",
    "case",
    "name",
    "results_dir",
    "init_from",  # init_sha256 identifies the contents of the file
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
# A script distributes its data over its ranks, so the number of ranks (nproc) can change the result.
NOT_IDENTITY_OF_SCRIPTS = (
    *(key for key in NOT_IDENTITY if key != "nproc"),
    *(f"script.{key}" for key in ("grace_s", *METRIC_SETTINGS)),
)
READ_BY_PRODUCTS = ("input", "weight", "output_gradient")
# A key with the value given here is not included in the hash. When a new version of cpdrun adds such a key, the hashes
# of earlier runs therefore stay the same.
UNUSED: dict[str, Any] = {
    "parameter_groups": [],
    "max_steps": None,
    "tf32": False,
    "eval_every": 1,
    "give_up_after": None,
    "init_into": None,
    "init_skip": [],
    "init_optimizer": False,
    "init_sha256": None,
    "precision.aps": False,
    "precision.rules": [],
    "precision.operations": None,
    "sync.compat": None,
    "sync.requantise": None,
    "sync.nesterov": False,
    "sync.closing_rounds": 0,
    "data.bpe_vocab": None,
    "precision.activation_rounding": "nearest_even",
    "precision.activation_range": "tensor",
}


def run_name(config: Mapping[str, Any]) -> str:
    """Return the name of a run, `<slug>-<hash10>`, such as convnet-e4m3-aps-w8-s0-1f0c2d3e4a.

    The slug is for people. It contains the model or script, the format of the gradients, `aps` if APS is used, the
    recipe, the method of synchronization if it is not a plain all-reduce, the case, the number of workers, and the
    seed. If there is a recipe and the format of the gradients is fp32, the slug contains the recipe but not the format.
    The hash alone identifies the run, so folders whose names have an older form of the slug are still found.
    """
    model = stem(config["script"]) if is_script(config) else _model_slug(config["model"])
    recipe = config.get("recipe")
    recipes = [recipe] if isinstance(recipe, str) and recipe != "fp32" else []
    formats = [config["format"]] if config["format"] != "fp32" or not recipes else []
    aps = ["aps"] if config["aps"] else []
    case = [_slug(str(config["case"]))] if config.get("case") is not None else []
    numbers = [f"w{config['world_size']}", f"s{config['seed']}"]
    slug = [model, *formats, *aps, *recipes, *_sync_slug(config), *case, *numbers]
    return f"{'-'.join(filter(None, slug))}-{identity_hash(config)}"


def cell_name(config: Mapping[str, Any]) -> str:
    """Return the name of a run's cell. A cell is the set of runs that differ only in the seed.

    The ledger of hypotheses in sweep.yaml contains these names, so their form must never change.
    """
    script, config = is_script(config), {**config, "seed": 0}
    model = stem(config["script"]) if script else _class_name(config["model"])
    aps = ["aps"] if config["aps"] else []
    recipe = [str(config["recipe"])] if script and config.get("recipe") else []
    slug = [model, config["format"], *aps, *recipe, f"w{config['world_size']}", "s0"]
    return f"{'-'.join(slug)}-{identity_hash(config)}"


def hash_in(name: str) -> str:
    """Return the hash at the end of a run's name, or "" if the name has none."""
    match = re.search(r"-([0-9a-f]{10})$", name)
    return match[1] if match else ""


def _sync_slug(config: Mapping[str, Any]) -> list[str]:
    """Return the parts of a slug that describe the synchronization. For a plain all-reduce, the list is empty."""
    sync = config.get("sync")
    if not isinstance(sync, Mapping) or not isinstance(sync.get("_target_"), str):
        return []
    name = _class_name(sync)
    parts = [] if name == "allreducesync" else [name.removesuffix("sync")]
    compressor = sync.get("compressor")
    if isinstance(compressor, Mapping) and isinstance(compressor.get("_target_"), str):
        parts += [kind] if (kind := _class_name(compressor)) != "rounded" else []
    for key, usual in (("order", "hierarchical"), ("rounding", "nearest_even")):
        if (value := sync.get(key, usual)) != usual:
            parts.append(_slug(str(value)))
    return parts + ["kahan"] * bool(sync.get("kahan"))


def _class_name(section: Mapping[str, Any]) -> str:
    return section["_target_"].rsplit(".", 1)[-1].lower()


def _model_slug(model: Mapping[str, Any]) -> str:
    """Return the name of a pretrained model without its folder, or else the name of the model's class."""
    name = model.get("name")
    return _slug(name.rstrip("/").rpartition("/")[2]) if isinstance(name, str) else _class_name(model)


def _slug(text: str) -> str:
    """Return a text in a form for folder names: at most 24 lower-case letters, digits, dots, and underscores."""
    return re.sub(r"[^a-z0-9.]+", "_", text.lower()).strip("_.")[:24]


def identity_hash(config: Mapping[str, Any]) -> str:
    """Return the first ten hexadecimal digits of the SHA-256 digest of the config's identity."""
    unused = set() if config["aps"] else {"scaling"}
    # If there is a section `precision`, it contains the recipe's rules. The hash then needs neither the recipe's name
    # nor its ingredients.
    if config.get("recipe") is None or isinstance(config.get("precision"), Mapping):
        unused |= {"recipe", INGREDIENTS}
    for digest, paths in IDENTIFIED_BY.items():
        unused |= {*paths} if has_key(config, digest) and get_key(config, digest) else set()
    data = config.get("data")
    # In the config of a script, the key `task` may be a text, such as `task: mnli`.
    if "task" in config and isinstance(data, Mapping) and "_target_" in data:
        of_data = FIRST_TASK.get(data["_target_"], CLASSIFICATION)
        unused |= {"task"} if config["task"] == {"_target_": of_data} else set()
    left_out = NOT_IDENTITY_OF_SCRIPTS if is_script(config) else NOT_IDENTITY
    identity = {
        key: FIRST_NAME.get(value, value)
        if key.endswith("_target_") and isinstance(value, str)
        else _without_secrets(key, value)
        for key, value in flatten(config)
        if _belongs(key, left_out) and not unused & {key, key.split(".")[0]} and not _is_unused(key, value)
    }
    if _has_blocks_along_sums(config.get("precision")):
        identity["precision.blocks"] = (
            "along sums"  # Earlier versions formed blocks in memory order, so their results were different.
        )
    text = json.dumps(identity, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _without_secrets(key: str, value: Any) -> Any:
    return mask_value(key, value) if isinstance(value, str) else value


def _has_blocks_along_sums(precision: Any) -> bool:
    """Return whether a rule rounds an operand of a matrix product to a format with scales."""
    rules = precision.get("rules") if isinstance(precision, Mapping) else None
    for rule in rules if isinstance(rules, list) else ():
        if isinstance(rule, Mapping):
            roles = rule.get("role")
            reads = any(role in READ_BY_PRODUCTS for role in (roles if isinstance(roles, list) else [roles]))
            if reads and _has_scales(rule.get("format")):
                return True
    return False


def _has_scales(name: Any) -> bool:
    """Return whether a format has scales. The user's own formats are not imported and count as having none."""
    try:
        return not is_own(name) and parse(name).has_scales
    except ValueError:  # `validate` reports the error
        return False


def _is_unused(key: str, value: Any) -> bool:
    return key in UNUSED and value == UNUSED[key]


def belongs_to_identity(key: str) -> bool:
    """Return whether the value of a dotted key can change the result. Paths and launch settings cannot."""
    return _belongs(key, NOT_IDENTITY)


def _belongs(key: str, left_out: Collection[str]) -> bool:
    sections = (key[:i] for i, letter in enumerate(key) if letter == ".")
    return key not in left_out and not any(s in left_out for s in sections) and not key.endswith("_dir")


def format_facts(name: str) -> dict[str, Any]:
    """Return the properties of a number format that a record stores.

    Readers of the record then do not need to import the user's own formats.

    Args:
        name: The name of the format. The module of a user's own format is imported.

    Returns:
        A dict, which is written to format.json: `name` as in config.yaml, `bits` (bits per value, including the share
        of a scale, such as 4.5), and `exponent_bits` (None if the format is not a floating-point format). A format of
        32 bits with 8 exponent bits is fp32. `custom_fp.parse(NAME).bits` gives the bits of formats that cpdrun knows.

    Raises:
        ValueError: The format is unknown.
    """
    fmt = parse(name)
    return {"name": name, "bits": fmt.bits, "exponent_bits": fmt.exponent_bits}
