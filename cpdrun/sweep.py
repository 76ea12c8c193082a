"""From an experiment and what was typed to the list of runs.

Axes are multiplied out, exclusions and runs of the same content dropped.

sweep:
  format: [fp32, e4m3]         # an axis: any key of the config, or a group such as model
  sync.kahan: [false, true]
  seed: [0, 1, 2]
  exclude:
    - {format: fp32, aps: true}  # drops the runs that have all of these values

Where axes multiply to far more than is asked, `cases` names combinations, each with the values that it sets; they
are one axis, `case`, beside the others. A report compares them with the case named fp32.

sweep:
  cases:
    fp32: {precision: fp32}
    pure: {precision: pure_fp16}
    pure, Kahan: {precision: pure_fp16, precision.kahan_weights: true}
  seed: [0, 1, 2]
"""

import contextlib
import hashlib
import itertools
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from custom_fp.formats.names import is_own, is_scaled
from custom_fp.formats.names import parse as parse_format
from custom_fp.formats.scalar import ALIASES

from cpdrun import __version__
from cpdrun.config.compose import Composer, resolve
from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.identity import run_name
from cpdrun.config.keys import delete_key, flatten, get_key, has_key, set_key
from cpdrun.config.overrides import MOST_VALUES, Typed, parse, typed_form
from cpdrun.config.paths import check_path
from cpdrun.config.schema import check_kind, validate
from cpdrun.record import SweepDir, git_commit, locked, read_manifest, write_text

Axes = dict[str, list[Any]]
Cases = Mapping[str, Mapping[str, Any]]  # by name, what each sets

CASE = "case"
BASELINE = "fp32"
MANY = 5_000  # runs that take seconds to plan


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: its resolved config, and the overrides that give it when typed."""

    name: str
    config: dict[str, Any]
    overrides: list[str]


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep, in the order of its axes."""

    directory: SweepDir
    typed: list[str]
    axes: Axes
    runs: list[PlannedRun]
    excluded: list[tuple[str, int]] = field(default_factory=list)  # (description, number of runs)
    baselines: int = (
        0  # runs of fp32 without APS in place of excluded ones: without, nothing could be compared
    )
    duplicates: int = 0

    def describe(self) -> str:
        """`format(6) x aps(2) x seed(3) = 36, less 3 (fp32 with APS) -> 33 runs`."""
        if not self.axes:
            return "1 run"
        product = math.prod(len(values) for values in self.axes.values())
        text = " x ".join(f"{key}({len(values)})" for key, values in self.axes.items()) + f" = {product}"
        for what, count in self.excluded:
            text += f", less {count} ({what})"
        if self.baselines:
            text += f", plus {self.baselines} ({BASELINE} without APS, the baseline)"
        if self.duplicates:
            text += f", less {self.duplicates} of the same content"
        return f"{text} -> {len(self.runs)} run{'s' if len(self.runs) != 1 else ''}"


def plan(
    texts: Sequence[str],
    config_dir: Path | None = None,
    *,
    imports: bool = True,
    on_many: Callable[[int], None] | None = None,
) -> Plan:
    """The runs that these overrides ask for. Raises ConfigError; touches nothing on disk. Without `imports` no module
    that the configuration names is run, and what a format of the user's own is stays open. `on_many` is told how many
    there will be where that takes seconds."""
    with Composer(config_dir) as composer:
        groups = composer.groups()
        typed = parse(texts, composer.loader)
        choices = _group_choices(typed, groups)
        base = composer.compose(choices)
        for t in typed:
            _require_known(t, base, groups)
        cases = _cases(base.get("sweep"))
        axes, exclusions = _axes(base.get("sweep") or {}, typed, cases)
        for key, values in axes.items():
            if str(key).endswith("_dir") and len(values) > 1:
                raise ConfigError(
                    f"{key} cannot be an axis: where files lie is no part of what a run is, and these would be one; "
                    f"make a sweep of each: name=NAME {key}={values[0]}"
                )
        known = {*groups, *(t.key for t in typed if t.adds)}
        places = {"sweep": axes, "sweep.exclude": itertools.chain(*exclusions)}
        for place, keys in (places | {f"sweep.cases.{name}": case for name, case in cases.items()}).items():
            for key in keys:
                if not isinstance(key, str):
                    raise ConfigError(f"{place}: {key!r} is no key; a key is text")
                if key not in known and not has_key(base, key):
                    raise ConfigError(
                        f"{place}: unknown key {key!r}{did_you_mean(key, _known(base, groups))}"
                    )
        product = _count(axes)
        if on_many is not None and product > MANY:
            on_many(product)
        return _multiply(composer, texts, typed, choices, cases, axes, exclusions, imports)


def write_manifest(sweep: Plan) -> None:
    """sweep.yaml: what was asked for. One that asks for all of it already is left as it is, and runs that another
    command has made in the same folder stay listed. Raises OSError where the folder cannot be written, and ConfigError
    for a sweep.yaml that is not ours to replace."""
    sweep.directory.path.mkdir(parents=True, exist_ok=True)
    with locked(sweep.directory.lock):  # two commands typed at once keep each other's runs
        _add_to_manifest(sweep)


def _add_to_manifest(sweep: Plan) -> None:
    names = [run.name for run in sweep.runs]
    before = listed(sweep.directory)
    if names and set(names) <= set(before):
        return
    made = [name for name in before if name not in names and sweep.directory.run(name).path.exists()]
    manifest = {
        "sweep": sweep.directory.name,
        "overrides": list(sweep.typed),
        "axes": sweep.axes,
        "runs": [*made, *names],
        "git_commit": git_commit(),
        "versions": {"cpdrun": __version__, "python": platform.python_version(), "torch": version("torch")},
    }
    write_text(sweep.directory.manifest, yaml.safe_dump(manifest, sort_keys=False))


def listed(directory: SweepDir) -> list[str]:
    """The runs of the folder's sweep.yaml; none where there is no such file, or nothing in it. Raises ConfigError for
    one that cpdrun did not write."""
    path = directory.manifest
    try:
        manifest = read_manifest(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        manifest = "no yaml"
    if manifest is None:
        return []
    runs = manifest.get("runs") if isinstance(manifest, Mapping) else None
    if not isinstance(runs, list):
        raise ConfigError(f"{path} is not cpdrun's: move it away, or choose another folder with name=NAME")
    return [str(name) for name in runs]


def _group_choices(typed: list[Typed], groups: Mapping[str, list[str]]) -> dict[str, str]:
    """The single group choices typed; axes over groups come later."""
    choices = {}
    for t in typed:
        if t.key in groups and t.deletes:
            raise ConfigError(f"cannot leave out {t.key!r}; choose one of {', '.join(groups[t.key])}")
        if t.key == "exp" and t.is_axis:
            raise ConfigError("one experiment a sweep: exp=NAME; compare sweeps with `cpdrun report A B`")
        if t.key in groups and not t.is_axis:
            choices[t.key] = str(t.values[0])
    return choices


def _known(base: Mapping[str, Any], groups: Mapping[str, list[str]]) -> list[str]:
    return [*(key for key, _ in flatten(base) if not key.startswith("sweep")), *groups]


def _require_known(t: Typed, base: Mapping[str, Any], groups: Mapping[str, list[str]]) -> None:
    if t.adds or t.key in groups or has_key(base, t.key):
        return
    known = _known(base, groups)
    section = t.key.split(".")[0]
    near = did_you_mean(t.key, known)
    if not near and section in groups and "." in t.key:
        near = f"; write +{t.text} to hand it to your own class"
    raise ConfigError(f"unknown key {t.key!r}{near}")


def _cases(block: Any) -> Cases:
    """The experiment's named cases, if it has any."""
    cases = block.get("cases") or {} if isinstance(block, Mapping) else {}
    if not isinstance(cases, Mapping) or not all(isinstance(case, Mapping) for case in cases.values()):
        raise ConfigError("sweep.cases must map names to values, such as pure: {precision: pure_fp16}")
    return {str(name): case for name, case in cases.items()}


def _axes(block: Any, typed: list[Typed], cases: Cases) -> tuple[Axes, list[dict[str, Any]]]:
    """The experiment's axes with those typed in their place or after them, and its exclusions."""
    if not isinstance(block, Mapping):
        raise ConfigError("sweep: must hold axes, such as `seed: [0, 1, 2]`")
    axes: Axes = {}
    exclusions: list[dict[str, Any]] = []
    for key, value in block.items():
        if key == "cases":
            axes |= {CASE: list(cases)} if cases else {}
            continue
        if key == "exclude":
            exclusions = value
        elif isinstance(value, list) and value:
            axes[key] = value
        else:
            raise ConfigError(f"sweep.{key} must be a list of at least one value, not {value!r}")
    if not isinstance(exclusions, list) or not all(isinstance(item, Mapping) and item for item in exclusions):
        raise ConfigError("sweep.exclude must be a list of mappings, such as - {format: fp32, aps: true}")
    for t in typed:
        if t.is_axis:
            if not t.values:
                raise ConfigError(f"{t.text!r} names no value: the axis is empty")
            axes[t.key] = list(t.values)
        elif t.key in axes:
            axes.pop(t.key)
        if t.key == CASE:
            _choose_cases(axes, t, cases)
    return axes, exclusions


def _choose_cases(axes: Axes, t: Typed, cases: Cases) -> None:
    """`case=a,b` runs some of the experiment's cases; one or several, they stay an axis."""
    names = [value if isinstance(value, str) else typed_form(value) for value in t.values]
    for name in names:
        if name not in cases:
            there = f"; there are: {', '.join(cases)}" if cases else ": the experiment names no cases"
            raise ConfigError(f"unknown case {name!r}{did_you_mean(name, cases)}{there}")
    axes[CASE] = names


def _multiply(
    composer: Composer,
    texts: Sequence[str],
    typed: list[Typed],
    choices: Mapping[str, str],
    cases: Cases,
    axes: Axes,
    exclusions: list[dict[str, Any]],
    imports: bool,
) -> Plan:
    groups = composer.groups()
    runs: dict[str, PlannedRun] = {}
    baselines: dict[str, PlannedRun] = {}
    excluded = [0] * len(exclusions)
    duplicates = 0
    fixed = [t for t in typed if not t.is_axis and t.key != CASE]
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        case = cases.get(point.get(CASE), {})
        chosen = [{k: str(v) for k, v in values.items() if k in groups} for values in (case, point)]
        config = composer.compose({**chosen[0], **choices, **chosen[1]})
        for key, value in case.items():
            if key not in groups:
                _set(config, key, value)
        _apply(config, typed, {k: v for k, v in point.items() if k not in groups})
        dropped = [i for i, rule in enumerate(exclusions) if _matches(rule, config, point)]
        if dropped:
            excluded[dropped[0]] += 1
            if config.get("format") != BASELINE or not config.get("aps"):
                continue
            config["aps"] = point["aps"] = False
            if any(_matches(rule, config, point) for rule in exclusions):
                continue
        overrides = [t.text for t in fixed if t.key not in point]
        overrides += [f"{k}={typed_form(v)}" for k, v in point.items()]
        run = _planned(config, choices.get("exp"), overrides, imports)
        if dropped:
            baselines.setdefault(run.name, run)
            continue
        duplicates += run.name in runs
        runs.setdefault(run.name, run)
    if not runs:
        raise ConfigError("the exclusions leave no run of this sweep")
    baselines = {name: run for name, run in baselines.items() if name not in runs}
    some = next(iter(runs.values())).config
    directory = SweepDir(Path(some["results_dir"]) / some["name"])
    check_path(directory.run(max((*baselines, *runs), key=len)).path)
    return Plan(
        directory=directory,
        typed=list(texts),
        axes=axes,
        runs=[*baselines.values(), *runs.values()],
        excluded=[(_described(rule), n) for rule, n in zip(exclusions, excluded, strict=True) if n],
        baselines=len(baselines),
        duplicates=duplicates,
    )


def _count(axes: Axes) -> int:
    """How many points the axes have. Raises ConfigError for more than can be."""
    product = math.prod(len(values) for values in axes.values())
    if product > MOST_VALUES:
        grid = " x ".join(f"{key}({len(values):,})" for key, values in axes.items())
        raise ConfigError(f"{grid} = {product:,} runs; one sweep has at most {MOST_VALUES:,}")
    return product


def _apply(config: dict[str, Any], typed: list[Typed], point: Mapping[str, Any]) -> None:
    config.pop("sweep", None)
    for t in typed:
        if t.deletes and has_key(config, t.key):
            delete_key(config, t.key)
        elif t.values and not t.is_axis and t.key != "exp" and not _is_section_choice(config, t):
            _set(config, t.key, t.values[0])
    for key, value in point.items():
        _set(config, key, value)
    with contextlib.suppress(ValueError, KeyError):  # validate says what is wrong with it
        config["format"] = _one_name(config["format"])


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    """Raises ConfigError for a value of another kind than the yaml's."""
    if has_key(config, key):
        check_kind(key, value, get_key(config, key))
    set_key(config, key, value)


def _is_section_choice(config: Mapping[str, Any], t: Typed) -> bool:
    """`model=convnet` chose a group and is composed already; `format=e4m3` sets a value."""
    return isinstance(config.get(t.key), Mapping) and isinstance(t.values[0], str)


def _planned(config: dict[str, Any], exp: str | None, overrides: list[str], imports: bool) -> PlannedRun:
    config["exp"] = exp
    config["name"] = config.get("name") or exp or "adhoc"
    config = resolve(config)
    validate(config, imports=imports)
    if config["init_from"] is not None:
        _find_initial_weights(config)
    return PlannedRun(run_name(config), config, overrides)


def _find_initial_weights(config: dict[str, Any]) -> None:
    """init_from becomes absolute, for a run may be started elsewhere, and init_sha256 the digest of its contents."""
    path = Path(config["init_from"]).expanduser().absolute()
    try:
        found = path.stat()
        digest = _sha256(path, found.st_size, found.st_mtime_ns)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"init_from={config['init_from']}: {path} cannot be read: {reason}") from None
    if config["init_sha256"] not in (None, digest):
        raise ConfigError(f"init_sha256={config['init_sha256']}: {path} has {digest}")
    config["init_from"], config["init_sha256"] = str(path), digest


@cache
def _sha256(path: Path, _size: int, _mtime_ns: int) -> str:
    """Once for all runs of a sweep; size and time are the file's, so that one that has changed is read again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _one_name(number_format: str) -> str:
    """The same format has one name in all records: its alias where it has one, so e8m23 is fp32."""
    if is_own(number_format):
        return number_format
    if is_scaled(number_format):
        return parse_format(number_format).name
    name = parse_format(number_format).name
    return {long: alias for alias, long in ALIASES.items()}.get(name, name)


def _matches(rule: Mapping[str, Any], config: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    values = {**point, **dict(flatten(config))}
    return all(key in values and values[key] == value for key, value in rule.items())


def _described(rule: Mapping[str, Any]) -> str:
    """`fp32 with APS` for {format: fp32, aps: true}."""
    words = []
    for key, value in rule.items():
        if key == "aps":
            words.append("with APS" if value else "without APS")
        else:
            words.append(str(value) if key == "format" else f"{key}={typed_form(value)}")
    return " ".join(words)
