"""How one sum is formed: format, rounding and, since low-precision addition is not associative, the order.

Legend: N workers, n elements of a layer (one parameter tensor).

    rank          acc = +0; for w in 0..N-1: acc = Q(acc + q_w)
    hierarchical  rank order inside each group of `group_size` consecutive workers, each group's sum brought
                  back to float32 (step 4 of the definition); those sums are then added the same way, in group
                  order, as if each came from one worker. With a scaling rule both stages have shifts of their
                  own.
    ring          the order a ring all-reduce produces. A layer is cut in N chunks of C = 8 ceil(ceil(n/8) /
    N)
                  elements (multiples of 8, so that a chunk starts on a byte in any format); chunk c is added
                  in the order c+1, c+2, ..., N-1, 0, ..., c: it leaves worker c+1 and ends, complete, at
                  worker c. The last chunks of a small layer are empty.
    native        the platform's own float32 all_reduce, whose order nobody states: fast, without the
                  guarantee that the split into ranks changes no bit. fp32 only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from custom_fp import Format

FP32 = Format.parse("fp32")
ORDERS = ("rank", "hierarchical", "ring", "native")
ROUNDINGS = ("nearest_even", "stochastic", "toward_zero")
OVERFLOWS = ("infinity", "saturate")


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Recipe:
    """One way to add N tensors in a format. Raises ValueError where the parts do not fit together."""

    fmt: Format
    order: str = "rank"
    group_size: int | None = None
    kahan: bool = False
    rounding: str = "nearest_even"
    overflow: str = "infinity"

    def __post_init__(self) -> None:
        for key, allowed in (("order", ORDERS), ("rounding", ROUNDINGS), ("overflow", OVERFLOWS)):
            if getattr(self, key) not in allowed:
                raise ValueError(f"{key}={getattr(self, key)!r}: choose one of {', '.join(allowed)}")
        if (self.order == "hierarchical") != (self.group_size is not None):
            raise ValueError(
                f"order={self.order} with group_size={self.group_size}: hierarchical needs a group_size, "
                "the other orders take none"
            )
        if self.order == "native" and (self.fmt != FP32 or self.kahan):
            raise ValueError(
                f"order=native leaves the sum to the platform: only fp32 without kahan, not {self.fmt.name}"
            )

    def groups(self, n_workers: int) -> list[range]:
        """The workers of each group: consecutive ones in the hierarchical order, all of them in the others.

        Raises ValueError where group_size does not divide them.
        """
        if self.order != "hierarchical":
            return [range(n_workers)]
        if n_workers % self.group_size:
            raise ValueError(f"group_size={self.group_size} does not divide the {n_workers} workers")
        return [range(first, first + self.group_size) for first in range(0, n_workers, self.group_size)]

    def place(self, worker: int) -> tuple[int, int]:
        """(group, place in it) of a worker."""
        return divmod(worker, self.group_size) if self.order == "hierarchical" else (0, worker)

    def group_names(self, layers: Sequence[str], n_workers: int) -> list[list[str]]:
        """What the layers are called in each group; under their own names the groups' sums are added."""
        if self.order != "hierarchical":
            return [list(layers)]
        return [[f"{layer}@group{j}" for layer in layers] for j in range(len(self.groups(n_workers)))]

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
