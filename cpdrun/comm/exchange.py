"""The same sum between processes: direct reduce-scatter and all-gather of packed k-bit values.

Each rank rounds, packs and sends shard r of each of its workers to rank r (all_to_all); rank r, the owner, unpacks the
N payloads, adds them in the recipe's order, packs the sum and sends it to all (all_gather); everyone, the owner too,
unpacks the same bytes. One worker a rank sends 2 (N-1)/N n k/8 bytes. `layout.py` says which bytes hold what.

The hierarchical order travels the same way and sends as much: the owner adds up each group, then the groups. With a
scaling rule the owners agree on the groups' shifts in between.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.codec import accumulate, pack, quantize_scaled, scale, unpack
from cpdrun.comm.layout import Layout, Piece
from cpdrun.comm.recipe import Recipe
from cpdrun.comm.scaling import Magnitudes, ScalingRule, largest_magnitude

WHOLE_SHARD = 1 << 62


class Exchange:
    """Sums layers over the ranks of a group; keeps its buffers for the next call with the same layers."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.sent_bytes = 0

    def sum_layers(
        self, workers: Sequence[Sequence[Tensor]], names: Sequence[str], recipe: Recipe, rule: ScalingRule
    ) -> tuple[list[Tensor], list[list[int]]]:
        """workers[i][p]: the flat float32 gradient of this rank's i-th worker for layer p. Collective.

        Returns what `emulation.emulate_layers` does, from the gradients of all ranks' workers.
        """
        local, n_workers = len(workers), len(workers) * self.ranks
        layout = Layout(tuple(g.numel() for g in workers[0]), recipe.fmt.bits, self.ranks, WHOLE_SHARD)
        groups = recipe.groups(n_workers) if recipe.order == "hierarchical" else [range(n_workers)]
        shifts = self._agree_on_shifts(workers, names, groups, recipe, rule)
        group_of = {w: j for j, group in enumerate(groups) for w in group}
        device = workers[0][0].device

        outgoing = torch.zeros(self.ranks, local, layout.shard_bytes, dtype=torch.uint8, device=device)
        for i, layers in enumerate(workers):
            shift = shifts[group_of[self.rank * local + i]]
            for owner in range(self.ranks):
                for piece in layout.pieces(owner, 0):
                    q = quantize_scaled(
                        layers[piece.layer][piece.start : piece.stop], shift[piece.layer], recipe
                    )
                    outgoing[owner, i, piece.byte : piece.byte + piece.bytes] = pack(q, recipe)
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing, group=self.group)
        payload_NxB = incoming.view(n_workers, layout.shard_bytes)

        mine = layout.pieces(self.rank, 0)
        if recipe.order == "hierarchical":
            sums, result_shifts = self._sum_groups(
                payload_NxB, mine, layout, shifts, groups, names, recipe, rule
            )
        else:
            sums = [_sum_piece(payload_NxB, piece, layout, range(n_workers), recipe) for piece in mine]
            result_shifts = shifts[0]

        own_sum = torch.zeros(layout.shard_bytes, dtype=torch.uint8, device=device)
        for piece, total in zip(mine, sums, strict=True):
            own_sum[piece.byte : piece.byte + piece.bytes] = pack(total, recipe)
        gathered = torch.empty(self.ranks * layout.shard_bytes, dtype=torch.uint8, device=device)
        dist.all_gather_into_tensor(gathered, own_sum, group=self.group)
        self.sent_bytes += layout.sent_bytes(local)

        results = [torch.empty_like(g) for g in workers[0]]
        for owner, shard in enumerate(gathered.view(self.ranks, layout.shard_bytes)):
            for piece in layout.pieces(owner, 0):
                total = unpack(shard[piece.byte : piece.byte + piece.bytes], piece.stop - piece.start, recipe)
                results[piece.layer][piece.start : piece.stop] = scale(total, -result_shifts[piece.layer])
        return results, shifts

    def native_sum(self, workers: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """The platform's float32 all_reduce of the local sums: an order nobody states. Collective."""
        flat = torch.cat(list(workers[0]))
        for layers in workers[1:]:
            flat += torch.cat(list(layers))
        dist.all_reduce(flat, group=self.group)
        self.sent_bytes += 2 * (self.ranks - 1) * flat.numel() * 4 // self.ranks
        return list(flat.split([g.numel() for g in workers[0]]))

    def _agree_on_shifts(
        self,
        workers: Sequence[Sequence[Tensor]],
        names: Sequence[str],
        groups: Sequence[range],
        recipe: Recipe,
        rule: ScalingRule,
    ) -> list[list[int]]:
        """shifts[j][p] of group j and layer p, from one agreement for all groups."""
        first = self.rank * len(workers)

        def local_magnitudes() -> list[Tensor]:
            rows = []
            for group in groups:
                members = [workers[w - first] for w in group if 0 <= w - first < len(workers)]
                for p in range(len(names)):
                    rows.append(_largest([layers[p] for layers in members], workers[0][p]))
            return rows

        if len(groups) == 1:
            keys = list(names)
        else:
            keys = [f"{name}@group{j}" for j in range(len(groups)) for name in names]
        magnitudes = Magnitudes(local_magnitudes, self.group, self.ranks)
        shifts = rule.shifts(keys, magnitudes, len(groups[0]), recipe.fmt)
        return [shifts[j * len(names) : (j + 1) * len(names)] for j in range(len(groups))]

    def _sum_groups(
        self,
        payload_NxB: Tensor,
        mine: Sequence[Piece],
        layout: Layout,
        shifts: list[list[int]],
        groups: Sequence[range],
        names: Sequence[str],
        recipe: Recipe,
        rule: ScalingRule,
    ) -> tuple[list[Tensor], list[int]]:
        """The owner's second stage: each group's sum as a float32 gradient, then their sum with shifts of its own."""
        group_sums = [
            [
                scale(_sum_piece(payload_NxB, piece, layout, group, recipe), -shifts[j][piece.layer])
                for piece in mine
            ]
            for j, group in enumerate(groups)
        ]

        def local_magnitudes() -> list[Tensor]:
            held: list[list[Tensor]] = [[] for _ in names]
            for sums in group_sums:
                for piece, total in zip(mine, sums, strict=True):
                    held[piece.layer].append(total)
            return [_largest(totals, payload_NxB.new_zeros((), dtype=torch.float32)) for totals in held]

        magnitudes = Magnitudes(local_magnitudes, self.group, self.ranks)
        across = rule.shifts(names, magnitudes, len(groups), recipe.fmt)
        sums = []
        for k, piece in enumerate(mine):
            values = [quantize_scaled(totals[k], across[piece.layer], recipe) for totals in group_sums]
            sums.append(accumulate(values, recipe))
        return sums, across


def _largest(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    """largest_magnitude over several tensors; 0 where there is none."""
    return torch.stack([largest_magnitude(t) for t in tensors]).amax() if tensors else like.new_zeros(())


def _sum_piece(payload_NxB: Tensor, piece: Piece, layout: Layout, workers: range, recipe: Recipe) -> Tensor:
    """Unpacks a piece of each worker's payload and adds them in the recipe's order; float32, scaled as sent."""
    numel = piece.stop - piece.start
    values = [unpack(payload_NxB[w, piece.byte : piece.byte + piece.bytes], numel, recipe) for w in workers]
    total = torch.empty(numel, dtype=torch.float32, device=payload_NxB.device)
    for start, stop, order in recipe.spans(len(workers), layout.numels[piece.layer], piece.start, piece.stop):
        own = slice(start - piece.start, stop - piece.start)
        total[own] = accumulate([values[w][own] for w in order], recipe)
    return total
