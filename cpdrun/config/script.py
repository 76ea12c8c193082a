"""The settings of a user's script: short forms, checks, and properties that are found by reading the script's text.

This module neither executes nor imports the script.
"""

import ast
import hashlib
import io
import re
import shlex
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cpdrun.config.errors import ConfigError, did_you_mean

SCRIPT = "script"
SHORT_FORMS = {SCRIPT: "script.path", "script_args": "script.arguments", "metric": "script.metric"}
# The values of these keys are taken as text, even if they contain commas or braces.
AS_TYPED = tuple(
    f"script.{key}"
    for key in ("path", "arguments", "launch_with", "work_dir", "jsonl", "csv", "tensorboard", "metric")
)
OF_METRICS = ("script.metrics.", "script.direction.")  # The name after such a prefix may contain a slash.
# The settings that determine which metrics are read, and where. They change only the record of a run, not its training.
METRIC_SETTINGS = ("metrics", "metric", "direction", "value", "jsonl", "csv", "tensorboard")
FILES = ("jsonl", "csv", "tensorboard")
MODULE = re.compile(r"-m\s+(\S+)")
PLACEHOLDERS = ("seed", "run_dir", "nproc", "port", "init_from")
BRACES = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")  # {{name}} is a literal {name}
PLACES = ("epoch", "step")  # metric names that measure progress, not quality
NUMBER = r"[+-]?(?:[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
NO_METRIC = (
    "the script ended well, but"  # the beginning of the message about a run that trained but has no metric
)
SEED_ARGUMENT = "--seed {seed}"
# Libraries whose trainers report metrics to cpdrun.
REPORTING = ("cpdrun", "transformers", "lightning", "accelerate")
LESS_IS_BETTER = re.compile(
    r"loss|perplexity|ppl|error|err|bpc|bpb|bits_per_byte|nll|rmse|mse|mae|wer|cer|fid", re.I
)
MORE_IS_BETTER = re.compile(
    r"accuracy|acc\d?|top_?[15]|f1|bleu|rouge\w*|iou|miou|map|auc|auroc|psnr|ssim|r2", re.I
)


def is_script(config: Mapping[str, Any]) -> bool:
    """Return whether a run's config is that of a user's script."""
    return isinstance(config.get(SCRIPT), Mapping)


def has_launcher(config: Mapping[str, Any]) -> bool:
    """Return whether a launcher other than cpdrun, such as `accelerate launch`, starts the ranks of a script."""
    return is_script(config) and bool(config[SCRIPT]["launch_with"])


def is_of_script(text: str) -> bool:
    """Return whether a typed word shows that the runs are runs of a script."""
    key = text.lstrip("+~").split("=", 1)[0]
    return key == "script_args" or key.split(".")[0] == SCRIPT


def as_typed(text: str) -> tuple[str, str | None] | None:
    """Return the key and the value of a word whose value is plain text. Return None for any other word.

    Quotes around the value are removed.
    """
    key, equals, value = text.partition("=")
    key = SHORT_FORMS.get(key, key)
    if not equals or not (key in AS_TYPED or key.startswith(OF_METRICS)):
        return None
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" and value[0] not in value[1:-1]:
        value = value[1:-1]
    return key, None if value == "null" else value


def complete(config: dict[str, Any]) -> None:
    """Add the digest of the script's file and the folder in which it starts to the resolved config of a run.

    If the script has an option `--seed` that the user did not type, the run's seed is passed with this option.

    Raises:
        ConfigError: The script does not exist or is not Python, or a setting is wrong.
    """
    script = config[SCRIPT]
    if not script.get("path"):
        raise ConfigError("script.path must be given: script=FILE.py, or script='-m package.module'")
    script["typed_in_dir"] = script["typed_in_dir"] or str(Path.cwd())
    script["work_dir"] = script["work_dir"] or script["typed_in_dir"]
    file = find(script["path"], Path(script["typed_in_dir"]))
    source = _source(file, file.stat().st_mtime_ns)
    if script["sha256"] not in (None, source.digest):
        raise ConfigError(f"script.sha256={script['sha256']}: {file} has {source.digest}")
    script["sha256"] = source.digest
    if source.takes_seed and not _is_told_its_seed(script):
        script["arguments"] = f"{script['arguments']} {SEED_ARGUMENT}".strip()
    _check_words(config)
    _check_metrics(script, source)


def _is_told_its_seed(script: Mapping[str, Any]) -> bool:
    words = [
        script["arguments"],
        script["launch_with"] or "",
        *(f"--{key}" for key, _ in _leaves(script["args"])),
    ]
    return any("{seed}" in text or "--seed" in text for text in words)


def seed_note(config: Mapping[str, Any], typed: Sequence[str]) -> list[str]:
    """Return a note if the run's seed is passed to the script without being typed, or if it is not passed."""
    if not is_script(config) or any("{seed}" in text for text in typed):
        return []
    script = config[SCRIPT]
    if script["arguments"].endswith(SEED_ARGUMENT):
        return [f"{stem(script)} has an option --seed, so each run passes its own seed with {SEED_ARGUMENT}"]
    if _is_told_its_seed(script):
        return []
    return [
        f"{stem(script)} has no option --seed, so it is not told the seed of its run. If it has another option for "
        "it, type this among its arguments, such as --random-state {seed}"
    ]


def checkpoint_note(config: Mapping[str, Any], typed: Sequence[str]) -> list[str]:
    """Return a note if an argument of the script names a checkpoint, so that `init_from` is set without being typed."""
    if not is_script(config) or not config["init_from"] or any(t.startswith("init_from=") for t in typed):
        return []
    return [
        f"the script starts from {config['init_from']}, so the content of this checkpoint identifies the runs"
    ]


def find(path: str, folder: Path | None = None) -> Path:
    """Return the path of the script `train.py` or `-m package.train`, relative to `folder` (default: the current one).

    Raises:
        ConfigError: The file does not exist.
    """
    folder = Path.cwd() if folder is None else folder
    module = MODULE.fullmatch(path.strip())
    if module is not None:
        return _find_module(module[1], folder)
    file = folder / Path(path).expanduser()
    if file.is_file():
        return file
    if file.is_dir():
        raise ConfigError(f"script={path} is a folder. To run a package, type script='-m {path.strip('/')}'")
    near = did_you_mean(file.name, [other.name for other in file.parent.glob("*.py")])
    hint = near or (
        f". To run a module, type script='-m {path}'" if _has_module(path, folder) else f" in {file.parent}"
    )
    raise ConfigError(f"script={path}: there is no such file{hint}")


def found(config: Mapping[str, Any]) -> Path:
    """Return the script of a run.

    Raises:
        ConfigError: The script is gone, or its code has changed since the run was planned.
    """
    script = config[SCRIPT]
    file = find(script["path"], Path(script["typed_in_dir"]))
    if _source(file, file.stat().st_mtime_ns).digest != script["sha256"]:
        raise ConfigError(
            f"{file} has changed since this run was planned. Type the command again to plan new runs"
        )
    return file


def is_module(script: Mapping[str, Any]) -> str | None:
    """Return `package.train` for `-m package.train`, and None for a file."""
    found = MODULE.fullmatch(script["path"].strip())
    return found[1] if found else None


def stem(script: Mapping[str, Any]) -> str:
    """Return `train` for train.py and for `-m package.train`. The names of runs and sweeps contain this text."""
    path = str(script["path"]).strip()
    module = MODULE.fullmatch(path)
    name = module[1].rpartition(".")[2] if module else Path(path).stem
    return re.sub(r"[^\w-]+", "_", name) or SCRIPT


def words(config: Mapping[str, Any], run_dir: Path, port: int | None = None) -> list[str]:
    """Return the list of arguments that the run passes to the script."""
    return [filled(word, config, run_dir, port) for word in typed_words(config)]


def typed_words(config: Mapping[str, Any]) -> list[str]:
    """Return the list of arguments with their placeholders, such as {seed}."""
    script = config[SCRIPT]
    style = _as_hydra if script["args_style"] == "hydra" else _as_flags
    of_args = [word for key, value in _leaves(script["args"]) for word in style(key, value)]
    return [*shlex.split(script["arguments"]), *of_args]


def filled(text: str, config: Mapping[str, Any], run_dir: Path, port: int | None = None) -> str:
    """Return `text` with the placeholders replaced, such as {seed}, and {{name}} as {name}."""
    values = {"seed": config["seed"], "run_dir": run_dir, "nproc": config["nproc"], "port": port}
    values["init_from"] = config.get("init_from")

    def replaced(match: re.Match) -> str:
        return f"{{{match[1]}}}" if match[1] else str(values.get(match[2], match[0]))

    return BRACES.sub(replaced, text)


def direction_of(name: str, declared: Mapping[str, str]) -> str | None:
    """Return min, max or share for a metric: as declared, or as is usual for its name. None if unknown."""
    if name in declared:
        return declared[name]
    words = re.split(r"[^A-Za-z0-9]+", name)
    ends = [words[-1], "_".join(words[-3:]), words[0]]
    if any(LESS_IS_BETTER.fullmatch(end) for end in ends):
        return "min"
    if any(MORE_IS_BETTER.fullmatch(end) for end in ends):
        return "max"
    return None


def judged_by(script: Mapping[str, Any]) -> str | None:
    """Return the metric that judges the runs, or None if it is unknown until the script has logged metrics."""
    return script["metric"] or next((name for name in script["metrics"] if name not in PLACES), None)


def with_number(pattern: str) -> str:
    """Return a metric's pattern with `{number}` replaced by a group that matches any number, nan and inf."""
    return pattern.replace("{number}", rf"({NUMBER}|[+-]?(?i:nan|inf(?:inity)?)\b)")


def reports_by_itself(script: Mapping[str, Any]) -> bool:
    """Return whether the script names cpdrun or a library whose trainer reports its metrics to cpdrun."""
    file = find(script["path"], Path(script["typed_in_dir"]))
    return _source(file, file.stat().st_mtime_ns).reports


def _leaves(args: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in args.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _as_flags(key: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{key}"]
    return [f"--{key}", *(map(str, value) if isinstance(value, list) else [str(value)])]


def _as_hydra(key: str, value: Any) -> list[str]:
    words = {None: "null", True: "true", False: "false"} if value is None or isinstance(value, bool) else {}
    text = words.get(value) if words else str(value).replace(" ", "") if isinstance(value, list) else value
    return [f"{key}={text}"]


def _check_words(config: Mapping[str, Any]) -> None:
    """Raise ConfigError if arguments cannot be split as a shell does, or contain unknown placeholders."""
    script = config[SCRIPT]
    for key in ("arguments", "launch_with"):
        try:
            shlex.split(script[key] or "")
        except ValueError as error:
            raise ConfigError(f"script.{key}={script[key]}: {error}") from None
    for key in ("arguments", "launch_with", "work_dir", *FILES):
        for match in BRACES.finditer(script[key] or ""):
            if (name := match[2]) and name not in PLACEHOLDERS:
                there = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
                raise ConfigError(
                    f"script.{key}: unknown placeholder {{{name}}}{did_you_mean(name, PLACEHOLDERS)}. "
                    f"There are {there}. To pass the text {{{name}}} itself, type {{{{{name}}}}}"
                )
    launcher = config["launcher"]
    if script["launch_with"] and launcher.get("nodes", 1) * launcher.get("tasks_per_node", 1) > 1:
        raise ConfigError(
            "script.launch_with starts all ranks on one node. Type launcher.nodes=1 launcher.tasks_per_node=1"
        )
    for key in FILES:
        place = script[key]
        if key == "tensorboard" and place is not None and find_spec("tensorboard") is None:
            raise ConfigError(
                "script.tensorboard needs a package that is not installed. Type pip install 'cpdrun[tensorboard]'"
            )
        if place is not None and "{run_dir}" not in place and "{run_dir}" not in script["work_dir"]:
            raise ConfigError(
                f"script.{key}={place}: simultaneous runs would write to the same place. Let the script write to the "
                f"run's folder: script_args='--OPTION {{run_dir}}/{place}' script.{key}={{run_dir}}/{place}, or "
                "script.work_dir={run_dir} if the script has no such option"
            )


def _check_metrics(script: Mapping[str, Any], source: "_Source") -> None:
    for name in dict.fromkeys([*script["metrics"], *filter(None, [script["metric"]])]):
        if name not in PLACES and direction_of(name, script["direction"]) is None:
            raise ConfigError(
                f"Is lower or higher better for {name!r}? Type script.direction.{name}=min or "
                f"script.direction.{name}=max"
            )
    decides, patterns = script["metric"], script["metrics"]
    has_other_source = source.reports or any(script[key] for key in FILES)
    if decides and patterns and decides not in patterns and not has_other_source:
        raise ConfigError(
            f"script.metric={decides} is not among script.metrics ({', '.join(patterns)}), and the script has no other "
            f"way to log it. Type script.metrics.{decides}='{decides} {{number}}'"
        )


@dataclass(frozen=True)
class _Source:
    """The properties of a script that are found by reading its text.

    Attributes:
        digest: The SHA-256 digest of the code without comments and blank lines. Changing these does not make a new run.
        takes_seed: Whether an argument parser in the script defines `--seed`.
        reports: Whether the script contains the name of cpdrun, or of a library whose trainer reports its metrics to
            cpdrun.
    """

    digest: str
    takes_seed: bool
    reports: bool


@cache
def _source(file: Path, _mtime_ns: int) -> _Source:
    """Return the properties of a script. The result is cached. Raises ConfigError if the script is not Python."""
    source = file.read_bytes()
    try:
        tree = ast.parse(source, str(file))
    except SyntaxError as error:
        raise ConfigError(f"{file}, line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not a Python file: {error}") from None
    takes_seed = any(
        isinstance(argument, ast.Constant) and argument.value == "--seed"
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for argument in call.args
    )
    reports = any(name.encode() in source for name in REPORTING)
    return _Source(hashlib.sha256(_code(source)).hexdigest(), takes_seed, reports)


def _code(source: bytes) -> bytes:
    """Return Python source without comments, trailing blanks and blank lines outside of strings."""
    lines = source.splitlines(keepends=True)
    blank = set[int]()
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        row, column = token.start
        if token.type == tokenize.COMMENT:
            line = lines[row - 1].decode("utf-8", "replace")
            lines[row - 1] = line[:column].rstrip().encode() + b"\n"
        if token.type in (tokenize.COMMENT, tokenize.NL) and not lines[row - 1].strip():
            blank.add(row - 1)
    return b"".join(line for number, line in enumerate(lines) if number not in blank)


def _find_module(name: str, folder: Path) -> Path:
    """Return the file that `python -m name` runs, without importing its packages. Raises ConfigError."""
    import sys

    places: Sequence[str] | None = [str(folder), *sys.path]
    spec = None
    parts = name.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), places) if places else None
        if spec is None:
            missing = ".".join(parts[: depth + 1])
            raise ConfigError(f"script='-m {name}': there is no module {missing!r} in {folder}")
        places = spec.submodule_search_locations
    if spec is not None and spec.submodule_search_locations:
        spec = PathFinder.find_spec(f"{name}.__main__", spec.submodule_search_locations)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise ConfigError(
            f"script='-m {name}': must be a Python module, or a package that contains __main__.py"
        )
    return Path(spec.origin)


def _has_module(path: str, folder: Path) -> bool:
    try:
        return bool(re.fullmatch(r"\w+(\.\w+)*", path)) and _find_module(path, folder).is_file()
    except ConfigError:
        return False
