"""Variants of a run that exists: its own config with other formats, scaling and sums, for `cpdrun predict RUN`."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from custom_fp.formats.names import parse as parse_format

from cpdrun.config.compose import Composer
from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.identity import run_name
from cpdrun.config.keys import copied, flatten, get_key, has_key, set_key
from cpdrun.config.margin import parse_margin
from cpdrun.config.overrides import Typed, parse, typed_form
from cpdrun.config.registry import foreign_names
from cpdrun.config.schema import validate
from cpdrun.errors import UserError
from cpdrun.predict.effects import ask, is_observed
from cpdrun.predict.features import strictness
from cpdrun.predict.forecast import Line, Subject, foretell, line
from cpdrun.predict.model import fitted
from cpdrun.record import RunDir, read_config
from cpdrun.study.margin import choose_margin, course_of
from cpdrun.study.metric import Metric

FORMAT, APS, SCALING = "format", "aps", "scaling"
USUAL = {
    FORMAT: ["fp16", "bf16", "e5m2", "e4m3", "e3m4", "e3m2", "e2m3", "e4m1", "e3m1", "e3m0", "e2m1"],
    APS: [False, True],
}
OF_SUMS = (FORMAT, APS, SCALING, "sync", "full_precision")  # keys of which no gradient of a worker depends
MOST = 2_000
TOLERANCE = "search.tolerance="


def lines_of_run(run: RunDir, words: Sequence[str]) -> tuple[list[Line], str]:
    """Return a forecast for each variant that `words` name (USUAL if they name no format), and the margin in words:
    `search.tolerance=` or the metric's default.

    Raises UserError for a run that was not observed, ConfigError for a key that cannot be varied, NoEffectsError.
    """
    if not is_observed(run):
        raise UserError(
            f"{run.path} was not observed: train it with observe=16, as cpdrun predict exp=NAME does itself"
        )
    try:
        config = read_config(run)
    except (OSError, ValueError) as error:
        raise UserError(f"{run.config}: {error}") from None
    margin, strict = _margin(run, [word for word in words if word.startswith(TOLERANCE)])
    found: dict[str, list[Subject]] = {}
    for label, subject in _subjects(config, [word for word in words if not word.startswith(TOLERANCE)]):
        found.setdefault(label, []).append(subject)
    each = {subject.name: subject.config for subjects in found.values() for subject in subjects}
    recorded = foreign_names({key: value for key, value in config.items() if key != FORMAT})
    typed = {name for one in each.values() for name in foreign_names(one)}.difference(recorded)
    effects = ask(run, each, may_import=typed)
    predicted = [
        line(label, [foretell(subject, effects[subject.name], strict, fitted()) for subject in subjects])
        for label, subjects in found.items()
    ]
    return predicted, margin


def _margin(run: RunDir, words: Sequence[str]) -> tuple[str, float]:
    """Return the margin in words, and how strict it is. The run itself is the baseline."""
    done = run.result()
    judge = (done.judge if done else None) or "test_accuracy"
    metric = Metric(judge, done.measures.get(judge) if done else None)
    classes = done.num_classes if done and isinstance(done.num_classes, int) else math.nan
    final = done.metrics.get(judge) if done else None
    text = words[-1].removeprefix(TOLERANCE) if words else None
    try:
        asked = None if text is None else parse_margin(text)
    except ValueError as error:
        raise ConfigError(f"{TOLERANCE}{text}: {error}") from None
    courses = [] if final is None else [course_of(run, metric, final, classes)]
    margin = choose_margin(asked, "typed", metric, courses, "the run")
    return metric.show_tolerance(margin.shown), strictness(metric, margin.shown, classes)


def _subjects(config: Mapping[str, Any], words: Sequence[str]) -> Iterator[tuple[str, Subject]]:
    with Composer() as composer:
        typed = parse(words, composer.loader)
        for each in typed:
            _check(config, each, composer)
        axes = {each.key: list(each.values) for each in typed}
        if FORMAT not in axes:
            axes = {FORMAT: USUAL[FORMAT], **axes}
        if APS not in axes and SCALING not in axes:
            axes |= {APS: USUAL[APS]}
        count = 1
        for values in axes.values():
            count *= len(values)
        if count > MOST:
            raise ConfigError(f"{count:,} variants; one prediction has at most {MOST:,}")
        varies = [key for key, values in axes.items() if len(values) > 1 and key not in (FORMAT, APS)]
        for values in itertools.product(*axes.values()):
            point = dict(zip(axes, values, strict=True))
            yield _variant(config, point, varies, composer)


def _check(config: Mapping[str, Any], typed: Typed, composer: Composer) -> None:
    if typed.deletes or not typed.values:
        raise ConfigError(f"{typed.text!r} names no value")
    if typed.key.split(".")[0] not in OF_SUMS:
        raise ConfigError(
            f"{typed.key} changes the gradients that were observed; of a run that exists {', '.join(OF_SUMS)} may "
            "vary. For others: cpdrun predict exp=NAME"
        )
    if typed.key == SCALING:
        choices = composer.groups()[SCALING]
        for value in typed.values:
            if value not in choices:
                raise ConfigError(f"scaling={typed_form(value)}: must be one of {', '.join(choices)}")
    elif not has_key(config, typed.key) or isinstance(get_key(config, typed.key), Mapping):
        raise ConfigError(
            f"unknown key {typed.key!r}{did_you_mean(typed.key, [k for k, _ in flatten(config)])}"
        )


def _variant(
    config: Mapping[str, Any], point: Mapping[str, Any], varies: Sequence[str], composer: Composer
) -> tuple[str, Subject]:
    made = copied(config)
    for key, value in point.items():
        if key not in (APS, SCALING):
            set_key(made, key, value)
    rule = point.get(SCALING, _rule(made, point.get(APS, made[APS])))
    if rule is not None:
        made[SCALING] = composer.file(SCALING, rule)
    made[APS] = made[SCALING]["_target_"] != composer.file(SCALING, "none")["_target_"]
    try:
        fmt = parse_format(made[FORMAT])
    except ValueError as error:
        raise ConfigError(f"format={typed_form(made[FORMAT])}: {error}") from None
    made[FORMAT] = fmt.name
    validate(made, imports=False)
    words = ["with APS" if made[APS] else "without APS"]
    words += [
        f"{key} {typed_form(point[key])}"
        for key in varies
        if key != SCALING or point[key] not in ("none", "aps")
    ]
    label = ", ".join(words)
    return label, Subject(f"{run_name(made)} {label}", f"{fmt.name} {label}", fmt.bits, made)


def _rule(config: Mapping[str, Any], scaled: object) -> str | None:
    """What scaling must become; None where it is so already."""
    if not isinstance(scaled, bool):
        raise ConfigError(f"aps={typed_form(scaled)}: must be true or false")
    if scaled == bool(config[APS]):
        return None
    return "aps" if scaled else "none"
