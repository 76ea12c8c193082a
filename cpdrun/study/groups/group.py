"""What a report compares: groups of runs that differ in their seed alone, and facets of groups that compare."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cpdrun.record import RunDir
from cpdrun.stats.failures import Failure, Runs
from cpdrun.stats.moments import mean
from cpdrun.study.axes import formats
from cpdrun.study.axes.bits_axis import BitsAxis
from cpdrun.study.axes.formats import Choice
from cpdrun.study.axes.method import WITH_APS, WITHOUT_APS, Method
from cpdrun.study.axes.titles import axis_text, axis_title, is_scaling, plain
from cpdrun.study.collect import CASE


@dataclass(frozen=True, eq=False)  # a group is itself: it serves as a key
class Group:
    """The runs that differ in nothing but their seed: one row of the table.

    `keys` holds the values of the axes by name, `by_seed` the metric of each finished run that has it. What the
    records lack is NaN.
    """

    keys: dict[str, Any]
    by_seed: dict[Any, float]
    n_finished: int
    diverged: int
    failed: int = 0
    hybrid: str = ""  # what is exchanged in fp32 whatever the format says; empty: nothing
    figures: dict[str, float] = field(default_factory=dict)
    runs: list[RunDir] = field(default_factory=list)
    diverged_seeds: frozenset[Any] = frozenset()
    repeated: tuple[str, ...] = ()  # runs of a seed that another run of the group has, with another value
    axis: BitsAxis = field(default_factory=BitsAxis)
    failures: dict[Any, Failure] = field(default_factory=dict)  # by seed, of runs without a value
    lengths: dict[Any, int] = field(
        default_factory=dict
    )  # length of each finished script run: epochs, steps or rows
    gave_up_seeds: frozenset[Any] = frozenset()
    fingerprints: dict[Any, str] = field(
        default_factory=dict
    )  # by seed, equal only for runs equal bit for bit
    gave_up: int = 0  # number of runs stopped early for not learning; their last epoch counts
    products: dict[str, Any] | None = None  # of done.json: what a step multiplies, as it was counted
    rounds: Choice | None = None  # of a named case: what it rounds to
    method: Method = field(default_factory=lambda: Method(WITHOUT_APS))  # how its workers exchange

    @property
    def values(self) -> list[float]:
        return list(self.by_seed.values())

    @property
    def ended(self) -> dict[Any, float]:
        """The metric by seed, NaN for a run that diverged, whatever it measured."""
        return {**self.by_seed, **dict.fromkeys(self.diverged_seeds, math.nan)}

    @property
    def outcomes(self) -> Runs:
        """The runs for a comparison (`cpdrun.stats.failures`)."""
        return Runs(self.ended, self.failures, self.lengths, self.gave_up_seeds)

    @property
    def format(self) -> Any:
        """What is compared: of the gradients between workers, or on another axis of bits."""
        return self.keys[self.axis.key]

    @property
    def bits(self) -> int | float | None:
        """Of what is compared; of a case the widest that it rounds to."""
        return formats.bits(self.format if self.rounds is None else self.rounds)

    @property
    def name(self) -> str:
        """The format as it is shown."""
        return plain(str(self.format))

    @property
    def title(self) -> str:
        """Return the format with its size, such as `e3m0 (4 bits)`."""
        bits = formats.bits(self.format)
        size = "unknown format" if bits is None else f"{bits} bits"
        return (
            f"{self.name} (hybrid: {size}, {self.hybrid} in fp32)" if self.hybrid else f"{self.name} ({size})"
        )

    @property
    def full_name(self) -> str:
        """Return the name of a case, otherwise the format and how it is scaled: `e3m0 with APS`."""
        return self.strategy if self.case is not None else f"{self.name} {self.strategy}"

    @property
    def aps(self) -> bool:
        return bool(self.keys["aps"])

    @property
    def strategy(self) -> str:
        """`with APS`, `without APS`, or with the scaling rule's name and settings where those are an axis; of a
        named case its name; of another axis of bits what has them: `of weights`."""
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
        """Its name, where its runs are a named case, and cases are compared; else None."""
        value = self.keys.get(CASE) if self.axis.of_cases else None
        return None if value != value else value  # pandas has NaN where a column has no value

    @property
    def is_baseline(self) -> bool:
        """fp32, or what else was asked for, without APS where that scales it; among cases the one of that name."""
        name = self.format if self.case is None else str(self.case)
        return self.axis.is_baseline(self.keys, name, is_case=self.case is not None)

    @cached_property
    def mean(self) -> float:
        """Return the mean over the seeds; NaN without a value."""
        return mean(self.values)

    @property
    def wire_bytes(self) -> float:
        """A real worker sends per step."""
        return self.figures["wire_bytes"]

    @property
    def bits_a_parameter(self) -> float:
        """Bits a parameter a step: of the format in which a plain all-reduce would send as many bytes.

            8 wire_bytes / parameters / (2 (N - 1) / N)

        Sent, not received, by one of N real workers. Patarasuk and Yuan (JPDC 69, 2009): no all-reduce sends less
        than 2 (N - 1) / N values for each of a gradient's, so that fp32 is 32 and e4m3 8, whatever N is. Scales and
        agreements count, so does what goes to many: a message of k bits a parameter for each of N - 1 others is
        k N / 2. NaN for one worker, and where the record lacks a figure.
        """
        workers = self.keys.get("world_size")
        if not isinstance(workers, int | float) or not workers > 1:
            return math.nan
        share = 2 * (workers - 1) / workers
        parameters = self.figures["parameters"]
        return 8 * self.wire_bytes / parameters / share if parameters > 0 else math.nan

    @property
    def test_samples(self) -> float:
        """How many samples of the test set the metrics are over."""
        return self.figures["test_samples"]

    @property
    def num_classes(self) -> float:
        return self.figures["num_classes"]

    @property
    def longest_chain(self) -> float:
        """Rounded additions in series, at most, from a worker's gradient to the sum."""
        return self.figures["longest_chain"]


@dataclass(frozen=True)
class Facet:
    """The groups that differ in format and scaling alone, so that they compare; one panel of a plot."""

    keys: dict[str, Any]  # world_size and the other axes, those that vary in the study
    groups: list[Group]
    lent: Group | None = (
        None  # the baseline, where it is of another facet: `search.baseline={format: fp32, optim.lr: .1}`
    )

    @property
    def label(self) -> str:
        return ", ".join(f"{axis_title(key)} {axis_text(value)}" for key, value in self.keys.items())

    @property
    def has_cases(self) -> bool:
        return any(group.case is not None for group in self.groups)

    @property
    def has_candidates(self) -> bool:
        return any(not group.is_baseline for group in self.groups)

    @property
    def fp32(self) -> Group | None:
        """The baseline, though it may have no value."""
        return next((group for group in self.groups if group.is_baseline), self.lent)

    @property
    def baseline(self) -> Group | None:
        """fp32 where it has a value; whether it is one to compare with, `Study.baseline_problem` says."""
        found = (group for group in (*self.groups, self.lent) if group is not None and group.is_baseline)
        return next((group for group in found if group.values), None)

    @property
    def all_groups(self) -> list[Group]:
        """With the baseline that is lent."""
        return [*([self.lent] if self.lent is not None else []), *self.groups]

    @cached_property
    def chains(self) -> dict[str, list[Group]]:
        """Return the formats of which a run has ended, by how they are scaled (plain last), fewest bits first."""
        found: dict[str, list[Group]] = {}
        have_ended = [g for g in self.groups if g.values or g.diverged_seeds or g.failures]
        chosen = [group for group in have_ended if not group.is_baseline]
        for group in sorted(chosen, key=lambda group: (not group.aps, formats.order(group.format))):
            found.setdefault(group.strategy, []).append(group)
        return found

    @cached_property
    def strategies(self) -> dict[str, list[Group]]:
        """The same without those that have no value to show."""
        shown = {name: [group for group in groups if group.values] for name, groups in self.chains.items()}
        return {name: groups for name, groups in shown.items() if groups}
