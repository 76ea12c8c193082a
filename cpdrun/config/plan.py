"""Plan the runs of a sweep.

A run is planned for each combination of the axes' values, except excluded runs and duplicates.
"""

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from custom_fp.formats.names import is_own
from custom_fp.formats.names import parse as parse_format

from cpdrun.config import script
from cpdrun.config.compose import EXPERIMENT, Composer, resolve
from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import hash_in, run_name
from cpdrun.config.initial_weights import find_initial_weights
from cpdrun.config.input_files import find_input_files
from cpdrun.config.overrides import (
    Typed,
    delete_key,
    flatten,
    get_key,
    has_key,
    set_key,
    typed_form,
)
from cpdrun.config.request import CASE, SCREEN, SEARCH, TUNE, Axes, Rule, SweepRequest, is_of_question, read
from cpdrun.config.schema import MOST_NAME_BYTES, check_type, validate
from cpdrun.config.short_forms import drop_removed_rules, expand_aps, expand_recipe, with_scaling_rule
from cpdrun.record import SweepDir

BASELINE = "fp32"
MANY = 5_000  # Planning more runs than this takes seconds.
MOST_PATH_BYTES = 4096  # the largest length of a path on Linux
LONGEST_FILE_BYTES = 96  # the largest length of a path inside a run's folder, including temporary files


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        name: The name of the run's folder. It depends only on the config, except that a folder which an earlier version
            created under another name keeps its name.
        config: The resolved config.
        overrides: The command-line overrides that produce the config.
    """

    name: str
    config: dict[str, Any]
    overrides: list[str]


# The settings of a search that a report also uses.
REPORTED = ("tolerance", "confidence", "metric")
BASELINE_KEY = "baseline"


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep, in the order of its axes.

    Attributes:
        directory: The sweep's folder.
        typed: The overrides as typed.
        axes: The values of each axis.
        runs: The runs. Added baselines come first.
        excluded: The description of each exclusion that matches runs, and their number.
        baselines: The number of added baselines: fp32 runs without APS, for excluded fp32 runs with APS.
        duplicates: The number of dropped runs with the same config as another.
        given: The keys and groups that were given a value on the command line, by an axis, by a case, or in the
            experiment's file.
        search: The config section `search` (`cpdrun search`).
        screen: The config section `screen` (`cpdrun search --allocate`).
        left_out: A note for each setting of the experiment that does not apply to the chosen groups.
    """

    directory: SweepDir
    typed: list[str]
    axes: Axes
    runs: list[PlannedRun]
    excluded: list[tuple[str, int]] = field(default_factory=list)
    baselines: int = 0
    duplicates: int = 0
    given: list[str] = field(default_factory=list)
    search: dict[str, Any] = field(default_factory=dict)
    screen: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def question(self) -> dict[str, Any]:
        """The given settings of `search` that a report also uses.

        They are stored in sweep.yaml, so that a report judges the runs with the same settings as a search.
        """
        values = {key: self.search.get(key) for key in REPORTED if f"{SEARCH}.{key}" in self.given}
        values["baseline_values"] = self._baseline()
        return {key: value for key, value in values.items() if value is not None}

    def _baseline(self) -> dict[str, Any] | None:
        """Return the values of search.baseline, or None if there are none.

        The result is also None if one of the keys is a group or is missing in the config. Records do not contain such
        keys, so a report could not find the baseline.
        """
        given = {
            key: value for key, value in (self.search.get(BASELINE_KEY) or {}).items() if self._gives(key)
        }
        config = self.runs[0].config
        is_said = all(has_key(config, key) and not isinstance(get_key(config, key), Mapping) for key in given)
        return given if given and is_said else None

    def _gives(self, key: str) -> bool:
        names = (f"{SEARCH}.{BASELINE_KEY}", f"{SEARCH}.{BASELINE_KEY}.{key}")
        return any(name in self.given for name in names)

    def describe(self) -> str:
        """Describe how the number of runs follows from the axes.

        Example: `format(6) x aps(2) x seed(3) = 36, less 3 (fp32 with APS) -> 33 runs`.
        """
        if not self.axes and not self.excluded:
            return "1 run"
        product = math.prod(len(values) for values in self.axes.values())
        grid = " x ".join(f"{key}({len(values)})" for key, values in self.axes.items())
        text = f"{grid} = {product}" if grid else "1 run"
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
    of_baseline: bool = False,
) -> Plan:
    """Plan the runs that the overrides describe, without writing anything.

    Args:
        texts: The overrides as typed.
        config_dir: A folder of the user's own yaml files, searched before conf/.
        imports: Whether modules that the configuration names may be imported. If not, the user's own formats are not
            checked.
        on_many: A function that is called with the number of runs if planning takes seconds.
        of_baseline: Whether these are the runs of a baseline. Ingredients that its recipe does not have are then
            ignored.

    Raises:
        ConfigError: The overrides or the experiment are wrong, or all runs are excluded.
    """
    with Composer(config_dir) as composer:
        request = read(composer, texts, of_baseline=of_baseline)
        if on_many is not None and request.count() > MANY:
            on_many(request.count())
        return _multiply(composer, request, imports, of_baseline)


def _multiply(composer: Composer, request: SweepRequest, imports: bool, of_baseline: bool) -> Plan:
    """Plan a run for each combination of the axes' values.

    If a run with fp32 and APS is excluded, the same run without APS is added as a baseline, unless it is excluded, too.
    """
    groups = composer.groups()
    runs: dict[str, PlannedRun] = {}
    baselines: dict[str, PlannedRun] = {}
    excluded = [0] * len(request.exclusions)
    duplicates = 0
    for point in request.points():
        config = _config(composer, groups, request, point, of_baseline)
        dropped = [i for i, rule in enumerate(request.exclusions) if _matches(rule, config, point)]
        if dropped:
            excluded[dropped[0]] += 1
            if config.get("format") != BASELINE or not config.get("aps"):
                continue
            point["aps"] = False
            config = _config(composer, groups, request, point, of_baseline)
            if any(_matches(rule, config, point) for rule in request.exclusions):
                continue
        run = _planned(config, request, point, imports)
        digest = hash_in(run.name)
        if dropped:
            baselines.setdefault(digest, run)
            continue
        duplicates += digest in runs
        runs.setdefault(digest, run)
    baselines = {digest: run for digest, run in baselines.items() if digest not in runs}
    if not (planned_by_hash := baselines | runs):
        raise ConfigError("the exclusions leave no run of this sweep")
    directory, planned = _in_folders(planned_by_hash)
    return Plan(
        directory=directory,
        typed=[t.text for t in request.typed],
        axes=request.axes,
        runs=planned,
        excluded=[(_described(rule), n) for rule, n in zip(request.exclusions, excluded, strict=True) if n],
        baselines=len(baselines),
        duplicates=duplicates,
        given=_given(composer, request),
        search=_question(composer, request, SEARCH),
        screen=_question(composer, request, SCREEN),
        left_out=composer.left_out(),
    )


def _in_folders(runs: Mapping[str, PlannedRun]) -> tuple[SweepDir, list[PlannedRun]]:
    """Return the sweep's folder and its runs. A run is named like an existing folder with the same hash, if any."""
    config = next(reversed(list(runs.values()))).config
    directory = SweepDir(Path(config["results_dir"]) / config["name"])
    folders = directory.names_by_hash()
    planned = [replace(run, name=folders.get(digest, run.name)) for digest, run in runs.items()]
    _check_path(directory.run(max((run.name for run in planned), key=len)).path)
    return directory, planned


def _check_path(folder: Path) -> None:
    """Raise ConfigError if the name or the path of a run's folder is too long for file systems."""
    name = folder.name
    size = len(os.fsencode(name))
    if size > MOST_NAME_BYTES:
        raise ConfigError(
            f"a run's folder would be named {name[:40]}... ({size} bytes), but file systems allow at most "
            f"{MOST_NAME_BYTES} bytes. Shorten the name of the model's class or of the format"
        )
    size = len(os.fsencode(folder.absolute()))
    if size > MOST_PATH_BYTES - LONGEST_FILE_BYTES:
        raise ConfigError(
            f"results_dir: the paths of runs would be {size} bytes long, which is too long. Choose a shorter "
            "results_dir"
        )


def _config(
    composer: Composer,
    groups: Mapping[str, list[str]],
    request: SweepRequest,
    point: Mapping[str, Any],
    of_baseline: bool,
) -> dict[str, Any]:
    """Return the unresolved config of one combination of the axes' values.

    First, groups are chosen, then single values are set. In both steps, the case comes first, then the command line,
    then the axes. Later values override earlier ones.
    """
    case = request.cases.get(point[CASE], {}) if CASE in point else {}
    of_case, of_point = ({k: str(v) for k, v in values.items() if k in groups} for values in (case, point))
    choices = {**of_case, **request.choices, **of_point}
    config = composer.compose(with_scaling_rule(composer, choices))
    config.pop("sweep", None)
    for key, value in case.items():
        if key not in groups:
            _set(config, key, value)
    for t in request.typed:
        if t.deletes and has_key(config, t.key):
            delete_key(config, t.key)
        elif t.values and not t.is_axis and t.key != EXPERIMENT and not _is_section_choice(config, t):
            _set(config, t.key, t.values[0])
    for key, value in point.items():
        if key not in groups:
            _set(config, key, value)
    config.pop(SEARCH, None)
    config.pop(SCREEN, None)
    expand_aps(config, composer, choices)
    expand_recipe(config, composer, choices, of_baseline=of_baseline)
    with contextlib.suppress(ValueError, KeyError):  # `validate` reports a wrong format
        if not is_own(config["format"]):
            # Records use one name for each format: e8m23 becomes fp32.
            config["format"] = parse_format(config["format"]).name
    return config


def _given(composer: Composer, request: SweepRequest) -> list[str]:
    """Return all keys and groups that the user or the experiment sets."""
    of_cases = [key for case in request.cases.values() for key in case]
    body = [] if request.experiment is None else composer.set_by(request.experiment)
    return [*(t.key for t in request.typed), *request.axes, *of_cases, *body]


def _question(composer: Composer, request: SweepRequest, block: str) -> dict[str, Any]:
    """Return the config section `search` or `screen`, after typed values have replaced its defaults.

    Raises:
        ConfigError: A typed key of the section has several values, or is deleted.
    """
    config = composer.compose(request.choices)
    for t in request.typed:
        if t.key.startswith(TUNE):
            _set_tuned(config, t)
        elif t.key.split(".")[0] == block:
            if t.is_axis or not t.values:
                raise ConfigError(f"{t.text!r} must have one value, because a {block} has no axes")
            set_key(config, t.key, t.values[0])
    return config.get(block) or {}


def _set_tuned(config: dict[str, Any], t: Typed) -> None:
    """Set the values of a tuned key in place, as in `search.tune.optim.lr=.05,.1`."""
    block = config[SEARCH]
    if isinstance(block["tune"] or {}, Mapping):
        key, tune = t.key.removeprefix(TUNE), dict(flatten(block["tune"] or {}))
        tune.pop(key, None)
        values = list(t.values) if t.is_axis else t.values[0] if t.values else []
        block["tune"] = tune if t.deletes else tune | {key: values}


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    """Set a key of the config in place.

    Raises:
        ConfigError: The value has another type than that in the yaml file.
    """
    if has_key(config, key):
        check_type(key, value, get_key(config, key))
    set_key(config, key, value)


def _is_section_choice(config: Mapping[str, Any], t: Typed) -> bool:
    """Return True if an override chooses a section, such as `model=convnet`."""
    return isinstance(config.get(t.key), Mapping) and isinstance(t.values[0], str)


def _planned(
    config: dict[str, Any], request: SweepRequest, point: Mapping[str, Any], imports: bool
) -> PlannedRun:
    """Resolve and validate a config, and return the planned run."""
    config["exp"] = request.experiment
    named = script.stem(config[script.SCRIPT]) if _names_a_script(config) else "adhoc"
    config["name"] = config.get("name") or request.experiment or named
    config = resolve(config)
    drop_removed_rules(config)
    validate(config, imports=imports)
    if script.is_script(config):
        script.complete(config)
    else:
        find_input_files(config)
    find_initial_weights(config)
    fixed = [
        t.text
        for t in request.typed
        if not (t.is_axis or t.key == CASE or t.key in point or is_of_question(t.key))
    ]
    overrides = [*fixed, *(f"{key}={typed_form(value)}" for key, value in point.items())]
    return PlannedRun(run_name(config), config, overrides)


def _names_a_script(config: Mapping[str, Any]) -> bool:
    return script.is_script(config) and bool(config[script.SCRIPT].get("path"))


def _matches(rule: Rule, config: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    """Return True if a run has all values of an exclusion. The values are in its config or on the axes."""
    values = {**point, **dict(flatten(config))}
    return all(key in values and values[key] == value for key, value in rule.items())


def _described(rule: Rule) -> str:
    """Return a description of an exclusion. Example: `fp32 with APS` for {format: fp32, aps: true}."""
    words = []
    for key, value in rule.items():
        if key == "aps":
            words.append("with APS" if value else "without APS")
        else:
            words.append(str(value) if key == "format" else f"{key}={typed_form(value)}")
    return " ".join(words)
