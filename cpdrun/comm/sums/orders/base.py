"""What an order of summation says: which values make up which sum, level by level, and in what order.

Between two levels a sum is brought back to float32 (step 4 of the definition in `summations/rounded.py`) and goes on
as if it were one worker's gradient: with a scaling rule each group of each level has a shift of its own, a function of
the layer's magnitude in that group alone. What travels is rounded, so that a worker whose first group is itself alone
(the last of an odd number) is rounded with its own shift before it is passed up.

What decides how much of a small value survives is the longest chain of rounded additions: once a partial sum is 2^(m+2)
times as large as a value, in a format of m mantissa bits, adding that value changes nothing.

Legend: N workers, n elements of a layer (one parameter tensor).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

AUTO = "auto"


@dataclass(frozen=True)
class Level:
    """One level of a sum: groups[j] are the places, in the level below, of what group j adds up.

    marks[j] follows a layer's name where something belongs to the layer in that group: random numbers, what is
    remembered of its magnitudes. The last level's only group has none.
    """

    groups: tuple[range, ...]
    marks: tuple[str, ...]
    first: bool

    @property
    def last(self) -> bool:
        return len(self.groups) == 1

    def passes_on(self, j: int) -> bool:
        """Whether group j is a single sum of the level below, which goes up as it is."""
        return not self.first and len(self.groups[j]) == 1

    def names(self, layers: Sequence[str], j: int) -> list[str]:
        return [layer + self.marks[j] for layer in layers]


class Order:
    """One chain of all workers, where a subclass says nothing else. Each is a frozen dataclass in its own file."""

    is_stated: ClassVar[bool] = True  # False: it is left to the platform, and nobody knows it
    keeps_float32: ClassVar[bool] = True  # whether a single worker's float32 comes out as it is
    adding: ClassVar[Mapping[str, Any]] = {}
    """What custom_fp.accumulate is told where all workers' values are added at once, and rounded once."""

    @classmethod
    def of(cls, group_size: int | str | None) -> "Order":
        """Raises ValueError for a group size, unless the order has groups to choose."""
        if group_size not in (None, AUTO):
            raise ValueError(
                f"group_size={group_size} with order={cls.__name__.lower()}: only order=hierarchical has groups"
            )
        return cls()

    def with_suffix(self, suffix: str) -> "Order":
        """That of `order=name_suffix`. Raises ValueError, unless the order has such names."""
        raise ValueError(f"order={type(self).__name__.lower()}_{suffix}: it has no numbers")

    def cuts(self, n_workers: int) -> list[tuple[range, ...]]:
        """The groups of each level: places in the level below, every one once. The last level has one group.

        Raises ValueError where the workers cannot be cut so.
        """
        return [consecutive(n_workers, n_workers)]

    def mark(self, depth: int, j: int) -> str:
        return f"@level{depth}.{j}"

    def levels(self, n_workers: int) -> tuple[Level, ...]:
        """The sum of N tensors level by level."""
        return _levels(self, n_workers)

    def spans(
        self, n_workers: int, numel: int, start: int, stop: int
    ) -> Iterator[tuple[int, int, list[int]]]:
        """Cuts elements [start, stop) of a layer of `numel` elements where the order of addition changes.

        Yields (first element, end, the places in the order they are added). Cuts lie on multiples of 8.
        """
        yield start, stop, list(range(n_workers))

    def is_one_chain(self, n_workers: int) -> bool:
        """Whether all are added one after the other, from worker 0 on, as in rank order."""
        return len(self.levels(n_workers)) == 1 and not self.adding

    def longest_chain(self, n_workers: int) -> int | None:
        """The most rounded additions in series that a worker's value may pass; None where nobody knows."""
        if self.adding:
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
        for depth, groups in enumerate(order.cuts(n_workers))
    )


def consecutive(n: int, size: int) -> tuple[range, ...]:
    """n places in groups of `size`, the last one perhaps smaller."""
    return tuple(range(first, min(first + size, n)) for first in range(0, n, size))
