"""Find settings that have no effect on any run of a sweep.

A setting may be typed, or set by an axis, a case, or the experiment's file. If it has no effect, a line is printed
before anything starts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.config.overrides import has_key
from cpdrun.config.script import is_script

Config = Mapping[str, Any]
FP32 = "fp32"


@dataclass(frozen=True)
class EffectRule:
    """A rule that determines which runs are affected by certain keys or groups of keys.

    `why` tells the user why the keys affect no run. In it, `{kinds}` is replaced by the names of the classes
    that the runs use for `section`.
    """

    keys: tuple[str, ...]
    used: Callable[[Config], bool]
    why: str
    section: str = "sync"

    def covers(self, key: str) -> bool:
        """Return True if the rule applies to the given key or group."""
        return any(key == own or key.startswith(f"{own}.") for own in self.keys)

    def line(self, given: Sequence[str], configs: Iterable[Config]) -> str:
        """Return the line which says that the given keys have no effect."""
        kinds = sorted({config[self.section]["_target_"].rsplit(".", 1)[-1] for config in configs})
        verb = "has" if len(given) == 1 else "have"
        return f"{' and '.join(given)} {verb} no effect: {self.why.format(kinds=', '.join(kinds))}"


def _taken_in(group: str, section: str) -> Callable[[Config], bool]:
    """Return a function that checks whether a section includes a group, as in `sync: {topology: ${topology}}`."""
    return lambda config: config[group] in config[section].values()


def _rounds(*keys: str) -> Callable[[Config], bool]:
    """Return a function that checks whether any of these keys of `precision` rounds values.

    The function also returns True if `precision` has none of the keys, or has rules for some layers.
    """

    def rounds(config: Config) -> bool:
        given = [config["precision"][key] for key in keys if key in config["precision"]]
        rules = config["precision"].get("rules")
        return bool(rules) or not given or any(value not in (FP32, None) for value in given)

    return rounds


def _sums_in_format(config: Config) -> bool:
    """Return True if workers sum gradients in the run's format.

    Otherwise, they sum compressed messages in float32. sync=local supports both; with compressor=rounded, it sums in
    the run's format.
    """
    if "inner_steps" not in config["sync"]:
        return config["compressor"] not in config["sync"].values()
    return config["sync"]["compressor"]["_target_"].rsplit(".", 1)[-1] == "Rounded"


def _sends_less(config: Config) -> bool:
    """Return True if workers send fewer bytes than the full float32 gradients would take."""
    compresses = not _sums_in_format(config) or "min_compression_rate" in config["sync"]
    return config["format"] != FP32 or compresses


def _trains(config: Config) -> bool:
    return is_script(config) or config["epochs"] > 0


TAKEN_BY = "{kinds} does not use it, unlike sync=%sgossip_choco and the other gossip rules"
OF_A_SUM = tuple(
    f"sync.{knob}"
    for knob in ("order", "group_size", "kahan", "rounding", "overflow", "compat", "requantise")
)
RULES = (
    EffectRule(
        ("norm",),
        _taken_in("norm", "model"),
        "{kinds} has no norm layers, unlike model=normed_convnet",
        "model",
    ),
    EffectRule(("topology",), _taken_in("topology", "sync"), TAKEN_BY % ""),
    EffectRule(("compressor",), _taken_in("compressor", "sync"), TAKEN_BY % "compressed, "),
    EffectRule(
        ("scaling",),
        lambda config: config["aps"],
        "it selects how aps=true scales, and all runs have aps=false",
    ),
    EffectRule(
        ("aps",),
        lambda config: not config["aps"] or config["format"] != FP32,
        "format=fp32 has nothing to scale",
    ),
    EffectRule(
        ("full_precision",),
        lambda config: config["aps"] or _sends_less(config),
        "with format=fp32, all gradients are exchanged in fp32 anyway",
    ),
    EffectRule(
        ("format",),
        lambda config: (
            config["format"] == FP32
            or "*" not in config["full_precision"]["layers"]
            or (not is_script(config) and config["format"] in config["model"].values())
        ),
        "with full_precision.layers=['*'], all gradients are exchanged in fp32",
    ),
    EffectRule(
        ("sync.error_feedback", "sync.requantise"), _sends_less, "format=fp32 does not round gradients"
    ),
    EffectRule(
        ("sync.group_size",),
        lambda config: config["sync"].get("order") == "hierarchical",
        "only sync.order=hierarchical adds in groups",
    ),
    EffectRule(
        ("sync.order", "sync.kahan"),
        lambda config: config["world_size"] > 1,
        "with world_size=1 there is nothing to add",
    ),
    EffectRule(
        OF_A_SUM,
        lambda config: "inner_steps" not in config["sync"] or _sums_in_format(config),
        "{kinds} adds the messages of this compressor in float32, in the order of arrival",
    ),
    EffectRule(
        ("compressor.rounding", "compressor.format", "compressor.aps"),
        lambda config: "inner_steps" not in config["sync"] or not _sums_in_format(config),
        "{kinds} with compressor=rounded sums in the run's format, which format, aps and sync.rounding set",
    ),
    EffectRule(
        ("sync.nesterov",),
        lambda config: config["sync"].get("outer_momentum") != 0,
        "with sync.outer_momentum=0 there is no momentum",
    ),
    EffectRule(
        ("precision.kahan",),
        _rounds("accumulator"),
        "precision.accumulator=fp32 has no rounding error to compensate",
    ),
    EffectRule(
        ("precision.update_order",),
        _rounds("update"),
        "precision.update=fp32 rounds no operation of the optimizer step",
    ),
    EffectRule(
        ("precision.master_weights",),
        _rounds("weights"),
        "precision.weights=fp32 stores the weights in float32",
    ),
    EffectRule(
        ("precision.fp32_norms",),
        _rounds("weights", "optimizer_state", "update"),
        "precision keeps all weights and optimizer state in fp32",
    ),
    EffectRule(
        ("precision.activation_rounding", "precision.activation_range"),
        _rounds("activation_bits"),
        "precision.activation_bits=null rounds no activation",
    ),
    EffectRule(
        ("precision.error_rounding", "precision.float_errors_for_weights"),
        _rounds("error_bits"),
        "precision.error_bits=null rounds no error",
    ),
    EffectRule(
        ("launcher.jobs_per_gpu",),
        lambda config: config["device"] != "cpu",
        "device=cpu uses no GPU",
        "launcher",
    ),
    EffectRule(
        ("optim", "schedule", "sync", "partition", "clip_norm", "parameter_groups", "emulation"),
        _trains,
        "with epochs=0 nothing is trained",
    ),
)


def ignored_settings(keys: Iterable[str], configs: Sequence[Config]) -> Iterator[str]:
    """Yield a line for each rule whose given keys affect no run.

    Keys may be groups, as in `compressor` or `norm.groups`.
    """
    # The configs of runs without scaling have no keys of a scaling rule.
    keys = [
        key
        for key in dict.fromkeys(keys)
        if key.startswith("scaling.") or any(has_key(config, key) for config in configs)
    ]
    for rule in RULES:
        given = [key for key in keys if rule.covers(key)]
        if given and not any(rule.used(config) for config in configs):
            yield rule.line(given, configs)
