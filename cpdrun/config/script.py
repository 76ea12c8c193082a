"""What stands behind `script=`: the short forms of its words, and what a plan finds out about the script.

Nothing here runs or imports a line of it.
"""

import ast
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cpdrun.config.errors import ConfigError, did_you_mean

SCRIPT = "script"
SHORT_FORMS = {SCRIPT: "script.path", "script_args": "script.arguments"}
# their values are text, commas, braces and all
AS_TYPED = tuple(
    f"script.{key}" for key in ("path", "arguments", "launch_with", "work_dir", "jsonl", "tensorboard")
)
OF_METRICS = (
    "script.metrics.",
    "script.direction.",
)  # a name behind them may hold a slash, as TensorBoard's do
OPEN = ("script.args", "script.metrics", "script.direction")  # hold whatever names one gives
MODULE = re.compile(r"-m\s+(\S+)")
PLACEHOLDERS = ("seed", "run_dir", "nproc", "port")
PLACES = ("epoch", "step")  # among metrics: how far the script is
DIRECTIONS = ("min", "max", "share")
LESS_IS_BETTER = re.compile(
    r"loss|perplexity|ppl|error|err|bpc|bpb|bits_per_byte|nll|rmse|mse|mae|wer|cer|fid", re.I
)
MORE_IS_BETTER = re.compile(
    r"accuracy|acc\d?|top_?[15]|f1|bleu|rouge\w*|iou|miou|map|auc|auroc|psnr|ssim|r2", re.I
)


def is_script(config: Mapping[str, Any]) -> bool:
    """Whether a run's config is that of a user's script."""
    return isinstance(config.get(SCRIPT), Mapping)


def has_launcher(config: Mapping[str, Any]) -> bool:
    """Whether another launcher starts the ranks of a script."""
    return is_script(config) and bool(config[SCRIPT]["launch_with"])


def is_of_script(text: str) -> bool:
    """Whether a word that was typed says that the runs are of a script."""
    key = text.lstrip("+~").split("=", 1)[0]
    return key in SHORT_FORMS or key.split(".")[0] == SCRIPT


def as_typed(text: str) -> tuple[str, str | None] | None:
    """Key and value of a word whose value is text, whatever it holds, with quotes around it or without; None for any
    other word."""
    key, equals, value = text.partition("=")
    key = SHORT_FORMS.get(key, key)
    if not equals or not (key in AS_TYPED or key.startswith(OF_METRICS)):
        return None
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" and value[0] not in value[1:-1]:
        value = value[1:-1]
    return key, None if value == "null" else value


def is_open(key: str) -> bool:
    return key.startswith(tuple(f"{section}." for section in OPEN))


def complete(config: dict[str, Any]) -> None:
    """Fill in what the config of a script's run, interpolations resolved, is to say of it: the digest of the file, and
    the folder in which it is started. Raises ConfigError where there is no such script, or it is no Python."""
    script = config[SCRIPT]
    if not script.get("path"):
        raise ConfigError("script.path must be given: script=FILE.py, or script='-m package.module'")
    script["typed_in_dir"] = script["typed_in_dir"] or str(Path.cwd())
    script["work_dir"] = script["work_dir"] or script["typed_in_dir"]
    file = find(script["path"], Path(script["typed_in_dir"]))
    digest = _digest(file, file.stat().st_mtime_ns)
    if script["sha256"] not in (None, digest):
        raise ConfigError(f"script.sha256={script['sha256']}: {file} has {digest}")
    script["sha256"] = digest
    _check_words(config)
    _check_metrics(script)


def find(path: str, folder: Path | None = None) -> Path:
    """The file of `train.py` or `-m package.train`, as seen from `folder` (or the current one). Raises ConfigError."""
    folder = Path.cwd() if folder is None else folder
    module = MODULE.fullmatch(path.strip())
    if module is not None:
        return _find_module(module[1], folder)
    file = folder / Path(path).expanduser()
    if file.is_file():
        return file
    if file.is_dir():
        raise ConfigError(f"script={path} is a folder; of a package type script='-m {path.strip('/')}'")
    near = did_you_mean(file.name, [other.name for other in file.parent.glob("*.py")])
    hint = near or (
        f"; a module is script='-m {path}'" if _has_module(path, folder) else f" in {file.parent}"
    )
    raise ConfigError(f"script={path}: there is no such file{hint}")


def found(config: Mapping[str, Any]) -> Path:
    """The script of a run, which must be as it was when the run was planned. Raises ConfigError where it is not."""
    script = config[SCRIPT]
    file = find(script["path"], Path(script["typed_in_dir"]))
    if hashlib.sha256(file.read_bytes()).hexdigest() != script["sha256"]:
        raise ConfigError(
            f"{file} has changed since this run was planned; type the command again, which plans others"
        )
    return file


def is_module(script: Mapping[str, Any]) -> str | None:
    """`package.train` of -m package.train; None of a file."""
    found = MODULE.fullmatch(script["path"].strip())
    return found[1] if found else None


def stem(script: Mapping[str, Any]) -> str:
    """`train` of train.py and of -m package.train: what a run and its sweep are called after."""
    path = str(script["path"]).strip()
    module = MODULE.fullmatch(path)
    name = module[1].rpartition(".")[2] if module else Path(path).stem
    return re.sub(r"[^\w-]+", "_", name) or SCRIPT


def words(config: Mapping[str, Any], run_dir: Path, port: int | None = None) -> list[str]:
    """The arguments of the run's script, each as the script gets it."""
    script = config[SCRIPT]
    given = shlex.split(script["arguments"])
    style = _as_hydra if script["args_style"] == "hydra" else _as_flags
    given += [word for key, value in _leaves(script["args"]) for word in style(key, value)]
    return [filled(word, config, run_dir, port) for word in given]


def filled(text: str, config: Mapping[str, Any], run_dir: Path, port: int | None = None) -> str:
    """`text` with {seed}, {run_dir}, {nproc} and {port} replaced; other braces stay."""
    values = {"seed": config["seed"], "run_dir": run_dir, "nproc": config["nproc"], "port": port}
    return re.sub(r"\{(" + "|".join(PLACEHOLDERS) + r")\}", lambda found: str(values[found[1]]), text)


def direction_of(name: str, declared: Mapping[str, str]) -> str | None:
    """min, max or share: as declared, or as the last words of a metric's name are commonly meant; None where neither
    says it."""
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
    """The metric that is said to judge the run; None where that is left to what it logs."""
    return script["metric"] or next((name for name in script["metrics"] if name not in PLACES), None)


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
    """That arguments can be split as a shell does, and name no placeholder that there is not."""
    script = config[SCRIPT]
    for key in ("arguments", "launch_with"):
        try:
            shlex.split(script[key] or "")
        except ValueError as error:
            raise ConfigError(f"script.{key}={script[key]}: {error}") from None
    launcher = config["launcher"]
    if script["launch_with"] and launcher.get("nodes", 1) * launcher.get("tasks_per_node", 1) > 1:
        raise ConfigError(
            "script.launch_with starts ranks on one node: launcher.nodes=1 launcher.tasks_per_node=1"
        )
    for key in ("jsonl", "tensorboard"):
        place = script[key]
        if key == "tensorboard" and place is not None and find_spec("tensorboard") is None:
            raise ConfigError("script.tensorboard needs a package: pip install 'cpdrun[tensorboard]'")
        if place is not None and "{run_dir}" not in place and "{run_dir}" not in script["work_dir"]:
            raise ConfigError(
                f"script.{key}={place}: runs at the same time would write to the same place; have it written into the "
                f"run's folder: script_args='--OPTION {{run_dir}}/{place}' script.{key}={{run_dir}}/{place}, or "
                "script.work_dir={run_dir} where its name is fixed"
            )


def _check_metrics(script: Mapping[str, Any]) -> None:
    for name, pattern in script["metrics"].items():
        try:
            groups = re.compile(pattern).groups if isinstance(pattern, str) else 0
        except re.error as error:
            raise ConfigError(
                f"script.metrics.{name}={pattern}: no pattern of Python's re: {error}"
            ) from None
        if groups != 1:
            raise ConfigError(
                f"script.metrics.{name}={pattern}: needs one group around the number, such as 'val loss ([0-9.]+)'"
            )
    for name, way in script["direction"].items():
        if way not in DIRECTIONS:
            raise ConfigError(f"script.direction.{name}={way}: must be one of {', '.join(DIRECTIONS)}")
    for name in dict.fromkeys([*script["metrics"], *filter(None, [script["metric"]])]):
        if name not in PLACES and direction_of(name, script["direction"]) is None:
            raise ConfigError(
                f"is less of {name!r} better, or more? Type script.direction.{name}=min or script.direction.{name}=max"
            )


@cache
def _digest(file: Path, _mtime_ns: int) -> str:
    """Of a script that Python can read; once for all runs of a sweep. Raises ConfigError."""
    source = file.read_bytes()
    try:
        ast.parse(source, str(file))
    except SyntaxError as error:
        raise ConfigError(f"{file}, line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is no Python: {error}") from None
    return hashlib.sha256(source).hexdigest()


def _find_module(name: str, folder: Path) -> Path:
    """The file that `python -m name` runs, found without importing the packages that hold it."""
    import sys

    places: Sequence[str] | None = [str(folder), *sys.path]
    spec = None
    parts = name.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), places) if places else None
        if spec is None:
            missing = ".".join(parts[: depth + 1])
            raise ConfigError(f"script='-m {name}': no module {missing!r} is found from {folder}")
        places = spec.submodule_search_locations
    if spec is not None and spec.submodule_search_locations:
        spec = PathFinder.find_spec(f"{name}.__main__", spec.submodule_search_locations)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise ConfigError(f"script='-m {name}': a package without __main__.py, or no Python source")
    return Path(spec.origin)


def _has_module(path: str, folder: Path) -> bool:
    try:
        return bool(re.fullmatch(r"\w+(\.\w+)*", path)) and _find_module(path, folder).is_file()
    except ConfigError:
        return False
