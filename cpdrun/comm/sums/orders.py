"""Orders of summation: which values are added in which group, level by level, and in what order.

The setting `order=tree` selects the class `Tree`. To add an order, write a subclass of `Order` in this file.

Between two levels, a sum is scaled back to float32 (step 4 of the definition in `rounded_sum.py`). The next level
treats it like the gradient of one worker. With a scaling rule, each group of each level has its own shift, which
depends only on the layer's largest magnitude in that group. A worker may be alone in its group of the first level (the
last worker of an odd number). Its gradient is then rounded with its own shift before it is passed to the next level.

The longest chain of rounded additions determines how much of a small value is lost. In a format with m mantissa bits,
adding a value changes nothing if the partial sum is 2^(m+2) times as large as the value.

Shapes: N workers, n elements of a layer (one parameter tensor).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from custom_fp.accumulator import MOST_DIGITS

from cpdrun.comm.wire.message_layout import ceil_div

AUTO = "auto"
FLAT_UP_TO = 8  # With group_size=auto, up to this many workers are added in one chain.
DEFAULT_WIDTH = 23  # the number of bits that order=aligned keeps
_FLOAT32_MANTISSA_BITS = 23


@dataclass(frozen=True)
class Level:
    """One level of a sum.

    Attributes:
        groups: For each group, the indices of the values that it adds, among the results of the level below.
        marks: For each group, a suffix for the names of layers. The name with the suffix identifies a layer's
            random numbers and stored magnitudes in that group. In the last level, which has only one group,
            the suffix is empty.
        first: Whether this is the first level, which adds the gradients of workers.
    """

    groups: tuple[range, ...]
    marks: tuple[str, ...]
    first: bool

    @property
    def last(self) -> bool:
        """Whether the level has only one group, whose sum is the result."""
        return len(self.groups) == 1

    def is_passed_through(self, j: int) -> bool:
        """Return whether group j has only one sum from the level below, so that this sum is passed on unchanged."""
        return not self.first and len(self.groups[j]) == 1

    def names(self, layers: Sequence[str], j: int) -> list[str]:
        """Return the names of the layers with the suffix of group j appended."""
        return [layer + self.marks[j] for layer in layers]


class Order:
    """The base class of orders of summation. It adds all workers in one chain.

    A subclass must be a frozen dataclass. Its name in lower case is the value of the setting `order`.
    """

    is_defined: ClassVar[bool] = True
    """Whether the order of the additions is defined. It is not if the platform computes the sum."""

    keeps_float32: ClassVar[bool] = True
    """Whether the float32 gradient of a single worker is unchanged by the sum."""

    accumulate_options: ClassVar[Mapping[str, Any]] = {}
    """Options for `custom_fp.accumulate`, in orders that add all values at once and round only the result."""

    @classmethod
    def with_groups(cls, group_size: int | str | None) -> "Order":
        """Return the order with groups of this size.

        Raises:
            ValueError: The order has no groups, but a group size is given.
        """
        if group_size not in (None, AUTO):
            raise ValueError(
                f"group_size={group_size} with order={cls.__name__.lower()}: only order=hierarchical has groups. Leave "
                "group_size out"
            )
        return cls()

    def with_suffix(self, suffix: str) -> "Order":
        """Return the order that the name `order=<name>_<suffix>` selects.

        Raises:
            ValueError: The order takes no suffix.
        """
        raise ValueError(f"order={type(self).__name__.lower()}_{suffix}: this order has no suffix _{suffix}")

    def groups_by_level(self, n_workers: int) -> list[tuple[range, ...]]:
        """Return the groups of each level.

        A group contains the indices of the values that it adds, among the results of the level below. Every index
        belongs to exactly one group. The last level has one group.

        Raises:
            ValueError: The workers cannot be divided in this way.
        """
        return [consecutive(n_workers, n_workers)]

    def mark(self, depth: int, j: int) -> str:
        """Return the suffix of layer names in group j of a level."""
        return f"@level{depth}.{j}"

    def levels(self, n_workers: int) -> tuple[Level, ...]:
        """Return the levels in which N tensors are added."""
        return _levels(self, n_workers)

    def spans(
        self, n_workers: int, numel: int, start: int, stop: int
    ) -> Iterator[tuple[int, int, list[int]]]:
        """Divide the elements [start, stop) of a layer into spans with the same order of addition.

        Args:
            n_workers: The number of workers.
            numel: The number of elements of the whole layer.
            start: The first element.
            stop: The end of the elements.

        Yields:
            The first element of a span, its end, and the indices of the values in the order in which they are added.
            All spans except perhaps the first begin at a multiple of 8.
        """
        yield start, stop, list(range(n_workers))

    def is_one_chain(self, n_workers: int) -> bool:
        """Return whether all values are added one after the other, beginning with worker 0, as in rank order."""
        return len(self.levels(n_workers)) == 1 and not self.accumulate_options

    def longest_chain(self, n_workers: int) -> int | None:
        """Return the largest number of rounded additions that one worker's value passes through, one after the other.

        The result is None if the number is unknown.
        """
        if self.accumulate_options:
            return min(1, n_workers - 1)
        return sum(max(map(len, level.groups)) - 1 for level in self.levels(n_workers))


@lru_cache(maxsize=512)
def _levels(order: Order, n_workers: int) -> tuple[Level, ...]:
    return tuple(
        Level(
            groups,
            tuple(order.mark(depth, j) if len(groups) > 1 else "" for j in range(len(groups))),
            not depth,
        )
        for depth, groups in enumerate(order.groups_by_level(n_workers))
    )


def consecutive(n: int, size: int) -> tuple[range, ...]:
    """Divide n consecutive indices into groups of `size`. The last group may be smaller."""
    return tuple(range(first, min(first + size, n)) for first in range(0, n, size))


@dataclass(frozen=True)
class Rank(Order):
    """The order that adds all workers in one chain: acc = +0; for w in 0..N-1: acc = Q(acc + q_w)."""


@dataclass(frozen=True)
class Hierarchical(Order):
    """The order that adds each group of consecutive workers in rank order, and then the groups' sums in rank order.

    With groups of g workers, the longest chain has (g - 1) + (N/g - 1) additions. With a single group, the result
    equals rank order, bit for bit.

    Attributes:
        group_size: A divisor of N, or "auto". With "auto", up to 8 workers form a single group. More workers are
            divided into groups whose size is the divisor of N nearest the square root of N, which gives the shortest
            chains. A prime N has no such divisor, so its groups have ceil(sqrt N) workers, and the last group is
            smaller (N = 13: 4, 4, 4, 1).
    """

    group_size: int | str

    @classmethod
    def with_groups(cls, group_size: int | str | None) -> Order:
        if group_size != AUTO and (
            not isinstance(group_size, int) or isinstance(group_size, bool) or group_size < 1
        ):
            raise ValueError(
                f"group_size={'null' if group_size is None else group_size}: with order=hierarchical, the value must "
                "be auto or a number of workers that divides world_size"
            )
        return cls(group_size)

    def groups_by_level(self, n_workers: int) -> list[tuple[range, ...]]:
        size = auto_group_size(n_workers) if isinstance(self.group_size, str) else self.group_size
        if self.group_size != AUTO and n_workers % size:
            raise ValueError(
                f"group_size={size} does not divide world_size={n_workers}. Set group_size=auto, or a divisor"
            )
        groups = consecutive(n_workers, size)
        return [groups] if len(groups) == 1 else [groups, consecutive(len(groups), len(groups))]

    def mark(self, depth: int, j: int) -> str:
        """Return the suffix of layer names in group j."""
        return f"@group{j}"


def auto_group_size(n_workers: int) -> int:
    """Return the number of workers per group that `group_size=auto` selects."""
    if n_workers <= FLAT_UP_TO:
        return n_workers
    root = math.sqrt(n_workers)
    divisors = [size for size in range(2, n_workers) if n_workers % size == 0]
    return min(divisors, key=lambda size: abs(size - root)) if divisors else math.ceil(root)


@dataclass(frozen=True)
class Tree(Order):
    """The order that adds pairs of neighbors (0 + 1, 2 + 3, ...), then pairs of these sums, and so on.

    There are ceil(log2 N) levels. If a level has an odd number of values, the last value is passed to the next level.
    """

    def groups_by_level(self, n_workers: int) -> list[tuple[range, ...]]:
        levels = [consecutive(n_workers, 2)]
        while len(levels[-1]) > 1:
            levels.append(consecutive(len(levels[-1]), 2))
        return levels


@dataclass(frozen=True)
class Ring(Order):
    """The order of a ring all-reduce, with a chain of N - 1 additions.

    A layer is divided into N chunks of C = 8 ceil(ceil(n/8) / N) elements. Because C is a multiple of 8, each chunk
    begins at a whole byte in any format. The sum of chunk c starts at worker c+1 and is complete at worker c, so its
    order of addition is c+1, c+2, ..., N-1, 0, ..., c. The last chunks of a small layer are empty.
    """

    def spans(
        self, n_workers: int, numel: int, start: int, stop: int
    ) -> Iterator[tuple[int, int, list[int]]]:
        """Divide elements of a layer into spans at the boundaries of chunks."""
        chunk = 8 * ceil_div(ceil_div(numel, 8), n_workers)
        for c in range(start // chunk, ceil_div(stop, chunk)) if numel else ():
            places = [(c + 1 + i) % n_workers for i in range(n_workers)]
            yield max(start, c * chunk), min(stop, (c + 1) * chunk), places

    def is_one_chain(self, n_workers: int) -> bool:
        """Return False, because each chunk begins at a different worker."""
        return False


@dataclass(frozen=True)
class Exact(Order):
    """The exact sum of all workers' values, rounded once. The order of the workers has no effect.

    An adder with N inputs and enough bits computes this sum. An aggregator in the network computes it if its registers
    can store the whole range of the format and the carries of N additions (see `Aligned`). NVLink's reductions are
    close to this sum, because they can add 16-bit values in float32 (PTX ISA, multimem.ld_reduce with .acc::f32). We
    found no description of their order of addition, nor of the rounding of floating-point sums in SHARP (Graham et al.,
    "Scalable Hierarchical Aggregation Protocol", COMHPC 2016).

    With APS, all N workers share one scale, which reserves log2(N) binades for their sum. In formats with few exponent
    bits, small values are therefore lost before anything is added. `tree` chooses a new scale for each pair. The
    following table shows the mean test accuracy in % of 3 seeds on Digits with 64 workers (fp32: 97.6%):

        cpdrun sweep exp=digits_workers world_size=64 sync.order=rank,hierarchical,tree,exact,aligned_3
            sync.rounding=nearest_even sync.kahan=false

                 rank   hierarchical   tree   exact   aligned_3
        e4m3     97.6       97.7       97.8    97.7      97.5
        e3m2     93.7       97.4       97.6    94.8      94.8
        e3m1     70.4       96.8       97.5    67.4      67.4
        e3m0      6.0       96.7       98.0     6.0       6.0

    Byte counts are those of cpdrun's own exchange, in which values are sent to an owner and back, 2 (N-1)/N times the
    size of the gradient. With a switch that adds, each worker would send its gradient only once.
    """

    accumulate_options: ClassVar[dict[str, str]] = {"order": "exact"}


@dataclass(frozen=True)
class Aligned(Order):
    """A sum of aligned integers, as network switches without floating-point units compute it.

    Let E be the largest exponent of an element's N values. All values are aligned to E, truncated (toward zero) below
    2^(E - width), added as integers, and rounded once. If the range of a format, from its smallest to its largest
    value, has at most width + 1 bits (e4m3: 17 bits), nothing is truncated, and the result equals order=exact. The
    order of the workers has no effect.

    Publications:

        SwitchML  Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation" (NSDI 2021, arXiv
                  1903.06701): workers agree on a power of two for each chunk and send 32-bit integers.
        ATP       Lao et al., "ATP: In-network Aggregation for Multi-tenant Learning" (NSDI 2021): a fixed scale, 32
                  bits.
        FPISA     Yuan et al., "Unlocking the Power of Inline Floating-Point Operations on Programmable Switches" (NSDI
                  2022, arXiv 2112.06095): workers send floating-point values. A switch stores exponent and significand
                  separately, shifts by the difference of exponents, adds, and normalizes the final sum.

    This class models FPISA if all N values arrive at the same time. If they arrive one by one, FPISA uses the largest
    exponent so far, and it shifts in two's complement, which truncates toward minus infinity. The scales of SwitchML
    and ATP apply to many elements, so they are coarser.

    `aligned` means `aligned_23`. A register of 32 bits then has a sign, 7 bits for the carries of up to 128 workers,
    and 24 digits, so the value with the largest exponent keeps all its float32 digits. `aligned_N`, with N from 1 to
    40, keeps N bits below the largest exponent.

    Attributes:
        width: The number of bits that are kept below the largest exponent.
    """

    width: int = DEFAULT_WIDTH

    def with_suffix(self, suffix: str) -> Order:
        """Return the order that keeps `suffix` bits below the largest exponent."""
        if not re.fullmatch(r"[1-9]\d?", suffix) or int(suffix) > MOST_DIGITS:
            raise ValueError(
                f"order=aligned_{suffix}: the value must be aligned, or a number of bits from aligned_1 to "
                f"aligned_{MOST_DIGITS}"
            )
        return Aligned(int(suffix))

    @property
    def accumulate_options(self) -> dict[str, Any]:  # type: ignore[override]  # read-only
        """Options for `custom_fp.accumulate`."""
        return {"order": "aligned", "width": self.width}

    @property
    def keeps_float32(self) -> bool:  # type: ignore[override]  # read-only
        """Whether the float32 gradient of a single worker is unchanged by the sum."""
        return self.width >= _FLOAT32_MANTISSA_BITS

    def groups_by_level(self, n_workers: int) -> list[tuple[range, ...]]:
        if n_workers > 1 << 52 - self.width:
            raise ValueError(
                f"order=aligned_{self.width} supports at most {1 << 52 - self.width} workers, but there are {n_workers}"
            )
        return super().groups_by_level(n_workers)


@dataclass(frozen=True)
class Native(Order):
    """The unknown order of the platform's own float32 all_reduce. It is available only for fp32.

    This all_reduce is fast, but its result may depend on how workers are divided among ranks.
    """

    is_defined = False

    def is_one_chain(self, n_workers: int) -> bool:
        """Return False, because the order is unknown."""
        return False

    def longest_chain(self, n_workers: int) -> None:
        """Return None, because the order is unknown."""
        return


ORDERS: dict[str, type[Order]] = {
    kind.__name__.lower(): kind for kind in sorted(Order.__subclasses__(), key=lambda kind: kind.__name__)
}


def order_named(name: str, group_size: int | str | None = AUTO) -> Order:
    """Return the order with this name, such as "tree" or "aligned_12".

    Raises:
        ValueError: The name is unknown, or the order has no groups of this size.
    """
    kind, _, suffix = str(name).partition("_")
    if kind not in ORDERS or not isinstance(name, str):
        raise ValueError(f"order={name!r}: choose one of {', '.join(ORDERS)}")
    order = ORDERS[kind].with_groups(group_size)
    return order.with_suffix(suffix) if kind != name else order
