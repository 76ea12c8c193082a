"""How one sum is formed: format, rounding and, since low-precision addition is not associative, the order.

Legend: N workers, n elements of a layer (one parameter tensor).

    rank          acc = +0; for w in 0..N-1: acc = Q(acc + q_w)
    hierarchical  rank order inside each group of `group_size` consecutive workers; the groups' sums are then added
                  the same way, in group order. One group of all workers is rank, bit for bit.
    tree          pairs of neighbours (0 + 1, 2 + 3 ...), then pairs of those, and so on: ceil(log2 N) levels. Of an
                  odd number the last one is passed up to the next level as it is.
    ring          the order a ring all-reduce produces. A layer is cut in N chunks of C = 8 ceil(ceil(n/8) / N)
                  elements (multiples of 8, so that a chunk starts on a byte in any format); chunk c is added
                  in the order c+1, c+2, ..., N-1, 0, ..., c: it leaves worker c+1 and ends, complete, at
                  worker c. The last chunks of a small layer are empty.
    native        the platform's own float32 all_reduce, whose order nobody states: fast, without the
                  guarantee that the split into ranks changes no bit. fp32 only.

Between two levels of hierarchical and tree a sum is brought back to float32 (step 4 of the definition in
`emulation.py`) and goes on as if it were one worker's gradient: with a scaling rule each group of each level has a
shift of its own, a function of the layer's magnitude in that group alone. What travels is rounded, so that a worker
whose first group is itself alone (the last of an odd number) is rounded with its own shift before it is passed up.

`group_size: auto` is all of up to 8 workers, beyond that the divisor of N nearest its square root, for the shortest
chains. A prime N has no such divisor: it takes groups of ceil(sqrt N), the last of them smaller (13: 4, 4, 4, 1).

`compat=cpd` adds as the code of APS's authors does (see `compat.py`).

What decides how much of a small value survives is the longest chain of rounded additions (`longest_chain`): once a
partial sum is 2^(m+2) times as large as a value, in a format of m mantissa bits, adding that value changes nothing.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from custom_fp import Format

from cpdrun.comm.wire.layout import ceil_div

FP32 = Format.parse("fp32")
ORDERS = ("rank", "hierarchical", "ring", "native", "tree")
ROUNDINGS = ("nearest_even", "stochastic", "toward_zero")
OVERFLOWS = ("infinity", "saturate")
COMPATS = (None, "cpd")

AUTO = "auto"
FLAT_UP_TO = 8  # workers that group_size=auto adds in one chain


@dataclass(frozen=True)
class Level:
    """One level of a sum: groups[j] are the places, in the level below, of what group j adds up.

    marks[j] follows a layer's name where something belongs to the layer in that group: random numbers, what a
    scaling rule remembers. The last level's only group has none.
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


@dataclass(frozen=True)
class Recipe:
    """One way to add N tensors in a format. Raises ValueError where the parts do not fit together.

    group_size is of the hierarchical order: a divisor of N or "auto". The other orders take "auto" or None, and
    have no use for it.
    """

    fmt: Format
    order: str = "rank"
    group_size: int | str | None = AUTO
    kahan: bool = False
    rounding: str = "nearest_even"
    overflow: str = "infinity"
    compat: str | None = None
    unrounded: bool = False  # of compat: gradients are added as they are, and travel in float32

    def __post_init__(self) -> None:
        for key, allowed in (("order", ORDERS), ("rounding", ROUNDINGS), ("overflow", OVERFLOWS)):
            if getattr(self, key) not in allowed:
                raise ValueError(f"{key}={getattr(self, key)!r}: choose one of {', '.join(allowed)}")
        self._check_group_size()
        self._check_compat()
        if self.order == "native" and (self.fmt != FP32 or self.kahan):
            raise ValueError(
                f"order=native leaves the sum to the platform: only fp32 without kahan, not {self.fmt.name}"
            )

    def _check_group_size(self) -> None:
        size, given = self.group_size, "null" if self.group_size is None else self.group_size
        if size is None and self.order != "hierarchical":
            object.__setattr__(self, "group_size", AUTO)  # one spelling of what plays no part
            return
        if size == AUTO:
            return
        if self.order != "hierarchical":
            raise ValueError(
                f"group_size={given} with order={self.order}: only order=hierarchical has groups"
            )
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(
                f"group_size={given}: order=hierarchical takes auto, or a number of workers that divides world_size"
            )

    def _check_compat(self) -> None:
        if self.compat not in COMPATS:
            raise ValueError(f"compat={self.compat}: choose cpd or null")
        for key, theirs in (
            ("order", ("rank", "hierarchical")),
            ("rounding", ("nearest_even",)),
            ("overflow", ("infinity",)),
        ):
            if self.compat and getattr(self, key) not in theirs:
                raise ValueError(
                    f"{key}={getattr(self, key)} with compat={self.compat}: its code has only {' and '.join(theirs)}"
                )

    @property
    def wire(self) -> "Recipe":
        """How values are encoded that travel."""
        return Recipe(FP32) if self.unrounded else self

    def at(self, level: "Level") -> "Recipe":
        """How a level of the sum adds."""
        plain = self.compat == "cpd" and self.kahan and not level.last
        return replace(self, kahan=False) if plain else self

    def for_workers(self, n_workers: int) -> "Recipe":
        """The same sum of N tensors: order=rank where one group holds them all.

        Raises ValueError where group_size does not divide them.
        """
        one_chain = self.order in ("hierarchical", "tree") and len(self.levels(n_workers)) == 1
        return replace(self, order="rank", group_size=AUTO) if one_chain else self

    def levels(self, n_workers: int) -> tuple[Level, ...]:
        """The sum of N tensors level by level; the last one has one group. One level in rank and ring order.

        Raises ValueError where group_size does not divide them.
        """
        return _levels(self.order, self.group_size, n_workers)

    def place(self, worker: int, n_workers: int) -> tuple[int, int]:
        """(group, place in it) of a worker in the first level."""
        groups = self.levels(n_workers)[0].groups
        return divmod(worker, len(groups[0]))

    def longest_chain(self, n_workers: int) -> int | None:
        """The most rounded additions in series that a worker's value may pass; None where nobody knows.

        N - 1 in rank and ring order, ceil(log2 N) in a tree, (g - 1) + (N/g - 1) in groups of g.
        """
        if self.order == "native":
            return None
        return sum(max(len(group) for group in level.groups) - 1 for level in self.levels(n_workers))

    def spans(
        self, n_workers: int, numel: int, start: int, stop: int
    ) -> Iterator[tuple[int, int, list[int]]]:
        """Cuts elements [start, stop) of a layer of `numel` elements where the order of addition changes.

        Yields (first element, end, the workers in the order they are added). Cuts lie on multiples of 8.
        """
        if self.order != "ring":
            yield start, stop, list(range(n_workers))
            return
        chunk = 8 * ceil_div(ceil_div(numel, 8), n_workers)
        for c in range(start // chunk, ceil_div(stop, chunk)) if numel else ():
            order = [(c + 1 + i) % n_workers for i in range(n_workers)]
            yield max(start, c * chunk), min(stop, (c + 1) * chunk), order


def auto_group_size(n_workers: int) -> int:
    """Workers a group of `group_size: auto`; the last group of a prime number of more than 8 is smaller."""
    if n_workers <= FLAT_UP_TO:
        return n_workers
    root = math.sqrt(n_workers)
    divisors = [size for size in range(2, n_workers) if n_workers % size == 0]
    return min(divisors, key=lambda size: abs(size - root)) if divisors else math.ceil(root)


@lru_cache(maxsize=512)
def _levels(order: str, group_size: int | str | None, n_workers: int) -> tuple[Level, ...]:
    if order == "hierarchical":
        size = auto_group_size(n_workers) if group_size == AUTO else group_size
        if group_size != AUTO and n_workers % size:
            raise ValueError(f"group_size={size} does not divide the {n_workers} workers")
        cuts = [_consecutive(n_workers, size)]
        if len(cuts[0]) > 1:
            cuts.append(_consecutive(len(cuts[0]), len(cuts[0])))
    elif order == "tree":
        cuts = [_consecutive(n_workers, 2)]
        while len(cuts[-1]) > 1:
            cuts.append(_consecutive(len(cuts[-1]), 2))
    else:
        cuts = [_consecutive(n_workers, n_workers)]
    return tuple(
        Level(groups, _marks(order, depth, len(groups)), first=depth == 0)
        for depth, groups in enumerate(cuts)
    )


def _consecutive(n: int, size: int) -> tuple[range, ...]:
    return tuple(range(first, min(first + size, n)) for first in range(0, n, size))


def _marks(order: str, depth: int, groups: int) -> tuple[str, ...]:
    if groups == 1:
        return ("",)
    return tuple(f"@group{j}" if order == "hierarchical" else f"@level{depth}.{j}" for j in range(groups))
