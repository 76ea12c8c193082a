"""What a run's config may hold. Types and limits stand here, defaults in conf/: each is written once."""

import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from custom_fp.formats.names import is_own, parse

from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.keys import INGREDIENTS, flatten, get_key, has_key
from cpdrun.config.overrides import typed_form
from cpdrun.config.paths import MOST_NAME_BYTES
from cpdrun.config.rounded import check_names
from cpdrun.config.script import is_open, is_script

MOST_TRIED = 100_000  # divisors of a world size that nobody meant need not all be found
SECTIONS = (  # arguments of the class in _target_
    *("model", "norm", "data", "task", "optim", "schedule", "precision", "partition", "sync", "topology"),
    *("compressor", "scaling"),
)
SCRIPT_SECTIONS = ("precision", "sync", "topology", "compressor", "scaling")  # of a script's run
FREE = ("launcher",)  # checked by its executor, for the most part
NUMBER_OR_WORD = ("precision.loss_scale",)  # or dynamic
ONE_OR_SEVERAL = ("screen.low.",)  # prefixes of keys; a list, or what stands in it

_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")

Check = Callable[[Any], str | None]  # what is wrong with a value, or None


def validate(config: Mapping[str, Any], *, imports: bool = True) -> None:
    """Raise ConfigError, naming the key, for the first thing wrong with a resolved config. Without `imports`, a format
    in a module of the user's own is taken at its word, for looking at it runs that module."""
    script = is_script(config)
    rules, sections = (SCRIPT_RULES, SCRIPT_SECTIONS) if script else (RULES, SECTIONS)
    known = [*rules, *sections, *FREE]
    missing = [key for key, value in flatten(config) if value == "???"]
    if missing:  # the shortest of several: a group's own key, not where others take the group in
        key = min(missing, key=len)
        raise ConfigError(f"{key} must be given: {key}=VALUE")
    for key, _ in flatten(config):
        is_open_here = key.split(".")[0] in (*sections, *FREE, INGREDIENTS) or (script and is_open(key))
        if key not in rules and not is_open_here:
            raise ConfigError(f"unknown key {key!r}{did_you_mean(key, known)}")
    for key, check in rules.items():
        if not has_key(config, key):
            raise ConfigError(f"{key} is missing")
        value = get_key(config, key)
        if key == "format" and is_own(value) and not imports:
            continue
        if problem := check(value):
            raise ConfigError(f"{key}={typed_form(value)}: {problem}")
    for section in (*sections, *FREE):
        target = config[section].get("_target_") if isinstance(config.get(section), Mapping) else None
        if not target:
            raise ConfigError(f"{section} must name its class: {section}._target_=package.module.Class")
        if not isinstance(target, str) or not _CLASS.fullmatch(target):
            raise ConfigError(f"{section}._target_={typed_form(target)}: must be package.module.Class")
    check_names(config.get("precision"), imports=imports)
    _validate_together(config, imports or not is_own(config["format"]))


def check_kind(key: str, value: Any, default: Any) -> None:
    """Raise ConfigError where `value` cannot stand in for `default`, which a yaml gives this key: what is true or
    false stays so (`no` is text), a list a list, and a number a number."""
    if isinstance(value, str) and "${" in value:
        return
    if isinstance(default, bool) and not isinstance(value, bool):
        raise ConfigError(f"{key}={typed_form(value)}: must be true or false")
    is_list = isinstance(default, list) and not key.startswith(ONE_OR_SEVERAL)
    if is_list and value is not None and not isinstance(value, list):
        raise ConfigError(f"{key}={typed_form(value)}: must be a list, such as [{typed_form(value)}]")
    number = isinstance(default, int | float) and not isinstance(default, bool)
    if number and isinstance(value, str | bool | list) and key not in NUMBER_OR_WORD:
        raise ConfigError(f"{key}={typed_form(value)}: must be a number, such as {default}")


def _validate_together(config: Mapping[str, Any], knows_format: bool) -> None:
    fmt = parse(config["format"] if knows_format else "fp32")
    try:
        fmt.check_flat()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if config["aps"] and fmt.has_scales:
        raise ConfigError(f"format={config['format']} has scales of its own: it takes aps=false")
    for key, check in LAUNCHER_RULES.items():
        if key in config["launcher"] and (problem := check(config["launcher"][key])):
            raise ConfigError(f"launcher.{key}={typed_form(config['launcher'][key])}: {problem}")
    if not is_script(config):
        _validate_training(config)
    world_size, nproc = config["world_size"], config["nproc"]
    if world_size % nproc:
        near = sorted(range(1, min(world_size, MOST_TRIED) + 1), key=lambda n: (abs(n - nproc), n))
        divisors = sorted(itertools.islice((n for n in near if world_size % n == 0), 6))
        raise ConfigError(
            f"nproc={nproc} does not divide world_size={world_size}: each process plays the same number of "
            f"workers; possible: {', '.join(map(str, divisors))}"
        )


def _validate_training(config: Mapping[str, Any]) -> None:
    """What belongs together in cpdrun's own loop."""
    compared = config["aps"] or config["format"] != "fp32"
    if config["epochs"] == 0 and compared and "*" not in config["full_precision"]["layers"]:
        raise ConfigError(
            f"format={config['format']} with epochs=0 trains nothing, so no gradient is ever in that format: "
            "type format=fp32 aps=false"
        )
    if config["epochs"] == 0 and config["max_steps"] is not None:
        raise ConfigError(
            f"max_steps={config['max_steps']} with epochs=0, which trains nothing: type epochs=1 or more"
        )
    for key in ("init_into", "init_skip", "init_sha256"):
        if config[key] and config["init_from"] is None:
            raise ConfigError(
                f"{key}={typed_form(config[key])} belongs to init_from=PATH, which is not given"
            )


def _number_format(value: Any) -> str | None:
    if isinstance(value, list):
        return f"must be one name; for an axis type format={','.join(map(str, value))}"
    try:
        parse(value)
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _not_of_scripts(value: Any) -> str | None:
    if value is False:
        return None
    return "must be false for a script: it goes on from its own checkpoint, with --retries R"


def _integer(minimum: int) -> Check:
    def check(value: Any) -> str | None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return None if whole and value >= minimum else f"must be a whole number, at least {minimum}"

    return check


def _number(minimum: float, below: float = math.inf) -> Check:
    def check(value: Any) -> str | None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and minimum <= value < below:
            return None
        return f"must be a number, at least {minimum}" + (f" and below {below}" if below < math.inf else "")

    return check


def _above_zero(value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if number and value > 0 else "must be a number above 0"


def _share(value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if number and 0 < value < 1 else "must be a share of the epochs, above 0 and below 1, or null"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "must be text"


def _any_text(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be text, such as '--lr 3e-4'"


def _mapping(value: Any) -> str | None:
    return None if isinstance(value, Mapping) else "must map names to values"


def _folder_name(value: Any) -> str | None:
    good = isinstance(value, str) and value.strip(".") and not set(value) & set("/\\") and value.isprintable()
    if not good:
        return "must be the name of a folder, without slashes"
    size = len(value.encode())
    return None if size <= MOST_NAME_BYTES else f"at most {MOST_NAME_BYTES} bytes; this name has {size}"


def _sha256(value: Any) -> str | None:
    good = isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
    return None if good else "must be 64 hexadecimal digits, as sha256sum prints them"


def _one_of(*choices: str) -> Check:
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def _patterns(value: Any) -> str | None:
    good = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return None if good else "must be a list of glob patterns, such as ['fc.*']"


def _parameter_groups(value: Any) -> str | None:
    example = "such as [{parameters: ['*.bias'], weight_decay: 0.0}]"
    if not isinstance(value, list) or not all(isinstance(group, Mapping) for group in value):
        return f"must be a list of groups, {example}"
    for group in value:
        chosen = [group[key] for key in ("parameters", "modules") if key in group]
        if not any(chosen) or any(_patterns(patterns) for patterns in chosen):
            return (
                f"each group names its parameters by lists of glob patterns (parameters, modules), {example}"
            )
        if not set(group) - {"parameters", "modules"}:
            return f"each group sets something of the optimizer's, {example}"
    return None


def _word_or_number(value: Any) -> str | None:
    good = isinstance(value, str | int) and not isinstance(value, bool) and str(value).isprintable()
    return None if good and value != "" else "must be a word or a number, or null"


def _lines(value: Any) -> str | None:
    good = isinstance(value, list) and all(isinstance(item, str) and "\n" not in item for item in value)
    return None if good else "must be a list of lines of text, such as ['module load cuda']"


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


ANY_RUN: dict[str, Check] = {
    "exp": _optional(_text),
    "name": _folder_name,
    "case": _optional(_text),
    "results_dir": _text,
    "format": _number_format,
    "recipe": _optional(_text),
    "aps": _boolean,
    "full_precision.layers": _patterns,
    "full_precision.first_epochs": _integer(0),
    "full_precision.last_epochs": _integer(0),
    "world_size": _integer(1),
    "seed": _integer(0),
    "nproc": _integer(1),
    "threads": _integer(1),
    "device": _one_of("auto", "cpu", "cuda"),
    "tf32": _boolean,
    "patience_s": _integer(1),
    "limit_s": _optional(_above_zero),
    "elastic": _boolean,
}
RULES = ANY_RUN | {
    "batch_size": _integer(1),
    "epochs": _integer(0),
    "max_steps": _optional(_integer(1)),
    "give_up_after": _optional(_share),
    "init_from": _optional(_text),
    "init_into": _optional(_text),
    "init_skip": _patterns,
    "init_sha256": _optional(_sha256),
    "label_smoothing": _number(0, 1),
    "parameter_groups": _parameter_groups,
    "clip_norm": _optional(_above_zero),
    "emulation": _one_of("exact", "chunked", "batched"),
    "loaders": _integer(0),
    "eval_batch": _integer(1),
    "channels_last": _boolean,
    "statistics.every_steps": _integer(1),
    "observe": _integer(0),
    "checkpoint.every_epochs": _integer(1),
}
SCRIPT_RULES = ANY_RUN | {
    "elastic": _not_of_scripts,
    "observe": _integer(0),
    "script.path": _optional(_text),
    "script.arguments": _any_text,
    "script.args": _mapping,
    "script.args_style": _one_of("flags", "hydra"),
    "script.launch_with": _optional(_text),
    "script.work_dir": _optional(_text),
    "script.typed_in_dir": _optional(_text),
    "script.sha256": _optional(_sha256),
    "script.metrics": _mapping,
    "script.jsonl": _optional(_text),
    "script.csv": _optional(_text),
    "script.tensorboard": _optional(_text),
    "script.metric": _optional(_text),
    "script.direction": _mapping,
    "script.value": _one_of("last", "best"),
    "script.grace_s": _number(0),
}

LAUNCHER_RULES: dict[str, Check] = {
    "jobs": _optional(_integer(1)),
    "jobs_per_gpu": _integer(1),
    **dict.fromkeys(("partition", "account", "time", "gres", "mem"), _optional(_word_or_number)),
    "nodes": _integer(1),
    "tasks_per_node": _integer(1),
    "max_parallel": _optional(_integer(1)),
    "warning_s": _integer(0),
    "setup": _lines,
    "sbatch": _lines,
}
