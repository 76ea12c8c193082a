"""A rounded sum between processes: a direct reduce-scatter and all-gather of packed k-bit values.

Each rank rounds and packs the gradients of its workers and sends shard r to rank r, its owner. The owner unpacks the N
payloads, adds them in the order of the sum, packs the sum and sends it to all ranks. All ranks, including the owner,
unpack the same bytes. With one worker per rank, each rank sends 2 (N-1)/N n k/8 bytes.
`cpdrun.comm.wire.message_layout` defines the messages.

A shard is sent in segments. Each segment passes through three stages: (A) round, pack, send; (B) receive, add, pack,
send; (C) receive, unpack. The stages of different segments overlap, so that rounding, packing and adding overlap with
communication.

If the sum stays in shards, only the reduce-scatter is performed: the owner unpacks the sum that it packed, and keeps
it. Each rank then sends (N-1)/N n k/8 bytes. Each element has the same bits as in the whole sum.

All orders of summation use the same messages. The order only determines how the owner adds. In an order with several
levels (groups, pairs), the owner adds each group and then the groups' sums. The groups' sums have their own shifts,
which depend on the sums of all groups. So stage B is divided at each level: the sums of a level are kept as float32
gradients until the ranks have agreed on the shifts of the next level.

Shapes: N workers, P ranks, L = N/P workers of this rank, T segments, B bytes of a worker's segment.
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
from cpdrun.comm.sums.magnitudes import largest_magnitude
from cpdrun.comm.sums.orders import Level, Order
from cpdrun.comm.sums.scaling import PrefetchedShifts
from cpdrun.comm.sums.sum import RandomStream
from cpdrun.comm.sums.summation import Layers, Shards, Summation, SumReport
from cpdrun.comm.wire.communicator import checked_group
from cpdrun.comm.wire.lost_ranks import naming_lost_ranks
from cpdrun.comm.wire.message_layout import Layout, PackedSlice, Sharding, Slice
from cpdrun.comm.wire.transport import Transport, transport_for

# The number of values of a segment. Smaller segments need more messages. With larger ones, the stages overlap less.
SEGMENT_VALUES = 512 * 1024
LAG = 2  # the number of segments by which each stage follows the stage before

layout_of = lru_cache(maxsize=512)(Layout)  # DDP needs one layout per bucket.
_transports: WeakKeyDictionary[dist.ProcessGroup, dict[torch.device, Transport]] = WeakKeyDictionary()


def transport_of(group: dist.ProcessGroup | None, device: torch.device) -> Transport:
    """Return the transport of a process group. Sums use its buffers one after the other."""
    of_group = _transports.setdefault(group or checked_group(dist.group.WORLD), {})
    if device not in of_group:
        of_group[device] = transport_for(group, device)
    return of_group[device]


class Exchange:
    """The computation of one sum between ranks, in an order of one level."""

    def __init__(self, summation: Summation, layers: Layers) -> None:
        self.summation, self.layers, self.workers = summation, layers, summation.workers
        self.sum, self.wire = summation.sum, summation.wire
        self.first, *self.above = summation.levels
        self.transport = transport_of(self.workers.group, layers.stacks[0].device)
        self.stays = layers.shards is not None
        ranks, sharding = self.workers.ranks, None
        if layers.shards:
            sharding = _of_one_order(layers.shards, self.sum.ordering, self.workers.world_size, ranks)
        self.layout = layout_of(layers.numels, self.wire.fmt.bits, ranks, SEGMENT_VALUES, sharding)
        if layers.shards:
            owned = layers.shards.sharding.by_rank(ranks)
            self.begins = [part.start for part in owned.owned_by(self.workers.rank, len(layers.names))]
        self.my_pieces = self.layout.pieces[
            self.workers.rank
        ]  # the pieces of each segment of this rank's shard
        self.agreed = 0  # the number of exchanged magnitudes

    def run(self) -> SumReport:
        """Compute the sums. Collective.

        Raises:
            RankLost: Another rank is lost.
        """
        with naming_lost_ranks(self.workers.group):
            self._agree_first()
            self.transport.begin(self.layout, self.workers.share, gather=not self.stays)
            self._add_up()
            self.transport.finish()
        sent = self.layout.scattered_bytes if self.stays else self.layout.sent_bytes
        sent_bytes = sent(self.workers.share)
        agreed = self.agreed + (self.prefetched.agreed if self.prefetched else 0)
        return self.summation.report(self.layers, self.shifts, agreed=agreed, sent_bytes=sent_bytes)

    def _agree_first(self) -> None:
        """Prepare the agreement on the first level's shifts.

        If the order has a single level, the ranks agree on the shifts of a segment later, shortly before they send it.
        """
        summation, nothing = self.summation, self.layers.stacks[0].new_zeros(())

        def local(p: int) -> Tensor:
            mine = range(self.workers.share)
            return _largest([part for i in mine for part in self.layers.parts(i, p)], nothing)

        self.prefetched: PrefetchedShifts | None = PrefetchedShifts(
            summation.shifts,
            self.first,
            self.layers.names,
            local,
            self.sum.fmt,
            summation.agreeing,
            self.layout,
        )
        self.shifts = [self.prefetched.shifts]

    def _add_up(self) -> None:
        (self.result_shifts,) = self.shifts
        self._pipeline(self._send_to_owners, self._add, *self._to_all)

    @property
    def _to_all(self) -> list[Callable[[int], None]]:
        """The last stage, or an empty list if the sum stays in shards."""
        return [] if self.stays else [self._unpack]

    def _pipeline(self, *stages: Callable[[int], None]) -> None:
        pipeline(self.layout.segments, *stages)

    def _agree(self, level: Level, mine: Callable[[range, int], list[Tensor]]) -> list[list[int]]:
        """Return shifts[j][p] for group j of a level and layer p. The ranks agree once on all of them. Collective.

        Args:
            level: The level.
            mine: A function that returns this rank's values of a given group and layer.
        """
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
        if self.prefetched:
            self.prefetched.settle(t)
        for owner in range(self.workers.ranks):
            for i, worker in enumerate(self.workers.local):
                shifts = self.shifts[self.summation.group_of(worker)]
                message = self.transport.outgoing(t, owner, i)
                for piece in self.layout.pieces[owner][t]:
                    source = self.layers.source(i, piece)
                    layer = self.layers.names[piece.layer]
                    stream = self.summation.random_stream(worker, layer, self.layers.key, piece.start)
                    codec.round_and_pack(
                        source, shifts[piece.layer], self.wire, stream, out=piece.of(message)
                    )
        self.transport.send_to_owners(t)
        if self.prefetched:
            self.prefetched.begin()

    def _add(self, t: int) -> None:
        payload_NxB = self.transport.wait_for_workers(t)
        own_sum = self.transport.own_sum(t)
        for piece in self.my_pieces[t]:
            payloads = [piece.of(payload) for payload in payload_NxB]
            out, numel = piece.of(own_sum), self.layout.numels[piece.layer]
            for start, stop, places in self.sum.ordering.spans(len(payloads), numel, piece.start, piece.stop):
                part = piece.part(start, stop)
                stream = self._random_stream(self.first, 0, piece, "sum", start=start)
                self._add_packed([payloads[w][part] for w in places], stop - start, stream, out[part])
        self._pass_on(t)

    def _pass_on(self, t: int) -> None:
        """Send the sum of this rank's segment, or keep it if the sum stays in shards."""
        if not self.stays:
            self.transport.send_to_all(t)
            return
        message = self.transport.own_sum(t)
        for piece in self.my_pieces[t]:
            begin = self.begins[piece.layer]
            self._decode(
                message, piece, self.layers.out[piece.layer][piece.start - begin : piece.stop - begin]
            )

    def _add_packed(
        self, payloads: Sequence[Tensor], numel: int, stream: RandomStream | None, out: Tensor
    ) -> None:
        if not self.summation.unrounded:
            codec.add_packed(payloads, numel, self.sum, stream, out=out)
            return
        values = [custom_fp.unpack(payload, self.wire.fmt, numel) for payload in payloads]
        custom_fp.pack(self.summation.total(values, self.sum, stream), self.wire.fmt, out=out)

    def _unpack(self, t: int) -> None:
        for owner, message in enumerate(self.transport.wait_for_sums(t)):
            for piece in self.layout.pieces[owner][t]:
                self._decode(message, piece, self.layers.out[piece.layer][piece.start : piece.stop])

    def _decode(self, message: Tensor, piece: PackedSlice, out: Tensor) -> None:
        shift = -self.result_shifts[piece.layer]
        custom_fp.unpack(piece.of(message), self.wire.fmt, piece.numel, shift=shift, out=out)

    def _random_stream(
        self, level: Level, j: int, piece: PackedSlice, stage: str, index: int = 0, start: int | None = None
    ) -> RandomStream | None:
        """Return the stream of random numbers for one rounding.

        The stream begins at element `start` of the layer, by default at the first element of the slice.
        """
        layer = self.layers.names[piece.layer] + level.marks[j]
        start = piece.start if start is None else start
        return self.sum.random_stream(*self.layers.key, layer, stage, index, start=start)


def pipeline(segments: int, *stages: Callable[[int], None]) -> None:
    """Run all stages of all segments. Each stage is `LAG` segments behind the previous stage."""
    for i in range(segments + LAG * (len(stages) - 1)):
        for depth, stage in enumerate(stages):
            if 0 <= i - depth * LAG < segments:
                stage(i - depth * LAG)


@lru_cache(maxsize=512)
def _of_one_order(shards: Shards, ordering: Order, n_workers: int, ranks: int) -> Sharding:
    """Divide each rank's slices so that all elements of a slice are added in the same order.

    The resulting slices are packed separately, so they may begin at any element of their layer.
    """
    owned = shards.sharding.by_rank(ranks).slices
    return Sharding(
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
    """Return the largest magnitude of several tensors, or `nothing` if there are none."""
    return torch.stack([largest_magnitude(t) for t in tensors]).amax() if tensors else nothing


class LevelsExchange(Exchange):
    """The computation of one sum between ranks, in an order of several levels."""

    def _agree_first(self) -> None:
        self.prefetched, mine = None, self.workers.local
        self.shifts = self._agree(
            self.first,
            lambda group, p: [
                part for w in group if w in mine for part in self.layers.parts(w - mine.start, p)
            ],
        )

    def _add_up(self) -> None:
        self.kept: list[list[list[Tensor]]] = []  # the float32 sum of each segment, group and slice
        self._pipeline(self._send_to_owners, self._add_workers)
        for level in self.above[:-1]:
            self._add_kept(level, self._agree_on_kept(level))
        (self.result_shifts,) = self._agree_on_kept(self.above[-1])
        self._pipeline(self._add_last, *self._to_all)

    def _agree_on_kept(self, level: Level) -> list[list[int]]:
        """Return the shifts of a level whose groups add the sums in `kept`, which the level below computed."""
        kept: list[list[list[Tensor]]] = [[[] for _ in self.layers.names] for _ in self.kept[0]]
        for pieces, sums_of_groups in zip(self.my_pieces, self.kept, strict=True):
            for of_layers, sums in zip(kept, sums_of_groups, strict=True):
                for piece, total in zip(pieces, sums, strict=True):
                    of_layers[piece.layer].append(total)
        return self._agree(level, lambda group, p: [total for i in group for total in kept[i][p]])

    def _add_workers(self, t: int) -> None:
        """Add the workers of each group of the first level in segment t, and keep the sums as float32 gradients."""
        payload_NxB = self.transport.wait_for_workers(t)
        how, sums_of_groups = self.sum.at(self.first), []
        for j, group in enumerate(self.first.groups):
            sums = []
            for piece in self.my_pieces[t]:
                values = [
                    custom_fp.unpack(piece.of(payload_NxB[w]), self.sum.fmt, piece.numel) for w in group
                ]
                total = codec.accumulate(values, how, self._random_stream(self.first, j, piece, "sum"))
                sums.append(codec.scale(total, -self.shifts[j][piece.layer]))
            sums_of_groups.append(sums)
        self.kept.append(sums_of_groups)

    def _add_kept(self, level: Level, shifts: Sequence[Sequence[int]]) -> None:
        """Replace the kept sums by the sums of the level's groups."""
        for t, below in enumerate(self.kept):
            self.kept[t] = [
                below[group.start]
                if level.is_passed_through(j)
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
        """Return the sum, in the format, of the values that group j of a level adds for slice k of segment t."""
        piece, below = self.my_pieces[t][k], self.kept[t]
        values = [
            codec.quantize_scaled(
                below[i][k], shift, self.sum, self._random_stream(level, j, piece, "worker", place)
            )
            for place, i in enumerate(level.groups[j])
        ]
        return codec.accumulate(values, self.sum.at(level), self._random_stream(level, j, piece, "sum"))
