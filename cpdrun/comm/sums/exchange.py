"""The same sum between processes: direct reduce-scatter and all-gather of packed k-bit values.

Each rank rounds, packs and sends shard r of each of its workers to rank r; rank r, the owner, unpacks the N
payloads, adds them in the recipe's order, packs the sum and sends it to all; everyone, the owner too,
unpacks the same bytes. With one worker a rank, each sends 2 (N-1)/N n k/8 bytes. `layout.py` says which
bytes hold what.

A shard travels in segments, through three stages a few segments apart, so that rounding, packing and adding
overlap with the wire: (A) round, pack, send; (B) receive, add, pack, send; (C) receive, unpack.

Every order travels this way: it is the order in which the owner adds. In an order of several levels (groups, pairs)
the owner adds up each group, then the groups' sums; these have shifts of their own, for which all of them must be
known, so stage B is cut at each level.

Legend: N workers, P ranks, L = N/P workers of mine, T segments, B bytes of a worker's segment.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.sums import codec
from cpdrun.comm.sums.recipe import Level, Recipe
from cpdrun.comm.sums.scaling import (
    Magnitudes,
    ScalingRule,
    agreement_bytes,
    largest_magnitude,
    shifts_of_level,
)
from cpdrun.comm.wire.failure import naming_lost_ranks
from cpdrun.comm.wire.layout import Layout, Piece
from cpdrun.comm.wire.transport import Transport, transport_for

SEGMENT_VALUES = 512 * 1024  # smaller: more messages; larger: a longer start and end without overlap
LAG = 2  # segments between two stages

_layout = lru_cache(maxsize=512)(Layout)  # DDP has a layout for each bucket


class Exchange:
    """Sums layers over the ranks of a group; keeps its buffers between calls. One call at a time."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.sent_bytes = 0  # payloads and agreements on shifts
        self.agreed = 0  # magnitudes, over all calls
        self._transports: dict[torch.device, Transport] = {}

    def sum_layers(
        self,
        workers: Sequence[Sequence[Tensor]],
        names: Sequence[str],
        recipe: Recipe,
        rule: ScalingRule,
        *,
        key: tuple = (),
        out: Sequence[Tensor],
    ) -> list[list[int]]:
        """Collective: what `emulation.emulate_layers` gives for the gradients of all ranks' workers.

        workers[i][p]: (n_p,) float32 gradient of this rank's i-th worker for layer p, contiguous; not all
        empty. out[p]: where the sum goes, (n_p,) float32, contiguous; it may be workers[0][p] itself. key:
        of stochastic rounding. Returns the shifts with which the workers' gradients were rounded, one list
        for each group. Raises RankLost where another rank is gone.
        """
        if recipe.order == "native":
            self._native_sum(workers, out)
            return [[0] * len(names)]
        device = workers[0][0].device
        if device not in self._transports:
            self._transports[device] = transport_for(self.group, device)
        with naming_lost_ranks(self.group):
            work = _Sum(self._transports[device], workers, names, recipe, rule, key, out)
            work.run()
        self.sent_bytes += work.layout.sent_bytes(len(workers)) + agreement_bytes(work.agreed, self.ranks)
        self.agreed += work.agreed
        return work.shifts

    def _native_sum(self, workers: Sequence[Sequence[Tensor]], out: Sequence[Tensor]) -> None:
        """The platform's float32 all_reduce of the local sums: an order nobody states."""
        flat = torch.cat(list(workers[0]))
        for layers in workers[1:]:
            flat += torch.cat(list(layers))
        with naming_lost_ranks(self.group):
            dist.all_reduce(flat, group=self.group)
        self.sent_bytes += 2 * (self.ranks - 1) * flat.numel() * 4 // self.ranks
        for target, total in zip(out, flat.split([g.numel() for g in workers[0]]), strict=True):
            target.copy_(total)


class _Sum:
    """One sum under way."""

    def __init__(
        self,
        transport: Transport,
        workers: Sequence[Sequence[Tensor]],
        names: Sequence[str],
        recipe: Recipe,
        rule: ScalingRule,
        key: tuple,
        out: Sequence[Tensor],
    ) -> None:
        self.transport, self.names, self.recipe, self.rule, self.key = transport, names, recipe, rule, key
        self.first_worker, self.workers = transport.rank * len(workers), workers
        self.n_workers = len(workers) * transport.ranks
        numels = tuple(layer.numel() for layer in workers[0])
        self.wire = recipe.wire
        self.layout = _layout(numels, self.wire.fmt.bits, transport.ranks, SEGMENT_VALUES)
        self.agreed = 0
        self.first, *self.above = recipe.levels(self.n_workers)
        self.results = out

    def run(self) -> None:
        self.shifts = self._agree_on_workers()
        self.transport.begin(self.layout, len(self.workers))
        if not self.above:
            self.result_shifts = self.shifts[0]
            self._pipeline(self._send_to_owners, self._add, self._unpack)
        else:
            self.held: list[list[list[Tensor]]] = []  # float32 sums: segment, group, piece
            self._pipeline(self._send_to_owners, self._add_workers)
            for level in self.above[:-1]:
                self._add_held(level, self._agree_on_held(level))
            (self.result_shifts,) = self._agree_on_held(self.above[-1])
            self._pipeline(self._add_last, self._unpack)
        self.transport.finish()

    def _pipeline(self, *stages: Callable[[int], None]) -> None:
        segments = self.layout.segments
        for i in range(segments + LAG * (len(stages) - 1)):
            for depth, stage in enumerate(stages):
                if 0 <= i - depth * LAG < segments:
                    stage(i - depth * LAG)

    # ---- shifts

    def _agree_on_workers(self) -> list[list[int]]:
        """shifts[j][p] of the first level's group j and layer p, from one agreement for all groups."""
        share = range(self.first_worker, self.first_worker + len(self.workers))
        return self._agree(
            self.first,
            lambda group, p: [self.workers[w - share.start][p] for w in group if w in share],
        )

    def _agree_on_held(self, level: Level) -> list[list[int]]:
        """The same for a level above, whose groups add up what is held of the level below."""
        mine = [self.layout.pieces(self.transport.rank, t) for t in range(self.layout.segments)]
        held: list[list[list[Tensor]]] = [[[] for _ in self.names] for _ in self.held[0]]
        for pieces, sums_of_groups in zip(mine, self.held, strict=True):
            for of_layers, sums in zip(held, sums_of_groups, strict=True):
                for piece, total in zip(pieces, sums, strict=True):
                    of_layers[piece.layer].append(total)
        return self._agree(level, lambda group, p: [total for i in group for total in held[i][p]])

    def _agree(self, level: Level, mine: Callable[[range, int], list[Tensor]]) -> list[list[int]]:
        """mine: what this rank has of a group and a layer."""
        nothing = self.workers[0][0].new_zeros(())
        layers = range(len(self.names))
        magnitudes = Magnitudes(
            lambda: [_largest(mine(group, p), nothing) for group in level.groups for p in layers],
            self.transport.group,
            self.transport.ranks,
        )
        shifts = shifts_of_level(self.rule, level, self.names, magnitudes, self.recipe.fmt)
        self.agreed += magnitudes.agreed
        return shifts

    # ---- stages

    def _send_to_owners(self, t: int) -> None:
        for owner in range(self.transport.ranks):
            for i, layers in enumerate(self.workers):
                j, place = self.recipe.place(self.first_worker + i, self.n_workers)
                message = self.transport.outgoing(t, owner, i)
                for piece in self.layout.pieces(owner, t):
                    source = layers[piece.layer][piece.start : piece.stop]
                    shift = self.shifts[j][piece.layer]
                    draw = self._draw(self._name(self.first, j, piece), "worker", place, piece.start)
                    codec.round_and_pack(source, shift, self.wire, draw, out=piece.of(message))
        self.transport.send_to_owners(t)

    def _add(self, t: int) -> None:
        payload_NxB = self.transport.wait_for_workers(t)
        for piece in self.layout.pieces(self.transport.rank, t):
            payloads = [piece.of(payload) for payload in payload_NxB]
            out = piece.of(self.transport.own_sum(t))
            numel = self.layout.numels[piece.layer]
            for start, stop, order in self.recipe.spans(self.n_workers, numel, piece.start, piece.stop):
                part = piece.part(start, stop)
                draw = self._draw(self.names[piece.layer], "sum", 0, start)
                if self.recipe.unrounded:
                    values = [codec.unpack(payloads[w][part], stop - start, self.wire) for w in order]
                    codec.pack(codec.accumulate(values, self.recipe), self.wire, out=out[part])
                    continue
                codec.add_packed(
                    [payloads[w][part] for w in order], stop - start, self.recipe, draw, out=out[part]
                )
        self.transport.send_to_all(t)

    def _add_workers(self, t: int) -> None:
        """The sum of each group of workers as a float32 gradient, kept."""
        payload_NxB = self.transport.wait_for_workers(t)
        sums_of_groups = []
        for j, group in enumerate(self.first.groups):
            sums = []
            for piece in self.layout.pieces(self.transport.rank, t):
                values = [codec.unpack(piece.of(payload_NxB[w]), piece.numel, self.recipe) for w in group]
                draw = self._draw(self._name(self.first, j, piece), "sum", 0, piece.start)
                total = codec.accumulate(values, self.recipe.at(self.first), draw)
                sums.append(codec.scale(total, -self.shifts[j][piece.layer]))
            sums_of_groups.append(sums)
        self.held.append(sums_of_groups)

    def _add_held(self, level: Level, shifts: Sequence[Sequence[int]]) -> None:
        """The sums of the level's groups take the place of those that they add up."""
        for t, below in enumerate(self.held):
            pieces = self.layout.pieces(self.transport.rank, t)
            self.held[t] = [
                below[group.start]
                if level.passes_on(j)
                else [
                    codec.scale(
                        self._total(level, j, below, k, piece, shifts[j][piece.layer]),
                        -shifts[j][piece.layer],
                    )
                    for k, piece in enumerate(pieces)
                ]
                for j, group in enumerate(level.groups)
            ]

    def _add_last(self, t: int) -> None:
        for k, piece in enumerate(self.layout.pieces(self.transport.rank, t)):
            shift = self.result_shifts[piece.layer]
            total = self._total(self.above[-1], 0, self.held[t], k, piece, shift)
            codec.pack(total, self.recipe, out=piece.of(self.transport.own_sum(t)))
        self.transport.send_to_all(t)

    def _total(
        self, level: Level, j: int, below: Sequence[Sequence[Tensor]], k: int, piece: Piece, shift: int
    ) -> Tensor:
        """The sum, in the format, of the k-th piece of what the level's group j adds up."""
        name = self._name(level, j, piece)
        values = [
            codec.quantize_scaled(
                below[i][k], shift, self.recipe, self._draw(name, "worker", place, piece.start)
            )
            for place, i in enumerate(level.groups[j])
        ]
        return codec.accumulate(values, self.recipe.at(level), self._draw(name, "sum", 0, piece.start))

    def _unpack(self, t: int) -> None:
        for owner, message in enumerate(self.transport.wait_for_sums(t)):
            for piece in self.layout.pieces(owner, t):
                out = self.results[piece.layer][piece.start : piece.stop]
                shift = -self.result_shifts[piece.layer]
                codec.unpack(piece.of(message), piece.numel, self.wire, shift, out=out)

    def _name(self, level: Level, j: int, piece: Piece) -> str:
        return self.names[piece.layer] + level.marks[j]

    def _draw(self, layer: str, stage: str, index: int, start: int) -> codec.Draw | None:
        if self.recipe.rounding != "stochastic":
            return None
        return codec.Draw((*self.key, layer, stage, index), start)


def _largest(tensors: Sequence[Tensor], nothing: Tensor) -> Tensor:
    """largest_magnitude over several tensors; 0 where there is none."""
    return torch.stack([largest_magnitude(t) for t in tensors]).amax() if tensors else nothing
