"""Define `Group`, `Facet`, and `Method`.

The runs of a group differ only in their seed. The groups of a facet are compared with each other. A method is how
workers exchange gradients: in which format, with which compressor, and how often. A ladder consists of the candidates
of a facet that share a gradient scaling, sorted by bit width.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cpdrun.costmodel import compressor_key
from cpdrun.record import ExampleOutcomes, RunDir, read_example_outcomes
from cpdrun.stats.failures import Failure, Runs
from cpdrun.stats.means import mean
from cpdrun.study import formats
from cpdrun.study.axes import BitsAxis, axis_text, axis_title, is_scaling, plain
from cpdrun.study.collect import CASE, RECIPE
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
# This compressor rounds messages. With local steps, it is no compressor: updates are summed in the run's format.
_IN_FORMAT = "Rounded"
_PLAIN = ("fp32", "bf16", "fp16")  # the formats that a platform's own all_reduce can sum


@dataclass(frozen=True)
class Method:
    """A run's communication method.

    Attributes:
        family: The name of the family for plots and tables, such as "top-k" or "with APS".
        pattern: Which worker sends what to which other worker, one of costmodel.PATTERNS. None if it is unknown.
        format: The run's format.
        aps: Whether the run uses APS.
        compressor: The compressor's key in a calibration. None without a compressor.
        every: The number of steps between two exchanges.
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
        """Whether a platform's own all_reduce computes the same sums, except for the order of the additions."""
        return self.pattern == "direct" and not self.aps and self.every == 1 and self.format in _PLAIN


def method_of(config: Mapping[str, Any]) -> Method:
    """Return the communication method of a run, given its settings keyed by dotted key."""
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
    """Return the paper's name of a compressor class, or the words of the class name.

    Example: `SignSGD` gives `sign SGD`.
    """
    if kind is None:
        return "compressed"
    known = _COMPRESSORS.get(kind)
    return known or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind[:1].lower() + kind[1:])


def _last(target: Any) -> str | None:
    return str(target).rpartition(".")[2] if _is(target) else None


def _is(value: Any) -> bool:
    """Return True if a setting has a value. pandas stores a missing value as NaN."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


# Groups are equal only if they are the same object, so that they can be keys of dicts.
@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one baseline or candidate, which differ only in their seed. The table of results has a row per group.

    Attributes:
        keys: The group's value on each axis, keyed by config key.
        by_seed: The finite metric of each finished run, keyed by seed.
        n_finished: The number of finished runs, counting each seed once.
        diverged: The number of finished runs that diverged.
        failed: The number of failed runs.
        hybrid: The layers and epochs whose gradients are exchanged in fp32, as text. Usually empty.
        figures: Further numbers of the records, such as `wire_bytes`, as means over finished runs. NaN if unknown.
        run_by_seed: The finished runs, keyed by seed.
        diverged_seeds: The seeds of the runs that diverged or whose metric is not finite.
        repeated: The names of runs that repeat a seed with another result.
        axis: The study's axis of bits.
        failures: The reasons why runs have no value, keyed by seed.
        lengths: The numbers of epochs, steps, or rows of scripts' finished runs, keyed by seed.
        gave_up_seeds: The seeds of the runs that were stopped early because they did not learn.
        fingerprints: The runs' fingerprints, keyed by seed. Equal fingerprints mean that runs are equal bit for bit.
        products: The counted matrix products of a training step. None if unknown.
        rounds: The bit width of a named case. None if cases are not compared.
        method: The communication method.
    """

    keys: dict[str, Any]
    by_seed: dict[Any, float]
    n_finished: int
    diverged: int
    failed: int = 0
    hybrid: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    run_by_seed: dict[Any, RunDir] = field(default_factory=dict)
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
    def runs(self) -> list[RunDir]:
        """The finished runs, one per seed."""
        return list(self.run_by_seed.values())

    @cached_property
    def example_outcomes(self) -> dict[Any, ExampleOutcomes | None]:
        """The recorded answers to the test examples, keyed by the seeds of `by_seed`. None if they cannot be read."""
        return {
            seed: _example_outcomes(run) for seed, run in self.run_by_seed.items() if seed in self.by_seed
        }

    @property
    def outcomes(self) -> Runs:
        """The values and failures of the runs, for `compare_runs`. Diverged runs have NaN, whatever they recorded."""
        values = {**self.by_seed, **dict.fromkeys(self.diverged_seeds, math.nan)}
        return Runs(values, self.failures, self.lengths, self.gave_up_seeds)

    @property
    def format(self) -> Any:
        """The group's value on the axis of bits, usually the format of gradients."""
        return self.keys[self.axis.key]

    @property
    def bits(self) -> int | float | None:
        """The bit width of the format or the named case. None if it is unknown.

        For a recipe, these are the mean operand bits, or the planned bits if its products were not counted.
        """
        planned = formats.bits(self.format if self.rounds is None else self.rounds)
        return planned if self.mean_operand_bits is None else self.mean_operand_bits

    @property
    def mean_operand_bits(self) -> float | None:
        """The mean bits of a recipe's operands over all multiply-accumulates of a training step. None if unknown.

        The bits of an element include its share of the block's scale. Operands in float32 count as 32 bits.
        """
        return None if self.axis.key != RECIPE else formats.mean_operand_bits(self.products)

    @property
    def name(self) -> str:
        """The format's name for display."""
        return plain(str(self.format))

    @property
    def title(self) -> str:
        """The format's name with its bit width, such as `e3m0 (4 bits)` or `nvfp4 (6.2 bits on average)`."""
        bits, mean = formats.bits(self.format), self.mean_operand_bits
        size = (
            "unknown format" if bits is None else f"{bits} bits" if mean is None else formats.mean_text(mean)
        )
        return (
            f"{self.name} (hybrid: {size}, {self.hybrid} in fp32)" if self.hybrid else f"{self.name} ({size})"
        )

    @property
    def full_name(self) -> str:
        """The name of the case, or else the format with its scaling, such as `e3m0 with APS`."""
        return self.strategy if self.case is not None else f"{self.name} {self.strategy}".rstrip()

    @property
    def aps(self) -> bool:
        """Whether the runs use APS."""
        return bool(self.keys["aps"])

    @property
    def strategy(self) -> str:
        """The label of the group's ladder.

        It is the case's name for a named case, and "" for a recipe, whose name says enough. It is `of WEIGHTS` if the
        axis of bits rounds other tensors than gradients, and otherwise `with APS` or `without APS`. If scaling rules
        vary, they follow in parentheses.
        """
        if self.case is not None:
            return plain(str(self.case))
        if self.axis.key == RECIPE:
            return ""
        if not self.axis.is_of_gradients:
            return f"of {plain(self.axis.what)}"
        if not self.aps:
            return WITHOUT_APS
        rules = [axis_text(value) for key, value in self.keys.items() if is_scaling(key)]
        return f"{WITH_APS} ({', '.join(rules)})" if rules else WITH_APS

    @property
    def case(self) -> Any:
        """The name of the group's case. None if named cases are not compared."""
        value = self.keys.get(CASE) if self.axis.of_cases else None
        return None if value != value else value  # pandas stores NaN for a missing value

    @property
    def is_baseline(self) -> bool:
        """Whether this group is the baseline."""
        name = self.format if self.case is None else str(self.case)
        return self.axis.is_baseline(self.keys, name, is_case=self.case is not None)

    @cached_property
    def mean(self) -> float:
        """The mean of the metric over the seeds. NaN without values."""
        return mean(self.values)

    @property
    def wire_bytes(self) -> float:
        """The bytes that each real worker sends per step."""
        return self.figures["wire_bytes"]

    @property
    def bits_a_parameter(self) -> float:
        """The bit width with which a plain all-reduce would send as many bytes. NaN if unknown.

        This is 8 wire_bytes / parameters / (2 (N - 1) / N) for N workers, because any all-reduce sends at least 2 (N -
        1) / N values per value of the gradient (P. Patarasuk and X. Yuan, JPDC 69, 2009). So fp32 has 32 and e4m3 has
        8. The bytes of scales and of agreeing on scales count, and a message counts once per receiver.
        """
        workers = self.keys.get("world_size")
        if not isinstance(workers, int | float) or not workers > 1:
            return math.nan
        share = 2 * (workers - 1) / workers
        parameters = self.figures["parameters"]
        return 8 * self.wire_bytes / parameters / share if parameters > 0 else math.nan

    @property
    def num_classes(self) -> float:
        """The number of classes. NaN if unknown."""
        return self.figures["num_classes"]

    @property
    def longest_chain(self) -> float:
        """The largest number of rounded additions in series from a gradient to the sum. NaN if unknown."""
        return self.figures["longest_chain"]


def _example_outcomes(run: RunDir) -> ExampleOutcomes | None:
    result = run.result()
    try:
        return None if result is None else read_example_outcomes(run, result)
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class Facet:
    """Groups that are compared with each other. A plot has one panel per facet.

    Attributes:
        keys: The values that distinguish this facet from others, keyed by config key.
        groups: The groups. They usually differ only in format and gradient scaling.
        lent: The baseline if it belongs to another facet, otherwise None. For example, with `search.baseline={format:
            fp32, optim.lr: .1}`, facets of other learning rates have no baseline of their own.
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
        """Whether the facet contains a candidate."""
        return any(not group.is_baseline for group in self.groups)

    @property
    def fp32(self) -> Group | None:
        """The baseline of this facet, of any format and with or without a value. None if there is none."""
        return next((group for group in self.groups if group.is_baseline), self.lent)

    @property
    def baseline(self) -> Group | None:
        """The baseline if it has a value, otherwise None. `Study.baseline_problem` tells if it can be used."""
        found = (group for group in (*self.groups, self.lent) if group is not None and group.is_baseline)
        return next((group for group in found if group.values), None)

    @property
    def all_groups(self) -> list[Group]:
        """All groups, including a baseline that another facet lends."""
        return [*([self.lent] if self.lent is not None else []), *self.groups]

    @cached_property
    def ladders(self) -> dict[str, list[Group]]:
        """The ladders keyed by `Group.strategy`, fewest bits first. Candidates without an ended run are left out."""
        found: dict[str, list[Group]] = {}
        have_ended = [g for g in self.groups if g.values or g.diverged_seeds or g.failures]
        chosen = [group for group in have_ended if not group.is_baseline]
        for group in sorted(chosen, key=lambda group: (not group.aps, formats.order(group.format))):
            found.setdefault(group.strategy, []).append(group)
        return found

    @cached_property
    def strategies(self) -> dict[str, list[Group]]:
        """The ladders without groups that have no value."""
        shown = {name: [group for group in groups if group.values] for name, groups in self.ladders.items()}
        return {name: groups for name, groups in shown.items() if groups}
