"""Define groups, which are runs that differ only in their seed, and facets, in which groups are compared.

The module also determines the communication method of a run.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cpdrun.costmodel import compressor_key
from cpdrun.record import RunDir
from cpdrun.stats.failures import Failure, Runs
from cpdrun.stats.means import mean
from cpdrun.study import formats
from cpdrun.study.axes import BitsAxis, axis_text, axis_title, is_scaling, plain
from cpdrun.study.collect import CASE
from cpdrun.study.formats import Choice

WITH_APS, WITHOUT_APS = "with APS", "without APS"
LOCAL, SHARDED, GOSSIP = "local steps", "sharded", "gossip"
COMPRESSOR = "sync.compressor."

# The papers use these names for the compressors. The keys are our classes.
_COMPRESSORS = {
    "TopK": "top-k",
    "RandomK": "random-k",
    "QSGD": "QSGD",
    "MinMax": "min-max",
    "Rounded": "rounded messages",
    "PowerSGD": "PowerSGD",
    "Sign": "sign",
}
# The class of the compressor that rounds messages. With local steps, it does not count as a compressor: the workers'
# updates are summed in the run's format, as gradients are without local steps.
_IN_FORMAT = "Rounded"
_PLAIN = ("fp32", "bf16", "fp16")  # A platform's all_reduce can sum these formats.


@dataclass(frozen=True)
class Method:
    """A run's communication method: what workers send to each other, and how often.

    Attributes:
        family: The name of the method's family, for plots and tables.
        pattern: The communication pattern, which defines which worker sends what to which other worker. It is one of
            costmodel.PATTERNS, or None if the config does not determine it.
        format: The run's format.
        aps: Whether the run uses APS.
        compressor: The compressor's key in a calibration. None without a compressor.
        every: The number of steps from one exchange to the next.
        gather: The format in which sharded weights are gathered. None if weights are not sharded.
    """

    family: str
    pattern: str | None = None
    format: str = "fp32"
    aps: bool = False
    compressor: str | None = None
    every: int = 1
    gather: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a platform's own all_reduce computes the same sums, apart from the order of the additions."""
        return self.pattern == "direct" and not self.aps and self.every == 1 and self.format in _PLAIN


def method_of(config: Mapping[str, Any]) -> Method:
    """Return the communication method of a run.

    Args:
        config: The run's settings, keyed by dotted key.
    """
    name, aps = str(config.get("format")), bool(config.get("aps"))
    fmt = formats.parse(name)
    if fmt is not None and fmt.is_fp32:
        name = "fp32"
    kind = _last(config.get("sync._target_"))
    compressor = _settings(config, COMPRESSOR)
    of_compressor = _last(compressor.get("_target_"))
    steps = config.get("sync.inner_steps")
    if compressor and not (_is(steps) and of_compressor == _IN_FORMAT):
        family, pattern, key = _compressor_words(of_compressor), "messages", compressor_key(compressor)
    elif kind is not None and "powersgd" in kind.lower():
        family, pattern, key = "PowerSGD", "factors", compressor_key(_settings(config, "sync."))
    else:
        family, pattern, key = WITH_APS if aps else WITHOUT_APS, "direct", None
    if _is(steps):
        return Method(LOCAL, pattern, name, aps, key, every=max(1, int(steps or 1)))
    if _is(gather := config.get("sync.gather")):
        return Method(SHARDED, "sharded", name, aps, gather=str(gather))
    if any(setting.startswith("sync.topology") and _is(value) for setting, value in config.items()):
        return Method(GOSSIP, "neighbours", name, aps, key)
    return Method(family, None if kind is None else pattern, name, aps, key)


def _settings(config: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {k.removeprefix(section): v for k, v in config.items() if k.startswith(section) and _is(v)}


def _compressor_words(kind: str | None) -> str:
    """Return a readable name for a compressor class.

    If the paper's name is known, return it. Otherwise, split the class name into words: `SignSGD` gives `sign SGD`.
    """
    if kind is None:
        return "compressed"
    known = _COMPRESSORS.get(kind)
    return known or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind[:1].lower() + kind[1:])


def _last(target: Any) -> str | None:
    return str(target).rpartition(".")[2] if _is(target) else None


def _is(value: Any) -> bool:
    """Return whether a setting has a value. pandas stores a missing value as NaN."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


# Groups are equal only if they are the same object, so that they can be keys of dicts.
@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one baseline or candidate, which differ only in their seed. The table of results has a row per group.

    Attributes:
        keys: The group's value on each axis, keyed by config key.
        by_seed: The metric of each finished run, keyed by seed. Runs without a finite value are left out.
        n_finished: The number of finished runs, counting each seed once.
        diverged: The number of finished runs that diverged.
        failed: The number of failed runs.
        hybrid: A description of the layers and epochs whose gradients are exchanged in fp32, whatever the format. Empty
            if there are none.
        figures: Further numbers from the records, such as `wire_bytes`, as means over the finished runs. If the records
            do not contain a number, it is NaN.
        runs: The finished runs, one per seed.
        diverged_seeds: The seeds of the runs that diverged or whose metric is not finite.
        repeated: The names of the runs that have the same seed as another run of the group, but another result.
        axis: The study's axis of bits.
        failures: The reasons why runs have no value, keyed by seed.
        lengths: The numbers of epochs, steps, or rows of finished runs of scripts, keyed by seed.
        gave_up_seeds: The seeds of the runs that were stopped early because they did not learn. Their values are those
            of the last epoch.
        fingerprints: The runs' fingerprints, keyed by seed. Two are equal only if the runs are equal bit for bit.
        products: The counted matrix products of a training step, from done.json. None if they were not recorded.
        rounds: For a named case, a choice that has the case's bit width. None if cases are not compared.
        method: The communication method.
    """

    keys: dict[str, Any]
    by_seed: dict[Any, float]
    n_finished: int
    diverged: int
    failed: int = 0
    hybrid: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    runs: list[RunDir] = field(default_factory=list)
    diverged_seeds: frozenset[Any] = frozenset()
    repeated: tuple[str, ...] = ()
    axis: BitsAxis = field(default_factory=BitsAxis)
    failures: dict[Any, Failure] = field(default_factory=dict)
    lengths: dict[Any, int] = field(default_factory=dict)
    gave_up_seeds: frozenset[Any] = frozenset()
    fingerprints: dict[Any, str] = field(default_factory=dict)
    products: dict[str, Any] | None = None
    rounds: Choice | None = None
    method: Method = field(default_factory=lambda: Method(WITHOUT_APS))

    @property
    def values(self) -> list[float]:
        """The finite values of the metric, one per run."""
        return list(self.by_seed.values())

    @property
    def gave_up(self) -> int:
        """The number of runs that were stopped early because they did not learn."""
        return len(self.gave_up_seeds)

    @property
    def ended(self) -> dict[Any, float]:
        """The metric, keyed by seed. A run that diverged has NaN, even if it recorded a value."""
        return {**self.by_seed, **dict.fromkeys(self.diverged_seeds, math.nan)}

    @property
    def outcomes(self) -> Runs:
        """The values and failures of the runs, in the form that `compare_runs` expects."""
        return Runs(self.ended, self.failures, self.lengths, self.gave_up_seeds)

    @property
    def format(self) -> Any:
        """The group's value on the axis of bits. If this axis is `format`, it is the format of what workers send."""
        return self.keys[self.axis.key]

    @property
    def bits(self) -> int | float | None:
        """The bit width of the compared format or named case. None if it is unknown."""
        return formats.bits(self.format if self.rounds is None else self.rounds)

    @property
    def name(self) -> str:
        """The format's name for display."""
        return plain(str(self.format))

    @property
    def title(self) -> str:
        """The format's name with its bit width, such as `e3m0 (4 bits)`."""
        bits = formats.bits(self.format)
        size = "unknown format" if bits is None else f"{bits} bits"
        return (
            f"{self.name} (hybrid: {size}, {self.hybrid} in fp32)" if self.hybrid else f"{self.name} ({size})"
        )

    @property
    def full_name(self) -> str:
        """The group's name: the name of a named case, or otherwise the format and its scaling (`e3m0 with APS`)."""
        return self.strategy if self.case is not None else f"{self.name} {self.strategy}"

    @property
    def aps(self) -> bool:
        """Whether the runs use APS."""
        return bool(self.keys["aps"])

    @property
    def strategy(self) -> str:
        """The label of the group's ladder.

        - For a named case, it is the name of the case.
        - If the axis of bits is not `format`, it names the rounded tensors, such as `of weights`.
        - Otherwise, it is the gradient scaling, `with APS` or `without APS`. If scaling rules are an axis, their name
          and settings follow `with APS`.
        """
        if self.case is not None:
            return plain(str(self.case))
        if not self.axis.is_of_gradients:
            return f"of {plain(self.axis.what)}"
        if not self.aps:
            return WITHOUT_APS
        rules = [axis_text(value) for key, value in self.keys.items() if is_scaling(key)]
        return f"{WITH_APS} ({', '.join(rules)})" if rules else WITH_APS

    @property
    def case(self) -> Any:
        """The name of the case. None if the group is not a named case, or if named cases are not compared."""
        value = self.keys.get(CASE) if self.axis.of_cases else None
        return None if value != value else value  # pandas stores NaN for a missing value

    @property
    def is_baseline(self) -> bool:
        """Whether this group is the baseline, as `BitsAxis.is_baseline` defines it."""
        name = self.format if self.case is None else str(self.case)
        return self.axis.is_baseline(self.keys, name, is_case=self.case is not None)

    @cached_property
    def mean(self) -> float:
        """The mean of the metric over the seeds. NaN if no run has a value."""
        return mean(self.values)

    @property
    def wire_bytes(self) -> float:
        """The number of bytes that each real worker sends per step."""
        return self.figures["wire_bytes"]

    @property
    def bits_a_parameter(self) -> float:
        """The bit width with which a plain all-reduce would send as many bytes per step as this group's method.

        With N workers, it is

            8 wire_bytes / parameters / (2 (N - 1) / N)

        where `wire_bytes` is the number of bytes that one of N real workers sends; received bytes are not counted. The
        factor 2 (N - 1) / N is the smallest number of values that any all-reduce sends per value of the gradient
        (P. Patarasuk and X. Yuan, JPDC 69, 2009). Therefore, fp32 gives 32 and e4m3 gives 8 for every N. Scales and the
        bytes spent on agreeing on scales are included. A message counts once per receiver: if a worker sends k bits per
        parameter to each of the N - 1 other workers, the result is k N / 2. For a single worker, or if the record lacks
        one of the numbers, it is NaN.
        """
        workers = self.keys.get("world_size")
        if not isinstance(workers, int | float) or not workers > 1:
            return math.nan
        share = 2 * (workers - 1) / workers
        parameters = self.figures["parameters"]
        return 8 * self.wire_bytes / parameters / share if parameters > 0 else math.nan

    @property
    def test_samples(self) -> float:
        """The number of test samples on which the metrics are computed. NaN if it is unknown."""
        return self.figures["test_samples"]

    @property
    def num_classes(self) -> float:
        """The number of classes. NaN if it is unknown."""
        return self.figures["num_classes"]

    @property
    def longest_chain(self) -> float:
        """The largest number of rounded additions in series from a worker's gradient to the sum. NaN if unknown."""
        return self.figures["longest_chain"]


@dataclass(frozen=True)
class Facet:
    """The groups that are compared with each other. They usually differ only in format and gradient scaling.

    A plot shows each facet in its own panel.

    Attributes:
        keys: The values that distinguish this facet from the study's other facets, keyed by config key.
        groups: The groups.
        lent: The baseline, if it belongs to another facet. For example, with
            `search.baseline={format: fp32, optim.lr: .1}`, the facets of other learning rates have no baseline of their
            own. Otherwise None.
    """

    keys: dict[str, Any]
    groups: list[Group]
    lent: Group | None = None

    @property
    def label(self) -> str:
        """The values that distinguish this facet, such as `workers 8, model MLP`."""
        return ", ".join(f"{axis_title(key)} {axis_text(value)}" for key, value in self.keys.items())

    @property
    def has_cases(self) -> bool:
        """Whether the facet contains named cases."""
        return any(group.case is not None for group in self.groups)

    @property
    def has_candidates(self) -> bool:
        """Whether the facet contains a group that is not the baseline."""
        return any(not group.is_baseline for group in self.groups)

    @property
    def fp32(self) -> Group | None:
        """The baseline, even if it has no value yet. None if the facet has no baseline. It need not be fp32."""
        return next((group for group in self.groups if group.is_baseline), self.lent)

    @property
    def baseline(self) -> Group | None:
        """The baseline if it has a value, otherwise None.

        It may not be fit to compare with (`Study.baseline_problem`).
        """
        found = (group for group in (*self.groups, self.lent) if group is not None and group.is_baseline)
        return next((group for group in found if group.values), None)

    @property
    def all_groups(self) -> list[Group]:
        """All groups of the facet. If another facet lends its baseline, this baseline comes first."""
        return [*([self.lent] if self.lent is not None else []), *self.groups]

    @cached_property
    def ladders(self) -> dict[str, list[Group]]:
        """The facet's ladders, keyed by `Group.strategy`. Ladders without APS come last.

        A ladder consists of the candidates that share a gradient scaling, fewest bits first. Candidates of which no run
        has ended are left out.
        """
        found: dict[str, list[Group]] = {}
        have_ended = [g for g in self.groups if g.values or g.diverged_seeds or g.failures]
        chosen = [group for group in have_ended if not group.is_baseline]
        for group in sorted(chosen, key=lambda group: (not group.aps, formats.order(group.format))):
            found.setdefault(group.strategy, []).append(group)
        return found

    @cached_property
    def strategies(self) -> dict[str, list[Group]]:
        """The ladders, without the groups that have no value."""
        shown = {name: [group for group in groups if group.values] for name, groups in self.ladders.items()}
        return {name: groups for name, groups in shown.items() if groups}
