"""Elements of a layer in a row, and where they lie in a message."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import Tensor


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of a layer, packed by themselves to `size` bytes, at `byte` of the message."""

    layer: int
    start: int
    stop: int
    size: int
    byte: int = 0

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def of(self, message: Tensor) -> Tensor:
        """The piece's bytes in a (B,) message."""
        return message[self.byte : self.byte + self.size]

    def part(self, start: int, stop: int) -> slice:
        """Where elements [start, stop) of the layer lie in the piece's bytes, of a format without scales; start is a
        multiple of 8."""
        bits = self.size // ceil_div(self.numel, 8)
        return slice((start - self.start) // 8 * bits, ceil_div(stop - self.start, 8) * bits)


def deal(pieces: Iterable[Piece], ranks: int) -> tuple[tuple[Piece, ...], ...]:
    """The pieces of each owner, one after the other in a message to it: the largest is dealt first, each to the owner
    with the least so far."""
    loads = [0] * ranks
    dealt: list[list[Piece]] = [[] for _ in range(ranks)]
    for piece in sorted(pieces, key=lambda piece: -piece.numel):
        owner = loads.index(min(loads))
        loads[owner] += piece.numel
        dealt[owner].append(piece)
    return tuple(tuple(_in_a_row(sorted(of_owner, key=lambda p: (p.layer, p.start)))) for of_owner in dealt)


def _in_a_row(pieces: Iterable[Piece]) -> Iterable[Piece]:
    byte = 0
    for piece in pieces:
        yield replace(piece, byte=byte)
        byte += piece.size
