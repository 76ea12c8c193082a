"""An exchange in an order of several levels: the owner adds up each group, then the groups' sums.

These have shifts of their own, for which all of them must be known, so the middle stage of `exchange.py` is cut at each
level: the sums of a level are held as float32 gradients until the next one has agreed on its shifts.
"""

from __future__ import annotations

from collections.abc import Sequence

import custom_fp
from torch import Tensor

from cpdrun.comm.sums import codec
from cpdrun.comm.sums.orders import Level
from cpdrun.comm.sums.summations.exchange import Exchange


class LevelsExchange(Exchange):
    """One sum under way, in an order of several levels."""

    def _agree_first(self) -> None:
        self.ahead, mine = None, self.workers.mine
        self.shifts = self._agree(
            self.first,
            lambda group, p: [
                part for w in group if w in mine for part in self.layers.parts(w - mine.start, p)
            ],
        )

    def _add_up(self) -> None:
        self.held: list[list[list[Tensor]]] = []  # float32 sums: segment, group, piece
        self._pipeline(self._send_to_owners, self._add_workers)
        for level in self.above[:-1]:
            self._add_held(level, self._agree_on_held(level))
        (self.result_shifts,) = self._agree_on_held(self.above[-1])
        self._pipeline(self._add_last, *self._to_all)

    def _agree_on_held(self, level: Level) -> list[list[int]]:
        """For a level whose groups add up what is held of the level below."""
        held: list[list[list[Tensor]]] = [[[] for _ in self.layers.names] for _ in self.held[0]]
        for pieces, sums_of_groups in zip(self.my_pieces, self.held, strict=True):
            for of_layers, sums in zip(held, sums_of_groups, strict=True):
                for piece, total in zip(pieces, sums, strict=True):
                    of_layers[piece.layer].append(total)
        return self._agree(level, lambda group, p: [total for i in group for total in held[i][p]])

    def _add_workers(self, t: int) -> None:
        """The sum of each group of workers as a float32 gradient, kept."""
        payload_NxB = self.transport.wait_for_workers(t)
        how, sums_of_groups = self.sum.at(self.first), []
        for j, group in enumerate(self.first.groups):
            sums = []
            for piece in self.my_pieces[t]:
                values = [
                    custom_fp.unpack(piece.of(payload_NxB[w]), self.sum.fmt, piece.numel) for w in group
                ]
                total = codec.accumulate(values, how, self._draw(self.first, j, piece, "sum"))
                sums.append(codec.scale(total, -self.shifts[j][piece.layer]))
            sums_of_groups.append(sums)
        self.held.append(sums_of_groups)

    def _add_held(self, level: Level, shifts: Sequence[Sequence[int]]) -> None:
        """The sums of the level's groups take the place of those that they add up."""
        for t, below in enumerate(self.held):
            self.held[t] = [
                below[group.start]
                if level.passes_on(j)
                else [
                    codec.scale(self._total(level, j, t, k, shifts[j][piece.layer]), -shifts[j][piece.layer])
                    for k, piece in enumerate(self.my_pieces[t])
                ]
                for j, group in enumerate(level.groups)
            ]

    def _add_last(self, t: int) -> None:
        own_sum = self.transport.own_sum(t)
        for k, piece in enumerate(self.my_pieces[t]):
            total = self._total(self.above[-1], 0, t, k, self.result_shifts[piece.layer])
            custom_fp.pack(total, self.sum.fmt, out=piece.of(own_sum))
        self._pass_on(t)

    def _total(self, level: Level, j: int, t: int, k: int, shift: int) -> Tensor:
        """The sum, in the format, of what the level's group j adds up of a segment's piece k."""
        piece, below = self.my_pieces[t][k], self.held[t]
        values = [
            codec.quantize_scaled(below[i][k], shift, self.sum, self._draw(level, j, piece, "worker", place))
            for place, i in enumerate(level.groups[j])
        ]
        return codec.accumulate(values, self.sum.at(level), self._draw(level, j, piece, "sum"))
