"""Planning of the runs of a sweep.

A run is planned for each combination of the axes' values. Runs that match an exclusion are dropped, and so are runs
with the same config as another run. `request.py` reads and checks the request.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from custom_fp.formats.names import is_own
from custom_fp.formats.names import parse as parse_format

from cpdrun.config import recipe, script
from cpdrun.config.compose import EXPERIMENT, Composer, resolve
from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import hash_in, run_name
from cpdrun.config.keys import delete_key, flatten, get_key, has_key, set_key
from cpdrun.config.overrides import Typed, typed_form
from cpdrun.config.paths import check_path
from cpdrun.config.scaling import spell_out, with_short_form
from cpdrun.config.schema import check_kind, validate
from cpdrun.record import SweepDir
from cpdrun.sweep.request import CASE, SCREEN, SEARCH, TUNE, Axes, Rule, SweepRequest, is_of_question, read

BASELINE = "fp32"
# Planning more runs than this takes seconds.
MANY = 5_000


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        name: The name of the run's folder. It depends only on the config, unless a former version of cpdrun has already
            created the folder under another name.
        config: The resolved config.
        overrides: The overrides that produce the config when typed.
    """

    name: str
    config: dict[str, Any]
    overrides: list[str]


# Settings of a search that a report uses, too.
REPORTED = ("tolerance", "confidence", "metric")
BASELINE_KEY = "baseline"


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep, in the order of its axes.

    Attributes:
        directory: The sweep's folder.
        typed: The overrides as typed.
        axes: The values of each axis, keyed by axis.
        runs: The runs. Added baselines come first.
        excluded: For each exclusion that matches any runs, its description and the number of these runs.
        baselines: The number of fp32 runs without APS that were added in place of excluded fp32 runs with APS, so that
            the other runs have a baseline.
        duplicates: The number of runs that were dropped because another run has the same config.
        given: The keys and groups that were given a value on the command line, by an axis, by a case, or in
            the experiment's file.
        search: The section `search` of the config, with the settings of `cpdrun search`.
        screen: The section `screen` of the config, with the settings of `cpdrun search --allocate`.
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
        """The settings of `search` that were given a value and that a report uses, too.

        They are stored in sweep.yaml, so that a search and a report give the same answer for these runs.
        """
        values = {key: self.search.get(key) for key in REPORTED if f"{SEARCH}.{key}" in self.given}
        values["baseline_values"] = self._baseline()
        return {key: value for key, value in values.items() if value is not None}

    def _baseline(self) -> dict[str, Any] | None:
        """Return the values of search.baseline that were given, or None if there are none.

        If one of the keys is a group or is not in the config, return None as well. A report could not find the baseline
        by such a key, because a run's record does not contain the choice of a group as it was typed.
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
        """Return how the number of runs results from the axes.

        An example is `format(6) x aps(2) x seed(3) = 36, less 3 (fp32 with APS) -> 33 runs`.
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
    """Return the plan of the runs that the overrides ask for. Nothing is written to disk.

    Args:
        texts: The overrides as typed.
        config_dir: A folder of the user's own yaml files, searched before conf/.
        imports: Whether modules that the configuration names may be imported. Without imports, the user's own formats
            are not checked.
        on_many: A function that is called with the number of runs if planning them takes seconds.
        of_baseline: Whether the runs are those of a baseline. If so, ingredients that the baseline's recipe does not
            have are ignored.

    Raises:
        ConfigError: The overrides or the experiment are wrong, or no run is left.
    """
    with Composer(config_dir) as composer:
        request = read(composer, texts, of_baseline=of_baseline)
        if on_many is not None and request.count() > MANY:
            on_many(request.count())
        return _multiply(composer, request, imports, of_baseline)


def _multiply(composer: Composer, request: SweepRequest, imports: bool, of_baseline: bool) -> Plan:
    """Plan a run for each combination of the axes' values, and return the plan.

    Excluded runs and duplicates are dropped. If an excluded run has the format fp32 and APS, the same run without APS
    is added as a baseline, unless this run is excluded, too.
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
    """Return the sweep's folder and its runs.

    If a folder with the hash of a run already exists, the run gets the name of this folder.
    """
    config = next(reversed(list(runs.values()))).config
    directory = SweepDir(Path(config["results_dir"]) / config["name"])
    folders = directory.names_by_hash()
    planned = [replace(run, name=folders.get(digest, run.name)) for digest, run in runs.items()]
    check_path(directory.run(max((run.name for run in planned), key=len)).path)
    return directory, planned


def _config(
    composer: Composer,
    groups: Mapping[str, list[str]],
    request: SweepRequest,
    point: Mapping[str, Any],
    of_baseline: bool,
) -> dict[str, Any]:
    """Return the unresolved config of one point, which is one combination of the axes' values.

    First, the choices of groups are applied to the defaults and the experiment. Then single values are set. In both
    steps, the case comes first, then the command line, and then the point. Later values override earlier ones.
    """
    case = request.cases.get(point[CASE], {}) if CASE in point else {}
    of_case, of_point = ({k: str(v) for k, v in values.items() if k in groups} for values in (case, point))
    choices = {**of_case, **request.choices, **of_point}
    config = composer.compose(with_short_form(composer, choices))
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
    spell_out(config, composer, choices)
    recipe.spell_out(config, composer, choices, of_baseline=of_baseline)
    with contextlib.suppress(ValueError, KeyError):  # `validate` reports what is wrong with the format
        if not is_own(config["format"]):
            # Records have one name for each format. For example, e8m23 is fp32.
            config["format"] = parse_format(config["format"]).name
    return config


def _given(composer: Composer, request: SweepRequest) -> list[str]:
    """Return every key and group that the command line, an axis, a case, or the experiment's file sets."""
    of_cases = [key for case in request.cases.values() for key in case]
    body = [] if request.experiment is None else composer.set_by(request.experiment)
    return [*(t.key for t in request.typed), *request.axes, *of_cases, *body]


def _question(composer: Composer, request: SweepRequest, block: str) -> dict[str, Any]:
    """Return the block `search:` or `screen:` of the config, with the values typed on the command line.

    The configs of the runs do not contain this block, because it does not affect training.

    Raises:
        ConfigError: A key of the block has several values, or none.
    """
    config = composer.compose(request.choices)
    for t in request.typed:
        if t.key.startswith(TUNE):
            _set_tuned(config, t)
        elif t.key.split(".")[0] == block:
            if t.is_axis or not t.values:
                raise ConfigError(f"{t.text!r}: a {block} has one value of each of its keys")
            set_key(config, t.key, t.values[0])
    return config.get(block) or {}


def _set_tuned(config: dict[str, Any], t: Typed) -> None:
    """Replace, in place, the values of a tuned key by the typed values, as in `search.tune.optim.lr=.05,.1`."""
    block = config[SEARCH]
    if isinstance(block["tune"] or {}, Mapping):
        key, tune = t.key.removeprefix(TUNE), dict(flatten(block["tune"] or {}))
        tune.pop(key, None)
        values = list(t.values) if t.is_axis else t.values[0] if t.values else []
        block["tune"] = tune if t.deletes else tune | {key: values}


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    """Set a key of the config in place.

    Raises:
        ConfigError: The value has another type than the value in the yaml file.
    """
    if has_key(config, key):
        check_kind(key, value, get_key(config, key))
    set_key(config, key, value)


def _is_section_choice(config: Mapping[str, Any], t: Typed) -> bool:
    """Return whether an override chooses a section, such as `model=convnet`.

    The config already contains such a choice. In contrast, `format=e4m3` sets a value.
    """
    return isinstance(config.get(t.key), Mapping) and isinstance(t.values[0], str)


def _planned(
    config: dict[str, Any], request: SweepRequest, point: Mapping[str, Any], imports: bool
) -> PlannedRun:
    """Resolve and validate the config of one point, and return the run with its name and overrides."""
    config["exp"] = request.experiment
    named = script.stem(config[script.SCRIPT]) if _names_a_script(config) else "adhoc"
    config["name"] = config.get("name") or request.experiment or named
    config = resolve(config)
    validate(config, imports=imports)
    if script.is_script(config):
        script.complete(config)
    elif config["init_from"] is not None:
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
    """Return whether a run has all values of an exclusion, either in its config or as values on the axes."""
    values = {**point, **dict(flatten(config))}
    return all(key in values and values[key] == value for key, value in rule.items())


def _described(rule: Rule) -> str:
    """Return a description of an exclusion, such as `fp32 with APS` for {format: fp32, aps: true}."""
    words = []
    for key, value in rule.items():
        if key == "aps":
            words.append("with APS" if value else "without APS")
        else:
            words.append(str(value) if key == "format" else f"{key}={typed_form(value)}")
    return " ".join(words)


def find_initial_weights(config: dict[str, Any]) -> None:
    """Make `init_from` an absolute path, and set `init_sha256` to the SHA-256 digest of the file's contents.

    The path must be absolute because the run may be started in another folder. `config` is changed in place.

    Raises:
        ConfigError: The file cannot be read, or the config has another digest.
    """
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
    """Return the SHA-256 digest of a file. The result is cached, so all runs of a sweep read the file once.

    Size and modification time are part of the cache key, so that a file that has changed is read again.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
