"""The same sum between processes: direct reduce-scatter and all-gather of packed k-bit values.

Each rank rounds, packs and sends shard r of each of its workers to rank r; rank r, the owner, unpacks the N
payloads, adds them in the order of the sum, packs the sum and sends it to all; everyone, the owner too,
unpacks the same bytes. With one worker a rank, each sends 2 (N-1)/N n k/8 bytes. `layout.py` says which
bytes hold what.

A shard travels in segments, through three stages a few segments apart, so that rounding, packing and adding
overlap with the wire: (A) round, pack, send; (B) receive, add, pack, send; (C) receive, unpack.

Where the sum stays in shards, that is the reduce-scatter alone: the owner unpacks what it has packed, and keeps it.
Each rank sends (N-1)/N n k/8 bytes then, and an element has the bits that it has in the whole sum.

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
from cpdrun.comm.sums.orders import Level, Order
from cpdrun.comm.sums.summations.ahead import Ahead
from cpdrun.comm.sums.summations.base import Layers, Shards, Summation, Summed
from cpdrun.comm.wire.cut import Cut, Slice
from cpdrun.comm.wire.failure import naming_lost_ranks
from cpdrun.comm.wire.layout import Layout
from cpdrun.comm.wire.piece import Piece
from cpdrun.comm.wire.transport import Transport, transport_for

SEGMENT_VALUES = 512 * 1024  # smaller: more messages; larger: a longer start and end without overlap
LAG = 2  # segments between two stages

layout_of = lru_cache(maxsize=512)(Layout)  # DDP has a layout for each bucket
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
        self.stays = layers.shards is not None
        ranks, cut = self.workers.ranks, None
        if self.stays:
            cut = _of_one_order(layers.shards, self.sum.ordering, self.workers.world_size, ranks)
        self.layout = layout_of(layers.numels, self.wire.fmt.bits, ranks, SEGMENT_VALUES, cut)
        if self.stays:
            owned = layers.shards.cut.of_ranks(ranks)
            self.begins = [part.start for part in owned.of_owner(self.workers.rank, len(layers.names))]
        self.my_pieces = self.layout.pieces[self.workers.rank]  # of each segment
        self.agreed = 0  # magnitudes

    def run(self) -> Summed:
        """Collective. Raises RankLost where another rank is gone."""
        with naming_lost_ranks(self.workers.group):
            self._agree_first()
            self.transport.begin(self.layout, self.workers.share, gather=not self.stays)
            self._add_up()
            self.transport.finish()
        sent = self.layout.scattered_bytes if self.stays else self.layout.sent_bytes
        sent_bytes = sent(self.workers.share)
        agreed = self.agreed + (self.ahead.agreed if self.ahead else 0)
        return self.summation.summed(self.layers, self.shifts, agreed=agreed, sent_bytes=sent_bytes)

    def _agree_first(self) -> None:
        """Of the first level: here of the only one, as the segments come that need them."""
        summation, nothing = self.summation, self.layers.stacks[0].new_zeros(())

        def local(p: int) -> Tensor:
            mine = range(self.workers.share)
            return _largest([part for i in mine for part in self.layers.parts(i, p)], nothing)

        self.ahead: Ahead | None = Ahead(
            summation.shifts,
            self.first,
            self.layers.names,
            local,
            self.sum.fmt,
            summation.agreeing,
            self.layout,
        )
        self.shifts = [self.ahead.shifts]

    def _add_up(self) -> None:
        (self.result_shifts,) = self.shifts
        self._pipeline(self._send_to_owners, self._add, *self._to_all)

    @property
    def _to_all(self) -> list[Callable[[int], None]]:
        """The last stage, where there is one."""
        return [] if self.stays else [self._unpack]

    def _pipeline(self, *stages: Callable[[int], None]) -> None:
        pipeline(self.layout.segments, *stages)

    def _agree(self, level: Level, mine: Callable[[range, int], list[Tensor]]) -> list[list[int]]:
        """shifts[j][p] of the level's group j and layer p, from one agreement. mine: what this rank has of them."""
        names, nothing = self.layers.names, self.layers.stacks[0].new_zeros(())
        shifts, agreed = self.summation.shifts.of_level(
            level,
            names,
            lambda: [_largest(mine(group, p), nothing) for group in level.groups for p in range(len(names))],
            self.sum.fmt,
            self.summation.agreeing,
        )
        self.agreed += agreed
        return shifts

    # ---- stages

    def _send_to_owners(self, t: int) -> None:
        if self.ahead:
            self.ahead.settle(t)
        for owner in range(self.workers.ranks):
            for i, worker in enumerate(self.workers.mine):
                shifts = self.shifts[self.summation.group_of(worker)]
                message = self.transport.outgoing(t, owner, i)
                for piece in self.layout.pieces[owner][t]:
                    source = self.layers.source(i, piece)
                    layer = self.layers.names[piece.layer]
                    draw = self.summation.draw(worker, layer, self.layers.key, piece.start)
                    codec.round_and_pack(source, shifts[piece.layer], self.wire, draw, out=piece.of(message))
        self.transport.send_to_owners(t)
        if self.ahead:
            self.ahead.begin()

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
        self._pass_on(t)

    def _pass_on(self, t: int) -> None:
        """The sum of my segment."""
        if not self.stays:
            self.transport.send_to_all(t)
            return
        message = self.transport.own_sum(t)
        for piece in self.my_pieces[t]:
            begin = self.begins[piece.layer]
            self._decode(
                message, piece, self.layers.out[piece.layer][piece.start - begin : piece.stop - begin]
            )

    def _add_packed(self, payloads: Sequence[Tensor], numel: int, draw: Draw | None, out: Tensor) -> None:
        if not self.summation.unrounded:
            codec.add_packed(payloads, numel, self.sum, draw, out=out)
            return
        values = [custom_fp.unpack(payload, self.wire.fmt, numel) for payload in payloads]
        custom_fp.pack(self.summation.total(values, self.sum, draw), self.wire.fmt, out=out)

    def _unpack(self, t: int) -> None:
        for owner, message in enumerate(self.transport.wait_for_sums(t)):
            for piece in self.layout.pieces[owner][t]:
                self._decode(message, piece, self.layers.out[piece.layer][piece.start : piece.stop])

    def _decode(self, message: Tensor, piece: Piece, out: Tensor) -> None:
        shift = -self.result_shifts[piece.layer]
        custom_fp.unpack(piece.of(message), self.wire.fmt, piece.numel, shift=shift, out=out)

    def _draw(
        self, level: Level, j: int, piece: Piece, stage: str, index: int = 0, start: int | None = None
    ) -> Draw | None:
        """start: in the layer; None: where the piece begins."""
        layer = self.layers.names[piece.layer] + level.marks[j]
        start = piece.start if start is None else start
        return self.sum.draw(*self.layers.key, layer, stage, index, start=start)


def pipeline(segments: int, *stages: Callable[[int], None]) -> None:
    """Each stage of every segment, in their order, a stage `LAG` segments after the one before."""
    for i in range(segments + LAG * (len(stages) - 1)):
        for depth, stage in enumerate(stages):
            if 0 <= i - depth * LAG < segments:
                stage(i - depth * LAG)


@lru_cache(maxsize=512)
def _of_one_order(shards: Shards, ordering: Order, n_workers: int, ranks: int) -> Cut:
    """What each rank owns, in slices of which all elements are added in one order: a piece need not begin on a byte of
    its layer then, for nothing cuts it."""
    owned = shards.cut.of_ranks(ranks).slices
    return Cut(
        tuple(
            tuple(
                Slice(layer, first, end)
                for layer, start, stop in of_rank
                for first, end, _ in ordering.spans(n_workers, shards.numels[layer], start, stop)
            )
            for of_rank in owned
        )
    )


def _largest(tensors: Sequence[Tensor], nothing: Tensor) -> Tensor:
    """largest_magnitude over several tensors; 0 where there is none."""
    return torch.stack([largest_magnitude(t) for t in tensors]).amax() if tensors else nothing
