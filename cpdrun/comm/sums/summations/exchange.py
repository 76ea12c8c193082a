"""The same sum between processes: direct reduce-scatter and all-gather of packed k-bit values.

Each rank rounds, packs and sends shard r of each of its workers to rank r; rank r, the owner, unpacks the N
payloads, adds them in the order of the sum, packs the sum and sends it to all; everyone, the owner too,
unpacks the same bytes. With one worker a rank, each sends 2 (N-1)/N n k/8 bytes. `layout.py` says which
bytes hold what.

A shard travels in segments, through three stages a few segments apart, so that rounding, packing and adding
overlap with the wire: (A) round, pack, send; (B) receive, add, pack, send; (C) receive, unpack.

Every order travels this way: it is the order in which the owner adds. In an order of several levels (groups, pairs)
the owner adds up each group, then the groups' sums: see `levels.py`.

Legend: N workers, P ranks, L = N/P workers of mine, T segments, B bytes of a worker's segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from weakref import WeakKeyDictionary

import custom_fp
import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.sums import codec
from cpdrun.comm.sums.draw import Draw
from cpdrun.comm.sums.magnitudes import largest_magnitude
from cpdrun.comm.sums.orders import Level
from cpdrun.comm.sums.summations.base import Layers, Summation, Summed
from cpdrun.comm.wire.failure import naming_lost_ranks
from cpdrun.comm.wire.layout import Layout
from cpdrun.comm.wire.piece import Piece
from cpdrun.comm.wire.transport import Transport, transport_for

SEGMENT_VALUES = 512 * 1024  # smaller: more messages; larger: a longer start and end without overlap
LAG = 2  # segments between two stages

_layout = lru_cache(maxsize=512)(Layout)  # DDP has a layout for each bucket
_transports: WeakKeyDictionary[dist.ProcessGroup, dict[torch.device, Transport]] = WeakKeyDictionary()


def transport_of(group: dist.ProcessGroup | None, device: torch.device) -> Transport:
    """That of a process group, whose buffers all sums share: one at a time."""
    of_group = _transports.setdefault(group or dist.group.WORLD, {})
    if device not in of_group:
        of_group[device] = transport_for(group, device)
    return of_group[device]


class Exchange:
    """One sum under way, in an order of one level."""

    def __init__(self, summation: Summation, layers: Layers) -> None:
        self.summation, self.layers, self.workers = summation, layers, summation.workers
        self.sum, self.wire = summation.sum, summation.wire
        self.first, *self.above = summation.levels
        self.transport = transport_of(self.workers.group, layers.stacks[0].device)
        self.layout = _layout(layers.numels, self.wire.fmt.bits, self.workers.ranks, SEGMENT_VALUES)
        self.my_pieces = self.layout.pieces[self.workers.rank]  # of each segment
        self.agreed = 0  # magnitudes

    def run(self) -> Summed:
        """Collective. Raises RankLost where another rank is gone."""
        with naming_lost_ranks(self.workers.group):
            first, stacks = self.workers.mine.start, self.layers.stacks
            self.shifts = self._agree(
                self.first, lambda group, p: [stacks[p][w - first] for w in group if w in self.workers.mine]
            )
            self.transport.begin(self.layout, self.workers.share)
            self._add_up()
            self.transport.finish()
        sent_bytes = self.layout.sent_bytes(self.workers.share)
        return self.summation.summed(self.layers, self.shifts, agreed=self.agreed, sent_bytes=sent_bytes)

    def _add_up(self) -> None:
        (self.result_shifts,) = self.shifts
        self._pipeline(self._send_to_owners, self._add, self._unpack)

    def _pipeline(self, *stages: Callable[[int], None]) -> None:
        segments = self.layout.segments
        for i in range(segments + LAG * (len(stages) - 1)):
            for depth, stage in enumerate(stages):
                if 0 <= i - depth * LAG < segments:
                    stage(i - depth * LAG)

    def _agree(self, level: Level, mine: Callable[[range, int], list[Tensor]]) -> list[list[int]]:
        """shifts[j][p] of the level's group j and layer p, from one agreement. mine: what this rank has of them."""
        names, nothing = self.layers.names, self.layers.stacks[0].new_zeros(())
        shifts, agreed = self.summation.shifts.of_level(
            level,
            names,
            lambda: [_largest(mine(group, p), nothing) for group in level.groups for p in range(len(names))],
            self.sum.fmt,
            self.workers,
        )
        self.agreed += agreed
        return shifts

    # ---- stages

    def _send_to_owners(self, t: int) -> None:
        for owner in range(self.workers.ranks):
            for i, worker in enumerate(self.workers.mine):
                shifts = self.shifts[self.summation.group_of(worker)]
                message = self.transport.outgoing(t, owner, i)
                for piece in self.layout.pieces[owner][t]:
                    source = self.layers.stacks[piece.layer][i, piece.start : piece.stop]
                    layer = self.layers.names[piece.layer]
                    draw = self.summation.draw(worker, layer, self.layers.key, piece.start)
                    codec.round_and_pack(source, shifts[piece.layer], self.wire, draw, out=piece.of(message))
        self.transport.send_to_owners(t)

    def _add(self, t: int) -> None:
        payload_NxB = self.transport.wait_for_workers(t)
        own_sum = self.transport.own_sum(t)
        for piece in self.my_pieces[t]:
            payloads = [piece.of(payload) for payload in payload_NxB]
            out, numel = piece.of(own_sum), self.layout.numels[piece.layer]
            for start, stop, places in self.sum.ordering.spans(len(payloads), numel, piece.start, piece.stop):
                part = piece.part(start, stop)
                draw = self._draw(self.first, 0, piece, "sum", start=start)
                self._add_packed([payloads[w][part] for w in places], stop - start, draw, out[part])
        self.transport.send_to_all(t)

    def _add_packed(self, payloads: Sequence[Tensor], numel: int, draw: Draw | None, out: Tensor) -> None:
        if not self.summation.unrounded:
            codec.add_packed(payloads, numel, self.sum, draw, out=out)
            return
        values = [custom_fp.unpack(payload, self.wire.fmt, numel) for payload in payloads]
        custom_fp.pack(self.summation.total(values, self.sum, draw), self.wire.fmt, out=out)

    def _unpack(self, t: int) -> None:
        for owner, message in enumerate(self.transport.wait_for_sums(t)):
            for piece in self.layout.pieces[owner][t]:
                out = self.layers.out[piece.layer][piece.start : piece.stop]
                shift = -self.result_shifts[piece.layer]
                custom_fp.unpack(piece.of(message), self.wire.fmt, piece.numel, shift=shift, out=out)

    def _draw(
        self, level: Level, j: int, piece: Piece, stage: str, index: int = 0, start: int | None = None
    ) -> Draw | None:
        """start: in the layer; None: where the piece begins."""
        layer = self.layers.names[piece.layer] + level.marks[j]
        start = piece.start if start is None else start
        return self.sum.draw(*self.layers.key, layer, stage, index, start=start)


def _largest(tensors: Sequence[Tensor], nothing: Tensor) -> Tensor:
    """largest_magnitude over several tensors; 0 where there is none."""
    return torch.stack([largest_magnitude(t) for t in tensors]).amax() if tensors else nothing
