"""Orders of summation: which values make up which partial sum, level by level, and in what order they are added.

`order=tree` selects the class `Tree`. To add an order, write a subclass of `Order` in this file.

Between two levels a sum is brought back to float32 (step 4 of the definition in `rounded_sum.py`) and continues as if
it were the gradient of one worker. With a scaling rule, each group of each level has its own shift, which depends only
on the layer's largest magnitude in that group. If the first group of a worker has no other member (the last worker of
an odd number), the worker's gradient is rounded with its own shift before it is passed up.

The longest chain of rounded additions decides how much of a small value survives. In a format with m mantissa bits,
adding a value changes nothing once the partial sum is 2^(m+2) times as large as the value.

Legend: N workers, n elements of a layer (one parameter tensor).
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
DEFAULT_WIDTH = 23  # of order=aligned
_FLOAT32_MANTISSA_BITS = 23


@dataclass(frozen=True)
class Level:
    """One level of a sum.

    Attributes:
        groups: For each group, the positions in the level below of the values that the group adds.
        marks: For each group, a suffix for layer names. It identifies what belongs to the layer in that group, such as
            random numbers and remembered magnitudes. The only group of the last level has an empty suffix.
        first: Whether the level adds the gradients of workers.
    """

    groups: tuple[range, ...]
    marks: tuple[str, ...]
    first: bool

    @property
    def last(self) -> bool:
        """Whether the level has only one group, whose sum is the result."""
        return len(self.groups) == 1

    def is_passed_through(self, j: int) -> bool:
        """Return whether group j is a single sum of the level below, which is passed up unchanged."""
        return not self.first and len(self.groups[j]) == 1

    def names(self, layers: Sequence[str], j: int) -> list[str]:
        """Return the layers' names in group j."""
        return [layer + self.marks[j] for layer in layers]


class Order:
    """An order of summation. This base class describes one chain of all workers.

    A subclass is a frozen dataclass. Its name in lower case is the value of the setting `order`.
    """

    is_defined: ClassVar[bool] = True
    """Whether the order is known. It is not if the sum is left to the platform."""

    keeps_float32: ClassVar[bool] = True
    """Whether the float32 gradient of a single worker is unchanged by the sum."""

    accumulate_options: ClassVar[Mapping[str, Any]] = {}
    """Options for `custom_fp.accumulate` of orders that add all values at once and round once."""

    @classmethod
    def with_groups(cls, group_size: int | str | None) -> "Order":
        """Return the order with groups of this size.

        Raises:
            ValueError: The order has no groups, but a group size is given.
        """
        if group_size not in (None, AUTO):
            raise ValueError(
                f"group_size={group_size} with order={cls.__name__.lower()}: only order=hierarchical has groups"
            )
        return cls()

    def with_suffix(self, suffix: str) -> "Order":
        """Return the order that the name `order=<name>_<suffix>` selects.

        Raises:
            ValueError: The order takes no suffix.
        """
        raise ValueError(f"order={type(self).__name__.lower()}_{suffix}: this order takes no number")

    def groups_by_level(self, n_workers: int) -> list[tuple[range, ...]]:
        """Return the groups of each level.

        A group contains positions in the level below. Every position belongs to one group. The last level has one
        group.

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
            The first element of a span, its end, and the positions of the values in the order in which they are added.
            Spans begin at multiples of 8, except perhaps the first.
        """
        yield start, stop, list(range(n_workers))

    def is_one_chain(self, n_workers: int) -> bool:
        """Return whether all values are added one after the other, from worker 0 on, as in rank order."""
        return len(self.levels(n_workers)) == 1 and not self.accumulate_options

    def longest_chain(self, n_workers: int) -> int | None:
        """Return the largest number of rounded additions in series that a worker's value passes, or None if unknown."""
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
    """Return n positions in groups of `size`. The last group may be smaller."""
    return tuple(range(first, min(first + size, n)) for first in range(0, n, size))


@dataclass(frozen=True)
class Rank(Order):
    """One chain of N - 1 additions: acc = +0; for w in 0..N-1: acc = Q(acc + q_w)."""


@dataclass(frozen=True)
class Hierarchical(Order):
    """Rank order inside each group of consecutive workers; then the groups' sums are added in rank order.

    Groups of g workers give a chain of (g - 1) + (N/g - 1) additions. One group of all workers is the rank order, bit
    for bit.

    Attributes:
        group_size: A divisor of N, or "auto". Automatic groups contain all of up to 8 workers. Beyond that, their size
            is the divisor of N nearest its square root, which gives the shortest chains. A prime N has no such divisor,
            so its groups have ceil(sqrt N) workers, and the last group is smaller (13: 4, 4, 4, 1).
    """

    group_size: int | str

    @classmethod
    def with_groups(cls, group_size: int | str | None) -> Order:
        if group_size != AUTO and (
            not isinstance(group_size, int) or isinstance(group_size, bool) or group_size < 1
        ):
            raise ValueError(
                f"group_size={'null' if group_size is None else group_size}: order=hierarchical takes auto, or a "
                "number of workers that divides world_size"
            )
        return cls(group_size)

    def groups_by_level(self, n_workers: int) -> list[tuple[range, ...]]:
        size = auto_group_size(n_workers) if isinstance(self.group_size, str) else self.group_size
        if self.group_size != AUTO and n_workers % size:
            raise ValueError(f"group_size={size} does not divide the {n_workers} workers")
        groups = consecutive(n_workers, size)
        return [groups] if len(groups) == 1 else [groups, consecutive(len(groups), len(groups))]

    def mark(self, depth: int, j: int) -> str:
        """Return the suffix of layer names in group j."""
        return f"@group{j}"


def auto_group_size(n_workers: int) -> int:
    """Return the size of the groups that `group_size=auto` selects."""
    if n_workers <= FLAT_UP_TO:
        return n_workers
    root = math.sqrt(n_workers)
    divisors = [size for size in range(2, n_workers) if n_workers % size == 0]
    return min(divisors, key=lambda size: abs(size - root)) if divisors else math.ceil(root)


@dataclass(frozen=True)
class Tree(Order):
    """Pairs of neighbors (0 + 1, 2 + 3, ...), then pairs of those, and so on: ceil(log2 N) levels.

    If a level has an odd number of values, the last one is passed up to the next level.
    """

    def groups_by_level(self, n_workers: int) -> list[tuple[range, ...]]:
        levels = [consecutive(n_workers, 2)]
        while len(levels[-1]) > 1:
            levels.append(consecutive(len(levels[-1]), 2))
        return levels


@dataclass(frozen=True)
class Ring(Order):
    """The order of a ring all-reduce, with a chain of N - 1 additions.

    A layer is divided into N chunks of C = 8 ceil(ceil(n/8) / N) elements. Because C is a multiple of 8, a chunk begins
    at a byte in any format. Chunk c leaves worker c+1 and is complete at worker c, so its order of addition is c+1,
    c+2, ..., N-1, 0, ..., c. The last chunks of a small layer are empty.
    """

    def spans(
        self, n_workers: int, numel: int, start: int, stop: int
    ) -> Iterator[tuple[int, int, list[int]]]:
        """Divide elements of a layer at the ends of chunks."""
        chunk = 8 * ceil_div(ceil_div(numel, 8), n_workers)
        for c in range(start // chunk, ceil_div(stop, chunk)) if numel else ():
            places = [(c + 1 + i) % n_workers for i in range(n_workers)]
            yield max(start, c * chunk), min(stop, (c + 1) * chunk), places

    def is_one_chain(self, n_workers: int) -> bool:
        """Return False, because each chunk begins at another worker."""
        return False


@dataclass(frozen=True)
class Exact(Order):
    """The exact sum of all workers' values, rounded once. The order of the workers has no effect.

    This is the result of an adder with N inputs and enough bits. An aggregator in the network computes it if its
    registers hold the whole range of the format and the bits of N carries (see `Aligned`). NVLink's reductions are
    close to it: they can add 16-bit values in float32 (PTX ISA, multimem.ld_reduce with .acc::f32). We found no
    description of their order of addition, nor of the rounding of floating-point sums in SHARP (Graham et al.,
    "Scalable Hierarchical Aggregation Protocol", COMHPC 2016).

    With APS, all N workers share one scale, which reserves log2(N) binades for their sum. In formats with few exponent
    bits, small values are therefore lost before anything is added. `tree` chooses a new scale for each pair. Digits, 64
    workers, mean test accuracy of 3 seeds (fp32: 97.6 %):

        cpdrun sweep exp=digits_workers world_size=64 sync.order=rank,hierarchical,tree,exact,aligned_3
            sync.rounding=nearest_even sync.kahan=false

                 rank   hierarchical   tree   exact   aligned_3
        e4m3     97.6       97.7       97.8    97.7      97.5
        e3m2     93.7       97.4       97.6    94.8      94.8
        e3m1     70.4       96.8       97.5    67.4      67.4
        e3m0      6.0       96.7       98.0     6.0       6.0

    Bytes are counted as cpdrun sends them, to an owner and back. A switch would need 1 / (2 (N-1)/N) of that.
    """

    accumulate_options: ClassVar[dict[str, str]] = {"order": "exact"}


@dataclass(frozen=True)
class Aligned(Order):
    """A sum of integers, as in the adders of network switches, which have no floating-point units.

    Let E be the largest exponent of an element's N values. All values are aligned to E, truncated (toward zero) below
    2^(E - width), added as integers, and rounded once. If the range of a format, from its smallest to its largest
    value, has at most width + 1 bits, nothing is truncated (e4m3: 17), and the result equals order=exact. The order of
    the workers has no effect.

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

    `aligned` is `aligned_23`. A register of 32 bits then has a sign, 7 bits for the carries of up to 128 workers, and
    24 digits, so float32 values are unchanged. `aligned_N`, with N from 1 to 40, keeps N bits.

    Attributes:
        width: The bits that are kept below the largest exponent.
    """

    width: int = DEFAULT_WIDTH

    def with_suffix(self, suffix: str) -> Order:
        """Return the order that keeps `suffix` bits."""
        if not re.fullmatch(r"[1-9]\d?", suffix) or int(suffix) > MOST_DIGITS:
            raise ValueError(
                f"order=aligned_{suffix}: take aligned, or a number of bits from aligned_1 to aligned_{MOST_DIGITS}"
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
                f"order=aligned_{self.width} adds up to {1 << 52 - self.width} workers, not {n_workers}"
            )
        return super().groups_by_level(n_workers)


@dataclass(frozen=True)
class Native(Order):
    """The platform's own float32 all_reduce, whose order of addition is unknown. Only for fp32.

    It is fast, but the result may depend on how workers are divided among ranks.
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
