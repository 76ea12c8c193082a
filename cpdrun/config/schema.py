"""The typed model of a run's settings, and the checks that it implies.

`TrainingRun` describes a run of cpdrun's own training loop, and `ScriptRun` a run of a user's script. Each field is a
key of conf/. The type of a field determines the allowed values, and the description in the type is the error message
for any other value. The defaults are in conf/, not in the model. The JSON Schema of an experiment (`json_schema`) is
based on these types.
"""

import itertools
import re
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from custom_fp import accumulator
from custom_fp.formats.names import is_own, parse
from msgspec import UNSET, Meta, Struct, UnsetType

from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.overrides import flatten, get_key, has_key, typed_form
from cpdrun.config.script import is_script, with_number

TARGET = "_target_"
MOST_NAME_BYTES = 255  # the largest length of the name of a file or folder on Linux
FORMATS = "cpdrun.train.precision.run_formats.Formats"
ACCUMULATOR = "accumulator"  # a key of `precision`, and a role of its rules
MOST_DIVISORS_TRIED = 100_000  # the largest value of nproc that an error message considers as a suggestion
NUMBER_OR_WORD = ("precision.loss_scale",)  # a number or the word dynamic
TEXT_TABLE = "cpdrun.data.text.text_table.TextTable"
CLASSIFICATIONS = ("cpdrun.tasks.classification.Classification", "cpdrun.tasks.top5.Top5")
NEXT_TOKEN = "cpdrun.tasks.next_token.NextToken"
ONE_OR_SEVERAL = ("screen.low.",)  # prefixes of keys whose value may be a list or a single item


class CheckedValue:
    """A type whose values are checked by a function."""

    @staticmethod
    def find_problem(value: Any) -> str | None:
        """Return what is wrong with a value, or None."""
        raise NotImplementedError


class FormatName(CheckedValue):
    """The name of a number format."""

    @staticmethod
    def find_problem(value: Any) -> str | None:
        if isinstance(value, list):
            return f"must be one name. To try several, type {','.join(map(str, value))} without brackets"
        try:
            parse(value)
        except (ValueError, TypeError) as error:
            return str(error)
        return None


class AccumulatorName(CheckedValue):
    """The name of an accumulator: a number format without scales, or a tensor-core model."""

    @staticmethod
    def find_problem(value: Any) -> str | None:
        try:
            found, *_ = accumulator.read(value)
        except (ValueError, TypeError) as error:
            return str(error)
        if getattr(found, "has_scales", False):
            return "must be a format without scales, because an accumulator has no blocks of values that share a scale"
        return None


class ClassName(CheckedValue):
    """The dotted name of a class."""

    @staticmethod
    def find_problem(value: Any) -> str | None:
        good = isinstance(value, str) and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", value)
        return None if good else "must be package.module.Class"


class FolderName(CheckedValue):
    """The name of a folder, without its path."""

    @staticmethod
    def find_problem(value: Any) -> str | None:
        good = (
            isinstance(value, str)
            and value.strip(".")
            and not set(value) & set("/\\")
            and value.isprintable()
        )
        if not good:
            return "must be the name of a folder, without slashes"
        size = len(value.encode())
        return (
            None if size <= MOST_NAME_BYTES else f"must have at most {MOST_NAME_BYTES} bytes, but has {size}"
        )


class WordOrNumber(CheckedValue):
    """The value of a Slurm option, such as a partition or a number of minutes."""

    @staticmethod
    def find_problem(value: Any) -> str | None:
        good = isinstance(value, str | int) and not isinstance(value, bool) and str(value).isprintable()
        return None if good and value != "" else "must be a word or a number, or null"


class MetricPattern(CheckedValue):
    """A regular expression that finds the values of a metric in a script's output."""

    @staticmethod
    def find_problem(value: Any) -> str | None:
        example = "such as 'loss {number}'"
        if not isinstance(value, str):
            return f"must be a pattern, {example}"
        try:
            groups = re.compile(with_number(value)).groups
        except re.error as error:
            return f"is not a valid regular expression: {error}. Try a pattern {example}"
        return None if groups == 1 else f"must have exactly one group, around the number, {example}"


class ParameterGroups(CheckedValue):
    """Groups of parameters that have different settings of the optimizer."""

    @staticmethod
    def find_problem(value: Any) -> str | None:
        example = "such as [{parameters: ['*.bias'], weight_decay: 0.0}]"
        if not isinstance(value, list) or not all(isinstance(group, Mapping) for group in value):
            return f"must be a list of groups, {example}"
        for group in value:
            chosen = [group[key] for key in ("parameters", "modules") if key in group]
            if not any(chosen) or any(_problem(patterns, Patterns) for patterns in chosen):
                return f"each group must have lists of glob patterns (parameters, modules), {example}"
            if not set(group) - {"parameters", "modules"}:
                return f"each group must have at least one setting of the optimizer, {example}"
        return None


class OnlyFalse(CheckedValue):
    """A type whose only value is False, such as `elastic` in runs of scripts."""

    @staticmethod
    def find_problem(value: Any) -> str | None:
        if value is False:
            return None
        return "must be false for a script. With --retries R, a script resumes from its own checkpoint"


Whole = Annotated[int, Meta(ge=0, description="must be a whole number, at least 0")]
Positive = Annotated[int, Meta(ge=1, description="must be a whole number, at least 1")]
AboveZero = Annotated[float, Meta(gt=0, description="must be a number above 0")]
NotNegative = Annotated[float, Meta(ge=0, description="must be a number, at least 0")]
Share = Annotated[float, Meta(ge=0, lt=1, description="must be a number, at least 0 and below 1")]
ShareOfEpochs = Annotated[
    float, Meta(gt=0, lt=1, description="must be a share of the epochs, above 0 and below 1, or null")
]
Text = Annotated[str, Meta(min_length=1, description="must be text")]
Arguments = Annotated[str, Meta(description="must be text, such as '--lr 3e-4'")]
Sha256 = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-f]{64}(?![\s\S])",
        description="must have 64 hexadecimal digits, like the output of sha256sum",
    ),
]
Patterns = Annotated[list[str], Meta(description="must be a list of glob patterns, such as ['fc.*']")]
Lines = Annotated[
    list[Annotated[str, Meta(pattern=r"^[^\n]*(?![\s\S])")]],
    Meta(description="must be a list of lines of text, such as ['module load cuda']"),
]
AnyNames = Annotated[dict[Any, Any], Meta(description="must map names to values")]
Directions = Annotated[
    dict[Any, Literal["min", "max", "share"]], Meta(description="must map names to min, max or share")
]
MetricPatterns = Annotated[dict[Any, MetricPattern], Meta(description="must map names to patterns")]


class Section(Struct, kw_only=True):
    """A class and its arguments. Any key is allowed here, because the class itself checks its arguments."""

    target: ClassName = msgspec.field(name=TARGET)


class FormatsPrecision(Section, kw_only=True):
    """The section `precision` of the class cpdrun.train.precision.run_formats.Formats."""

    weights: FormatName | UnsetType = UNSET
    activations: FormatName | UnsetType = UNSET
    errors: FormatName | UnsetType = UNSET
    accumulator: AccumulatorName | UnsetType = UNSET
    optimizer_state: FormatName | UnsetType = UNSET
    update: FormatName | UnsetType = UNSET


class Launcher(Section, kw_only=True):
    """Settings of the launchers of cpdrun. Each launcher has some of them."""

    jobs: Positive | UnsetType | None = UNSET
    jobs_per_gpu: Positive | UnsetType = UNSET
    partition: WordOrNumber | UnsetType | None = UNSET
    account: WordOrNumber | UnsetType | None = UNSET
    time: WordOrNumber | UnsetType | None = UNSET
    gres: WordOrNumber | UnsetType | None = UNSET
    mem: WordOrNumber | UnsetType | None = UNSET
    nodes: Positive | UnsetType = UNSET
    tasks_per_node: Positive | UnsetType = UNSET
    max_parallel: Positive | UnsetType | None = UNSET
    warning_s: Whole | UnsetType = UNSET
    setup: Lines | UnsetType = UNSET
    sbatch: Lines | UnsetType = UNSET


class FullPrecision(Struct, kw_only=True):
    """The section `full_precision`: the layers and epochs whose gradients are exchanged in fp32."""

    layers: Patterns
    first_epochs: Whole
    last_epochs: Whole


class Statistics(Struct, kw_only=True):
    """The section `statistics`, which determines how often the gradients are analyzed."""

    every_steps: Positive


class Checkpoint(Struct, kw_only=True):
    """The section `checkpoint`, which determines how often checkpoints are written and whether the last one is kept."""

    every_epochs: Positive
    keep: bool


class AnyRun(Struct, kw_only=True):
    """Settings that every run has (conf/any_run.yaml)."""

    exp: Text | None
    name: FolderName
    case: Text | None
    results_dir: Text
    format: FormatName
    recipe: Text | None
    ingredients: AnyNames | UnsetType = UNSET
    aps: bool
    full_precision: FullPrecision
    world_size: Positive
    seed: Whole
    init_from: Text | None
    init_sha256: Sha256 | None
    nproc: Positive
    threads: Positive
    device: Literal["auto", "cpu", "cuda"]
    tf32: bool
    patience_s: Positive
    limit_s: AboveZero | None
    observe: Whole
    precision: Section
    sync: Section
    topology: Section
    compressor: Section
    scaling: Section
    launcher: Launcher


class TrainingRun(AnyRun, kw_only=True):
    """Settings of a run of cpdrun's own training loop (conf/config.yaml)."""

    elastic: bool
    batch_size: Positive
    epochs: Whole
    max_steps: Positive | None
    give_up_after: ShareOfEpochs | None
    init_into: Text | None
    init_skip: Patterns
    init_optimizer: bool
    label_smoothing: Share
    parameter_groups: ParameterGroups
    clip_norm: AboveZero | None
    emulation: Literal["exact", "chunked", "batched"]
    loaders: Whole
    eval_batch: Positive
    eval_every: Positive
    channels_last: bool
    statistics: Statistics
    checkpoint: Checkpoint
    model: Section
    norm: Section
    data: Section
    task: Section
    optim: Section
    schedule: Section
    partition: Section


class Script(Struct, kw_only=True):
    """The section `script` (conf/script.yaml)."""

    path: Text | None
    arguments: Arguments
    args: AnyNames
    args_style: Literal["flags", "hydra"]
    launch_with: Text | None
    work_dir: Text | None
    typed_in_dir: Text | None
    sha256: Sha256 | None
    metrics: MetricPatterns
    jsonl: Text | None
    csv: Text | None
    tensorboard: Text | None
    metric: Text | None
    direction: Directions
    value: Literal["last", "best"]
    grace_s: NotNegative


class ScriptRun(AnyRun, kw_only=True):
    """Settings of a run of a user's script (conf/any_run.yaml and conf/script.yaml)."""

    elastic: OnlyFalse
    script: Script


# Keys that only cpdrun's own training loop has.
TRAINING_ONLY = tuple(key for key in TrainingRun.__struct_fields__ if key not in ScriptRun.__struct_fields__)


@cache
def setting_types(model: type[Struct], prefix: str = "") -> dict[str, Any]:
    """Return the type of each setting in a model, keyed by its dotted key."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(model):
        key = f"{prefix}{field.encode_name}"
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            found |= setting_types(field.type, f"{key}.")
        else:
            found[key] = field.type
    return found


def takes_any_name(key: str) -> bool:
    """Return whether a dotted key, such as script.args.lr, is in a section that allows any name."""
    types = setting_types(ScriptRun)
    return any(_is_mapping(types[parent]) for parent in _parents(key) if parent in types)


def find_problem(key: str, value: Any) -> str | None:
    """Return what is wrong with the value of a setting of cpdrun's own training loop, or None."""
    return _problem(value, setting_types(TrainingRun)[key])


def validate(config: Mapping[str, Any], *, imports: bool = True) -> None:
    """Check the resolved config of a run.

    Args:
        config: The config.
        imports: Whether the user's own modules may be imported. If not, number formats that these modules define are
            not checked.

    Raises:
        ConfigError: A setting is wrong. The message names its key.
    """
    model = ScriptRun if is_script(config) else TrainingRun
    values = dict(flatten(config))
    if missing := [key for key, value in values.items() if value == "???"]:
        key = min(missing, key=len)  # The shortest key is that of a group, to which the other keys refer.
        raise ConfigError(f"{key} must be given: {key}=VALUE")
    for key in values:
        if not _is_known(model, key):
            raise ConfigError(f"unknown key {key!r}{did_you_mean(key, _known_keys(model))}")
    for key, kind in setting_types(model).items():
        if key in values or has_key(config, key):
            _check(key, values[key] if key in values else get_key(config, key), kind, imports)
        elif key.endswith(TARGET):
            raise _no_class(key)
        elif UnsetType not in get_args(kind):
            raise ConfigError(f"{key} is missing")
    _check_precision(config["precision"], imports)
    _check_combinations(config, imports or not is_own(config["format"]))


@cache
def _sections(model: type[Struct]) -> list[str]:
    """Return the keys of the sections that consist of a class and its arguments."""
    return [key.removesuffix(f".{TARGET}") for key in setting_types(model) if key.endswith(TARGET)]


@cache
def _is_known(model: type[Struct], key: str) -> bool:
    """Return whether a model has a dotted key, or the key is in a section in which any name is allowed."""
    types, parents = setting_types(model), _parents(key)
    return key in types or parents[0] in _sections(model) or any(parent in types for parent in parents)


def _known_keys(model: type[Struct]) -> list[str]:
    """Return the keys that a message about an unknown key may suggest."""
    sections = _sections(model)
    return [*(key for key in setting_types(model) if key.partition(".")[0] not in sections), *sections]


def _parents(key: str) -> list[str]:
    """Return the parents of a dotted key, such as a and a.b for a.b.c. A key without a dot is its own parent."""
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(1, max(len(parts), 2))]


def _check(key: str, value: Any, kind: Any, imports: bool) -> None:
    """Raise ConfigError if the value of a setting has another type."""
    if key.endswith(TARGET) and not value:
        raise _no_class(key)
    if not imports and is_own(value) and {FormatName, AccumulatorName} & {kind, *get_args(kind)}:
        return
    if _is_mapping(kind) and isinstance(value, Mapping):
        inner = get_args(get_args(kind)[0])[1]
        for name, item in value.items():
            _check(f"{key}.{name}", item, inner, imports)
    elif problem := _problem(value, kind):
        raise ConfigError(f"{key}={typed_form(value)}: {problem}")


def _no_class(key: str) -> ConfigError:
    return ConfigError(f"{key.removesuffix(f'.{TARGET}')} must name its class: {key}=package.module.Class")


@cache
def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) is Annotated and get_origin(get_args(kind)[0]) is dict


def _problem(value: Any, kind: Any) -> str | None:
    """Return what is wrong with a value of a type, or None."""
    try:
        msgspec.convert({"value": value}, _struct_of(kind), dec_hook=_convert_checked)
    except msgspec.ValidationError as error:
        return _description(kind) or str(error).removesuffix(" - at `$.value`")
    return None


@cache
def _struct_of(kind: Any) -> type[Struct]:
    """Return a struct with one field of a type. msgspec analyzes the type of a struct's field only once."""
    return msgspec.defstruct("Setting", [("value", kind)])


def _convert_checked(kind: type, value: Any) -> Any:
    if not issubclass(kind, CheckedValue):
        raise NotImplementedError(f"{kind} must be a type of a setting, with a method find_problem")
    if problem := kind.find_problem(value):
        raise ValueError(problem)
    return kind()


def _description(kind: Any) -> str | None:
    """Return the message for values of another type, or None for types that are checked by a function."""
    if kind is bool:
        return "must be true or false"
    if get_origin(kind) is Literal:
        return f"must be one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is Annotated:
        return next(meta.description for meta in get_args(kind)[1:])
    if get_origin(kind) in (Union, UnionType):
        return next((text for inner in get_args(kind) if (text := _description(inner))), None)
    return None


def _check_precision(precision: Mapping[str, Any], imports: bool) -> None:
    """Check the names of formats and accumulators in the section `precision`.

    The section is only checked if its class is `Formats`.
    """
    if precision[TARGET] != FORMATS:
        return
    for key, kind in setting_types(FormatsPrecision).items():
        if key in precision:
            _check(f"precision.{key}", precision[key], kind, imports)
    rules = precision.get("rules")
    for i, rule in enumerate(rules if isinstance(rules, list | tuple) else ()):
        if isinstance(rule, Mapping) and "format" in rule:
            roles = rule.get("role")
            adds = ACCUMULATOR in (roles if isinstance(roles, list | tuple) else [roles])
            kind = AccumulatorName if adds else FormatName
            _check(f"precision.rules[{i}].format", rule["format"], kind, imports)


def check_type(key: str, value: Any, default: Any) -> None:
    """Raise ConfigError if a value has another type than the default of its key in a yaml file.

    This function checks arguments of classes, which are not part of the model. A number must replace a number, a list
    must replace a list, and true or false must replace true or false.
    """
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


def _check_combinations(config: Mapping[str, Any], knows_format: bool) -> None:
    """Raise ConfigError for settings that do not fit together."""
    fmt = parse(config["format"] if knows_format else "fp32")
    try:
        fmt.check_flat()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if config["aps"] and fmt.has_scales:
        raise ConfigError(f"format={config['format']} has its own scales. Set aps=false")
    if not is_script(config):
        _check_training(config)
    for key in ("init_into", "init_skip", "init_optimizer", "init_sha256"):
        if config.get(key) and config["init_from"] is None:
            raise ConfigError(
                f"{key}={typed_form(config[key])} has no effect without init_from=PATH. Type init_from=PATH, too"
            )
    world_size, nproc = config["world_size"], config["nproc"]
    if world_size % nproc:
        near = sorted(range(1, min(world_size, MOST_DIVISORS_TRIED) + 1), key=lambda n: (abs(n - nproc), n))
        divisors = sorted(itertools.islice((n for n in near if world_size % n == 0), 6))
        raise ConfigError(
            f"nproc={nproc} does not divide world_size={world_size}: each process must emulate the same number of "
            f"workers. Possible values: {', '.join(map(str, divisors))}"
        )


def _check_training(config: Mapping[str, Any]) -> None:
    compared = config["aps"] or config["format"] != "fp32"
    if config["epochs"] == 0 and compared and "*" not in config["full_precision"]["layers"]:
        raise ConfigError(
            f"format={config['format']} with epochs=0 trains nothing, so the format has no effect. Type format=fp32 "
            "aps=false"
        )
    if config["epochs"] == 0 and config["max_steps"] is not None:
        raise ConfigError(
            f"max_steps={config['max_steps']} has no effect with epochs=0, which trains nothing. Type epochs=1 or more"
        )
    if config["init_optimizer"] and (config["init_into"] or config["init_skip"]):
        raise ConfigError(
            "init_optimizer=true needs the weights of the whole model. Remove init_into and init_skip, or type "
            "init_optimizer=false"
        )
    _check_labels(config["data"], config["task"][TARGET])


def _check_labels(data: Mapping[str, Any], task: str) -> None:
    """Raise ConfigError if the task does not fit a table of texts with or without labels."""
    if data[TARGET] != TEXT_TABLE:
        return
    if data["label"] is None and task in CLASSIFICATIONS:
        raise ConfigError(
            "data.label=null: texts without labels are for prediction of the next token. Type task=next_token"
        )
    if data["label"] is not None and task == NEXT_TOKEN:
        raise ConfigError(
            f"task=next_token does not use the labels in data.label={data['label']}. Type data.label=null"
        )


def json_schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a setting's type, without its message."""
    schema = msgspec.json.schema(kind, schema_hook=_schema_of_checked)
    schema.pop("description", None)
    return schema


def _schema_of_checked(kind: type) -> dict[str, Any]:
    if kind is ParameterGroups:
        return {"type": "array", "items": {"type": "object"}}
    if kind is WordOrNumber:
        return {"type": ["string", "integer"]}
    return {"type": "string"}
