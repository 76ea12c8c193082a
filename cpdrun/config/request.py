"""Read and check the axes, cases, and exclusions of a sweep.

An experiment's yaml has a section such as:

sweep:
  format: [fp32, e4m3]         # an axis: any key of the config, or a group such as model
  sync.kahan: [false, true]
  seed: [0, 1, 2]
  exclude:
    - {format: fp32, aps: true}  # drops the runs that have all of these values

An experiment that extends another (`defaults: [NAME, _self_]`) removes an axis or a case of it with null.

`cases` lists named combinations of values instead of their product. Together, they form one more axis, `case`. A report
compares them with the case named fp32.

sweep:
  cases:
    fp32: {precision: fp32}
    pure: {precision: pure_fp16}
    pure, Kahan: {precision: pure_fp16, precision.kahan_weights: true}
  seed: [0, 1, 2]
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.config.compose import EXPERIMENT, SCRIPT_ROOT, Composer
from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.overrides import INGREDIENTS, MOST_VALUES, Typed, flatten, has_key, parse, typed_form
from cpdrun.config.schema import TRAINING_ONLY, takes_any_name
from cpdrun.config.script import SCRIPT, SHORT_FORMS, is_of_script
from cpdrun.config.short_forms import with_scaling_rule

Axes = dict[str, list[Any]]
# The values that a case sets, keyed by config key.
Case = Mapping[str, Any]
# An exclusion: runs with all of these values are dropped.
Rule = Mapping[str, Any]

CASE = "case"
# The settings of `cpdrun search` and `cpdrun search --allocate`, which are not part of any run's config.
SEARCH, SCREEN = "search", "screen"
TUNE = "search.tune."  # as in `search.tune.optim.lr`
BASELINE = "search.baseline."  # as in `search.baseline.format`


@dataclass(frozen=True)
class SweepRequest:
    """The checked request for a sweep, before its axes are combined into runs.

    Single values from the command line override the experiment's body and cases. Axes override both.

    Attributes:
        typed: The overrides from the command line.
        choices: The choices of groups with a single value on the command line.
        cases: The experiment's cases, keyed by name.
        axes: The values of each axis. The last axis varies fastest.
        exclusions: The exclusions. A run is dropped if it matches any of them.
    """

    typed: list[Typed]
    choices: dict[str, str]
    cases: dict[str, Case]
    axes: Axes
    exclusions: list[Rule]

    @property
    def experiment(self) -> str | None:
        """The name of the experiment, if one was chosen."""
        return self.choices.get(EXPERIMENT)

    def count(self) -> int:
        """Return the number of combinations of the axes' values, before exclusions."""
        return math.prod(len(values) for values in self.axes.values())

    def points(self) -> Iterator[dict[str, Any]]:
        """Yield each combination of the axes' values."""
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))


def read(composer: Composer, texts: Sequence[str], *, of_baseline: bool = False) -> SweepRequest:
    """Read and check the axes and settings on the command line and in the experiment.

    Args:
        composer: The composer of the configuration.
        texts: The overrides as typed.
        of_baseline: Whether the overrides describe a baseline. Ingredients that its recipe does not have are then
            ignored, because they belong to the candidates' recipes.

    Raises:
        ConfigError: A key, a choice, or a case is unknown, an axis is not allowed, or there are too many runs.
    """
    if is_script := _is_script(composer, texts):
        composer.use(SCRIPT_ROOT)
    groups = composer.groups()
    typed = parse(texts, composer.loader)
    choices = _group_choices(typed, groups)
    base = composer.compose(with_scaling_rule(composer, choices))
    if of_baseline:
        typed = [t for t in typed if not _is_ingredient_of_others(t.key, base)]
    for t in typed:
        if is_script:
            _require_known_to_scripts(t, base, groups)
        else:
            _require_known(t, base, groups)
    cases = _cases(base.get("sweep"))
    axes, exclusions = _axes(base.get("sweep") or {}, typed, cases)
    if of_baseline:
        axes = {key: values for key, values in axes.items() if not _is_ingredient_of_others(key, base)}
    for key, values in axes.items():
        if str(key).endswith("_dir") and len(values) > 1:
            raise ConfigError(
                f"{key} cannot be an axis, because runs that differ only in a folder have the same name. Start one "
                f"sweep for each folder: name=NAME {key}={values[0]}"
            )
    request = SweepRequest(typed, choices, cases, axes, exclusions)
    _require_known_keys(composer, request, base, is_script=is_script)
    if request.count() > MOST_VALUES:
        grid = " x ".join(f"{key}({len(values):,})" for key, values in axes.items())
        raise ConfigError(f"{grid} = {request.count():,} runs, but one sweep has at most {MOST_VALUES:,}")
    return request


def _require_known_keys(
    composer: Composer, request: SweepRequest, base: Mapping[str, Any], *, is_script: bool
) -> None:
    """Raise ConfigError if axes, exclusions, or cases have unknown keys."""
    groups = composer.groups()
    known = {*groups, *(t.key for t in request.typed if t.adds)}
    places = [("sweep", request.axes, base), ("sweep.exclude", itertools.chain(*request.exclusions), base)]
    for name, case in request.cases.items():
        of_case = {key: str(value) for key, value in case.items() if key in groups}
        choices = with_scaling_rule(composer, request.choices | of_case)
        places.append((f"sweep.cases.{name}", case, composer.compose(choices) if of_case else base))
    for place, keys, of_place in places:
        for key in keys:
            if not isinstance(key, str):
                raise ConfigError(f"{place}: the key {key!r} must be text")
            if key not in known and not has_key(of_place, key) and not (is_script and takes_any_name(key)):
                raise ConfigError(
                    f"{place}: unknown key {key!r}{did_you_mean(key, _known(of_place, groups))}"
                )


def _is_script(composer: Composer, texts: Sequence[str]) -> bool:
    """Return True if the runs are those of a user's script.

    Raises:
        ConfigError: A script was typed, but the experiment is for cpdrun's own training loop, or its `script` is not a
            section.
    """
    typed = [text for text in texts if is_of_script(text)]
    named = [text.partition("=")[2] for text in texts if text.startswith(f"{EXPERIMENT}=")]
    if not named or named[-1] not in composer.groups()[EXPERIMENT]:
        return bool(typed)
    body = composer.body(named[-1])
    section = body.get(SCRIPT)
    if section is not None and not isinstance(section, Mapping):
        raise ConfigError(
            f"exp={named[-1]}: script: must be a section, such as `script: {{path: {section}}}`"
        )
    if typed and section is None and (foreign := [key for key in body if key in TRAINING_ONLY]):
        raise ConfigError(
            f"exp={named[-1]} is for cpdrun's own training loop (it sets {', '.join(foreign)}): leave out {typed[0]}, "
            f"or {EXPERIMENT}={named[-1]}"
        )
    return bool(typed) or section is not None


def _is_ingredient_of_others(key: Any, base: Mapping[str, Any]) -> bool:
    return isinstance(key, str) and key.split(".")[0] == INGREDIENTS and not has_key(base, key)


def is_of_question(key: str) -> bool:
    """Return True for settings of `cpdrun search`, which do not change any run."""
    return key.split(".")[0] in (SEARCH, SCREEN)


def _group_choices(typed: list[Typed], groups: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the choices of groups with a single value on the command line.

    `_axes` handles groups with several values.
    """
    choices = {}
    for t in typed:
        if t.key in groups and t.deletes:
            raise ConfigError(f"cannot leave out {t.key!r}; choose one of {', '.join(groups[t.key])}")
        if t.key == EXPERIMENT and t.is_axis:
            raise ConfigError(
                "a sweep has only one experiment: exp=NAME. To compare experiments, type cpdrun report SWEEP SWEEP"
            )
        if t.key in groups and not t.is_axis:
            choices[t.key] = str(t.values[0])
    return choices


def _known(base: Mapping[str, Any], groups: Mapping[str, list[str]]) -> list[str]:
    return [*(key for key, _ in flatten(base) if not key.startswith("sweep")), *groups]


def _require_known(t: Typed, base: Mapping[str, Any], groups: Mapping[str, list[str]]) -> None:
    """Raise ConfigError if an override has an unknown key."""
    if t.adds or t.key in groups or has_key(base, t.key) or t.key.startswith(TUNE):
        return
    known = _known(base, groups)
    if t.key.startswith(BASELINE):
        key = t.key.removeprefix(BASELINE)
        if key in groups or has_key(base, key):
            return
        known += [BASELINE + each for each in known]
    section = t.key.split(".")[0]
    if t.key == SHORT_FORMS["metric"]:
        raise ConfigError(
            "metric=NAME chooses the metric of a script, but there is no script. For an experiment, type "
            "search.metric=NAME"
        )
    near = did_you_mean(t.key, known)
    if section == INGREDIENTS:
        own = ", ".join(base.get(INGREDIENTS) or ())
        near = (
            f"{near}: the ingredients of the recipe are {own}"
            if own
            else ": the chosen recipes have no ingredients. Choose a recipe that has some, such as nvfp4"
        )
    elif not near and section in groups and "." in t.key:
        near = f"; type +{t.text} to pass it to your own class"
    raise ConfigError(f"unknown key {t.key!r}{near}")


def _require_known_to_scripts(t: Typed, base: Mapping[str, Any], groups: Mapping[str, list[str]]) -> None:
    """Raise ConfigError if runs of a script do not have the key."""
    if takes_any_name(t.key):
        return
    section = t.key.split(".")[0]
    if section in TRAINING_ONLY:
        raise ConfigError(
            f"unknown key {t.key!r}: a script has its own {section}. To pass the setting as an argument, type "
            f"script.args.{t.text}"
        )
    try:
        _require_known(t, base, groups)
    except ConfigError as error:
        if "did you mean" in str(error) or "." in t.key:
            raise
        raise ConfigError(f"{error}. If it is an argument of the script, type script.args.{t.text}") from None


def _cases(block: Any) -> dict[str, Case]:
    """Return the cases of an experiment, without those that are null."""
    cases = block.get("cases") or {} if isinstance(block, Mapping) else {}
    if not isinstance(cases, Mapping) or not all(isinstance(case, Mapping | None) for case in cases.values()):
        raise ConfigError("sweep.cases must map names to values, such as pure: {precision: pure_fp16}")
    return {str(name): case for name, case in cases.items() if case is not None}


def _axes(block: Any, typed: list[Typed], cases: Mapping[str, Case]) -> tuple[Axes, list[Rule]]:
    """Return the axes and the experiment's exclusions.

    A typed axis replaces the experiment's axis of the same key, or comes after the others. A key with a single typed
    value is not an axis.
    """
    if not isinstance(block, Mapping):
        raise ConfigError("sweep: must be a mapping with axes, such as `seed: [0, 1, 2]`")
    axes: Axes = {}
    exclusions: list[Rule] = []
    for key, value in block.items():
        if key == "cases":
            axes |= {CASE: list(cases)} if cases else {}
            continue
        if value is None:
            continue  # null removes an axis that the experiment inherits from another
        if key == "exclude":
            exclusions = value
        elif isinstance(value, list) and value:
            axes[key] = value
        else:
            raise ConfigError(f"sweep.{key} must be a list of at least one value, not {value!r}")
    if not isinstance(exclusions, list) or not all(isinstance(item, Mapping) and item for item in exclusions):
        raise ConfigError("sweep.exclude must be a list of mappings, such as - {format: fp32, aps: true}")
    for t in typed:
        if is_of_question(t.key):
            continue
        if t.is_axis:
            if not t.values:
                raise ConfigError(f"{t.text!r} has no value. An axis needs at least one value")
            axes[t.key] = list(t.values)
        elif t.key in axes:
            axes.pop(t.key)
        if t.key == CASE:
            _choose_cases(axes, t, cases)
    return axes, exclusions


def _choose_cases(axes: Axes, t: Typed, cases: Mapping[str, Case]) -> None:
    """Restrict the axis `case` to the cases given on the command line. A single case forms an axis, too."""
    names = [value if isinstance(value, str) else typed_form(value) for value in t.values]
    for name in names:
        if name not in cases:
            there = f"; there are: {', '.join(cases)}" if cases else ": the experiment names no cases"
            raise ConfigError(f"unknown case {name!r}{did_you_mean(name, cases)}{there}")
    axes[CASE] = names
