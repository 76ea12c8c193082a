"""From an experiment and what was typed to the list of runs: axes are multiplied out, exclusions and runs of the same
content dropped. What may be asked for, and how it is written, stands in asked.py."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from custom_fp.formats.names import is_own
from custom_fp.formats.names import parse as parse_format

from cpdrun.config import recipe, script
from cpdrun.config.compose import EXPERIMENT, Composer, resolve
from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import run_name
from cpdrun.config.keys import delete_key, flatten, get_key, has_key, set_key
from cpdrun.config.overrides import Typed, typed_form
from cpdrun.config.paths import check_path
from cpdrun.config.scaling import spell_out, with_short_form
from cpdrun.config.schema import check_kind, validate
from cpdrun.record import SweepDir
from cpdrun.sweep.asked import CASE, SCREEN, SEARCH, TUNE, Asked, Axes, Rule, is_of_question, read
from cpdrun.sweep.initial_weights import find_initial_weights

BASELINE = "fp32"
MANY = 5_000  # runs that take seconds to plan


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: its resolved config, and the overrides that give it when typed."""

    name: str
    config: dict[str, Any]
    overrides: list[str]


REPORTED = ("tolerance", "confidence", "metric")  # of what a search is asked
BASELINE_KEY = "baseline"


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep, in the order of its axes."""

    directory: SweepDir
    typed: list[str]
    axes: Axes
    runs: list[PlannedRun]
    excluded: list[tuple[str, int]] = field(default_factory=list)  # (description, number of runs)
    baselines: int = 0  # fp32 without APS in place of excluded runs: without, nothing could be compared
    duplicates: int = 0
    given: list[str] = field(default_factory=list)  # keys and groups that were given a value, wherever
    search: dict[str, Any] = field(default_factory=dict)  # the block of that name: what it is asked
    screen: dict[str, Any] = field(default_factory=dict)  # what a screen is asked
    left_out: list[str] = field(default_factory=list)  # of the experiment, for choices that were not made

    @property
    def question(self) -> dict[str, Any]:
        """What was given of `search` that a report goes by as well, so that both say the same of these runs."""
        values = {key: self.search.get(key) for key in REPORTED if f"{SEARCH}.{key}" in self.given}
        values["baseline_values"] = self._baseline()
        return {key: value for key, value in values.items() if value is not None}

    def _baseline(self) -> dict[str, Any] | None:
        """What was given of search.baseline, if a run's record says all of it as it is typed: no choice of a group."""
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
        """`format(6) x aps(2) x seed(3) = 36, less 3 (fp32 with APS) -> 33 runs`."""
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
    """The runs that these overrides ask for. Raises ConfigError; touches nothing on disk. Without `imports` no module
    that the configuration names is run, and what a format of the user's own is stays open. `on_many` is told how many
    there will be where that takes seconds. Runs `of_baseline` are as these overrides say but for ingredients that their
    recipe does not have."""
    with Composer(config_dir) as composer:
        asked = read(composer, texts, of_baseline=of_baseline)
        if on_many is not None and asked.count() > MANY:
            on_many(asked.count())
        return _multiply(composer, asked, imports, of_baseline)


def _multiply(composer: Composer, asked: Asked, imports: bool, of_baseline: bool) -> Plan:
    groups = composer.groups()
    runs: dict[str, PlannedRun] = {}
    baselines: dict[str, PlannedRun] = {}
    excluded = [0] * len(asked.exclusions)
    duplicates = 0
    for point in asked.points():
        config = _config(composer, groups, asked, point, of_baseline)
        dropped = [i for i, rule in enumerate(asked.exclusions) if _matches(rule, config, point)]
        if dropped:
            excluded[dropped[0]] += 1
            if config.get("format") != BASELINE or not config.get("aps"):
                continue
            point["aps"] = False
            config = _config(composer, groups, asked, point, of_baseline)
            if any(_matches(rule, config, point) for rule in asked.exclusions):
                continue
        run = _planned(config, asked, point, imports)
        if dropped:
            baselines.setdefault(run.name, run)
            continue
        duplicates += run.name in runs
        runs.setdefault(run.name, run)
    baselines = {name: run for name, run in baselines.items() if name not in runs}
    planned = [*baselines.values(), *runs.values()]
    if not planned:
        raise ConfigError("the exclusions leave no run of this sweep")
    some = planned[-1].config
    directory = SweepDir(Path(some["results_dir"]) / some["name"])
    check_path(directory.run(max((run.name for run in planned), key=len)).path)
    return Plan(
        directory=directory,
        typed=[t.text for t in asked.typed],
        axes=asked.axes,
        runs=planned,
        excluded=[(_described(rule), n) for rule, n in zip(asked.exclusions, excluded, strict=True) if n],
        baselines=len(baselines),
        duplicates=duplicates,
        given=_given(composer, asked),
        search=_question(composer, asked, SEARCH),
        screen=_question(composer, asked, SCREEN),
        left_out=composer.left_out(),
    )


def _config(
    composer: Composer,
    groups: Mapping[str, list[str]],
    asked: Asked,
    point: Mapping[str, Any],
    of_baseline: bool,
) -> dict[str, Any]:
    """The defaults and the experiment under the choices of the case, of the words typed and of the point, in this
    order; then the single values in the same order."""
    case = asked.cases.get(point[CASE], {}) if CASE in point else {}
    of_case, of_point = ({k: str(v) for k, v in values.items() if k in groups} for values in (case, point))
    choices = {**of_case, **asked.choices, **of_point}
    config = composer.compose(with_short_form(composer, choices))
    config.pop("sweep", None)
    for key, value in case.items():
        if key not in groups:
            _set(config, key, value)
    for t in asked.typed:
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
    with contextlib.suppress(ValueError, KeyError):  # validate says what is wrong with it
        if not is_own(config["format"]):
            config["format"] = parse_format(config["format"]).name  # one name in all records: e8m23 is fp32
    return config


def _given(composer: Composer, asked: Asked) -> list[str]:
    """Return every key and group that the command line, an axis, a case or the experiment's file sets."""
    of_cases = [key for case in asked.cases.values() for key in case]
    body = [] if asked.experiment is None else composer.set_by(asked.experiment)
    return [*(t.key for t in asked.typed), *asked.axes, *of_cases, *body]


def _question(composer: Composer, asked: Asked, block: str) -> dict[str, Any]:
    """Return the block `search:` or `screen:` of the config, with the values typed on the command line.

    The configs of the runs do not contain this block, because it does not affect training.

    Raises:
        ConfigError: A key of the block has several values, or none.
    """
    config = composer.compose(asked.choices)
    for t in asked.typed:
        if t.key.startswith(TUNE):
            _set_tuned(config, t)
        elif t.key.split(".")[0] == block:
            if t.is_axis or not t.values:
                raise ConfigError(f"{t.text!r}: a {block} has one value of each of its keys")
            set_key(config, t.key, t.values[0])
    return config.get(block) or {}


def _set_tuned(config: dict[str, Any], t: Typed) -> None:
    """Replace the experiment's values of one tuned key by the typed ones, as in `search.tune.optim.lr=.05,.1`."""
    block = config[SEARCH]
    if isinstance(block["tune"] or {}, Mapping):
        key, tune = t.key.removeprefix(TUNE), dict(flatten(block["tune"] or {}))
        tune.pop(key, None)
        values = list(t.values) if t.is_axis else t.values[0] if t.values else []
        block["tune"] = tune if t.deletes else tune | {key: values}


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    """Raises ConfigError for a value of another kind than the yaml's."""
    if has_key(config, key):
        check_kind(key, value, get_key(config, key))
    set_key(config, key, value)


def _is_section_choice(config: Mapping[str, Any], t: Typed) -> bool:
    """`model=convnet` chose a group and is composed already; `format=e4m3` sets a value."""
    return isinstance(config.get(t.key), Mapping) and isinstance(t.values[0], str)


def _planned(config: dict[str, Any], asked: Asked, point: Mapping[str, Any], imports: bool) -> PlannedRun:
    config["exp"] = asked.experiment
    named = script.stem(config[script.SCRIPT]) if _names_a_script(config) else "adhoc"
    config["name"] = config.get("name") or asked.experiment or named
    config = resolve(config)
    validate(config, imports=imports)
    if script.is_script(config):
        script.complete(config)
    elif config["init_from"] is not None:
        find_initial_weights(config)
    fixed = [
        t.text
        for t in asked.typed
        if not (t.is_axis or t.key == CASE or t.key in point or is_of_question(t.key))
    ]
    overrides = [*fixed, *(f"{key}={typed_form(value)}" for key, value in point.items())]
    return PlannedRun(run_name(config), config, overrides)


def _names_a_script(config: Mapping[str, Any]) -> bool:
    return script.is_script(config) and bool(config[script.SCRIPT].get("path"))


def _matches(rule: Rule, config: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    values = {**point, **dict(flatten(config))}
    return all(key in values and values[key] == value for key, value in rule.items())


def _described(rule: Rule) -> str:
    """`fp32 with APS` for {format: fp32, aps: true}."""
    words = []
    for key, value in rule.items():
        if key == "aps":
            words.append("with APS" if value else "without APS")
        else:
            words.append(str(value) if key == "format" else f"{key}={typed_form(value)}")
    return " ".join(words)
