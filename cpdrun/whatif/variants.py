"""Forecast variants of one observed run, for `cpdrun predict RUN`.

Variants differ from the run in their format, gradient scaling, or other settings of the sum of gradients. Those that
differ only in their format form a ladder.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from custom_fp.formats.names import parse as parse_format

from cpdrun.config.compose import Composer
from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.identity import hash_in, run_name
from cpdrun.config.margin import parse_margin
from cpdrun.config.overrides import Typed, copied, flatten, get_key, has_key, parse, set_key, typed_form
from cpdrun.config.schema import validate
from cpdrun.config.yaml_files import foreign_names
from cpdrun.errors import UserError
from cpdrun.record import Ending, RunDir, read_config
from cpdrun.study.margin import choose_margin, course_of
from cpdrun.study.metric import Metric
from cpdrun.whatif.damage import strictness
from cpdrun.whatif.effects import is_observed
from cpdrun.whatif.forecast import LadderForecast, Outcome, Subject, outcome, what_if

FORMAT, APS, SCALING = "format", "aps", "scaling"
USUAL: Mapping[str, list[Any]] = {
    FORMAT: ["fp16", "bf16", "e5m2", "e4m3", "e3m4", "e3m2", "e2m3", "e4m1", "e3m1", "e3m0", "e2m1"],
    APS: [False, True],
}
# The keys that may vary, because the observed gradients of single workers do not depend on them.
SUM_KEYS = (FORMAT, APS, SCALING, "sync", "full_precision")
MAX_VARIANTS = 2_000  # the maximum in one prediction
TOLERANCE = "search.tolerance="


def forecast_variants(run: RunDir, words: Sequence[str]) -> tuple[list[LadderForecast], str]:
    """Forecast variants of an observed run.

    If variants were trained in the same sweep with the same seed, their outcomes improve the forecasts.

    Args:
        run: The observed run.
        words: Command-line overrides, such as "format=e4m3,e5m2". Without `format`, or without `aps` and `scaling`, the
            values in USUAL are used. `search.tolerance=` sets the margin; its default is that of the metric.

    Returns:
        A ladder for each combination of the settings other than the format, and the margin as text.

    Raises:
        UserError: The run was not observed, or its config cannot be read.
        ConfigError: A key cannot be varied, or a value is not allowed.
        NoEffectsError: The effects cannot be computed.
    """
    if not is_observed(run):
        raise UserError(f"{run.path} was not observed. Train it again with observe=16")
    try:
        config = read_config(run)
    except (OSError, ValueError) as error:
        raise UserError(f"{run.config}: {error}") from None
    metric = _metric(run)
    margin, strict = _margin(run, metric, [word for word in words if word.startswith(TOLERANCE)])
    ladders: dict[str, list[Subject]] = {}
    for label, subject in _subjects(config, [word for word in words if not word.startswith(TOLERANCE)]):
        ladders.setdefault(label, []).append(subject)
    every = [subject for subjects in ladders.values() for subject in subjects]
    recorded = foreign_names({key: value for key, value in config.items() if key != FORMAT})
    typed = {name for each in every for name in foreign_names(each.config)}.difference(recorded)
    outcomes = _outcomes(run, metric, margin, every)
    forecasts = what_if([(run, every)], strict, outcomes, may_import=typed)
    found = [
        LadderForecast.of(label, [forecasts[each.name] for each in subjects])
        for label, subjects in ladders.items()
    ]
    return found, metric.show_tolerance(margin)


def _metric(run: RunDir) -> Metric:
    """Return the metric that the run is judged by. The default is test accuracy."""
    done = run.result()
    judge = (done.judge if done else None) or "test_accuracy"
    return Metric(judge, done.measures.get(judge) if done else None)


def _outcomes(run: RunDir, metric: Metric, margin: float, subjects: Sequence[Subject]) -> dict[str, Outcome]:
    """Return the outcomes of variants that were trained in the sweep.

    An outcome is based on one pair: the trained variant and the observed run.
    """
    done = run.result()
    baseline = None if done is None else done.metrics.get(metric.name)
    found: dict[str, Outcome] = {}
    for subject in subjects:
        name = run_name(subject.config)
        ended = run.sweep.find(name).result()
        if ended is None or baseline is None or hash_in(name) == hash_in(run.path.name) or not margin > 0:
            continue
        value = ended.metrics.get(metric.name)
        if ended.status is Ending.DIVERGED:
            found[subject.name] = Outcome(-math.inf, 1, 1.0)
        elif value is not None and math.isfinite(value):
            sign = metric.scale if metric.higher_is_better else -metric.scale
            found[subject.name] = outcome([sign * (value - baseline)], spread=margin, margin=margin)
    return found


def _margin(run: RunDir, metric: Metric, words: Sequence[str]) -> tuple[float, float]:
    """Return the margin in the displayed unit, and its strictness. The last override wins.

    A margin in percent refers to the observed run, which is the baseline of its variants.
    """
    done = run.result()
    classes = done.num_classes if done and isinstance(done.num_classes, int) else math.nan
    final = done.metrics.get(metric.name) if done else None
    text = words[-1].removeprefix(TOLERANCE) if words else None
    try:
        asked = None if text is None else parse_margin(text)
    except ValueError as error:
        raise ConfigError(f"{TOLERANCE}{text}: {error}") from None
    courses = [] if final is None else [course_of(run, metric, final, classes)]
    margin = choose_margin(asked, "typed", metric, courses, "the run")
    return margin.shown, strictness(metric, margin.shown, classes)


def _subjects(config: Mapping[str, Any], words: Sequence[str]) -> Iterator[tuple[str, Subject]]:
    """Yield the ladder label and the subject of each variant."""
    with Composer() as composer:
        typed = parse(words, composer.loader)
        for each in typed:
            _check(config, each, composer)
        axes: dict[str, list[Any]] = {each.key: list(each.values) for each in typed}
        if FORMAT not in axes:
            axes = {FORMAT: USUAL[FORMAT], **axes}
        if APS not in axes and SCALING not in axes:
            axes |= {APS: USUAL[APS]}
        count = math.prod(map(len, axes.values()))
        if count > MAX_VARIANTS:
            raise ConfigError(
                f"{count:,} variants are too many: one prediction takes at most {MAX_VARIANTS:,}"
            )
        varies = [key for key, values in axes.items() if len(values) > 1 and key not in (FORMAT, APS)]
        for point_values in itertools.product(*axes.values()):
            point = dict(zip(axes, point_values, strict=True))
            yield _variant(config, point, varies, composer)


def _check(config: Mapping[str, Any], typed: Typed, composer: Composer) -> None:
    """Raise ConfigError if an override may not vary."""
    if typed.deletes or not typed.values:
        raise ConfigError(f"{typed.text!r} must name a value, such as format=e4m3")
    if typed.key.split(".")[0] not in SUM_KEYS:
        raise ConfigError(
            f"{typed.key} cannot vary, because it changes the gradients that were observed. Only {', '.join(SUM_KEYS)} "
            "can. For other keys, use cpdrun predict exp=NAME"
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
    """Return the ladder label and the subject of one variant.

    `point` has the values that differ from the run's config. The label shows those of the keys in `varies`.
    """
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
    """Return the scaling rule for `aps=scaled`, or None to keep the run's rule."""
    if not isinstance(scaled, bool):
        raise ConfigError(f"aps={typed_form(scaled)}: must be true or false")
    if scaled == bool(config[APS]):
        return None
    return "aps" if scaled else "none"
