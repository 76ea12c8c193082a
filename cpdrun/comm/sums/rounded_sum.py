"""Sums in which every partial sum is rounded to the format.

The following steps define a low-precision sum of gradients. For each layer (one parameter tensor of n elements), with
the gradients g_w of N workers:

    1. shift = rule(max|g|)            one power of two, agreed on by all workers (`scaling.py`)
    2. q_w = Q(g_w * 2^shift)          one rounding of the exact product
    3. s = accumulate(q_0 .. q_{N-1})  each partial sum is rounded to the format, in the order of `orders.py`
    4. result = s * 2^-shift           float32, rounded once (exact unless it leaves float32's range)

NaN stays NaN if the format has NaN. inf, overflow, ties, subnormals and -0 are treated as in `custom_fp.quantize` and
`custom_fp.accumulate`. The sum of layers of zeros is zero.

One process that emulates all workers packs and sends nothing. `exchange.py` computes the same bits between processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cpdrun.comm.sums.codec import accumulate, quantize_scaled, scale
from cpdrun.comm.sums.exchange import Exchange, LevelsExchange
from cpdrun.comm.sums.magnitudes import largest_magnitude
from cpdrun.comm.sums.orders import Level
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summation import Layers, Summation, SumReport
from cpdrun.comm.wire.communicator import Communicator
from cpdrun.comm.wire.lost_ranks import naming_lost_ranks

# Up to this number of elements, the gradients of all workers of a layer are copied, to add all groups in one call.
_MOST_TOGETHER = 1 << 22


class RoundedSum(Summation):
    """Computes a sum in a format without scales."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        one_level = len(self.levels) == 1
        self.unrounded = self.sum.compat == "cpd" and not self.shifts.scale and one_level
        if self.unrounded:
            self.wire = self.sum.in_full_precision()

    def between(self, layers: Layers) -> SumReport:
        kind = Exchange if len(self.levels) == 1 else LevelsExchange
        return kind(self, layers).run()

    def emulate(self, layers: Layers) -> SumReport:
        stacks, agreed = layers.stacks, 0
        shifts_of_workers: list[list[int]] = []
        for level in self.levels:
            stacks, shifts, exchanged = self._add_level(stacks, layers, level)
            shifts_of_workers = shifts_of_workers or shifts
            agreed += exchanged
        torch._foreach_copy_(list(layers.out), [stack[0] for stack in stacks])
        return self.report(layers, shifts_of_workers, agreed=agreed)

    def _add_level(
        self, stacks: Sequence[Tensor], layers: Layers, level: Level
    ) -> tuple[list[Tensor], list[list[int]], int]:
        """Compute the sums of one level.

        Returns:
            A tuple: for each layer, the sums (G, n) of the level's G groups; for each group, the shift of each layer;
            and the number of exchanged magnitudes.
        """
        members = [[stack[group.start : group.stop] for stack in stacks] for group in level.groups]
        shifts, agreed = self.shifts.of_level(
            level,
            layers.names,
            lambda: [largest_magnitude(rows) for of_group in members for rows in of_group],
            self.sum.fmt,
            self.agreeing,
        )
        how = self.sum.at(level)
        is_small = all(stack.numel() <= _MOST_TOGETHER for stack in stacks)
        if is_small and _has_equal_groups(level) and not how.is_stochastic:
            by_layer = zip(stacks, zip(*shifts, strict=True), strict=True)
            return [_add_groups(stack, of_layer, how) for stack, of_layer in by_layer], shifts, agreed
        sums = [
            [
                rows[0] if level.is_passed_through(j) else self._add(rows, shift, how, (*layers.key, name))
                for rows, shift, name in zip(of_group, shifts[j], level.names(layers.names, j), strict=True)
            ]
            for j, of_group in enumerate(members)
        ]
        if len(sums) == 1:
            return [total[None] for total in sums[0]], shifts, agreed
        return [torch.stack(of_layer) for of_layer in zip(*sums, strict=True)], shifts, agreed

    def _add(self, stack_Nxn: Tensor, shift: int, how: Sum, key: tuple) -> Tensor:
        """Return the sum of one group of workers, for one layer."""
        n_workers, numel = stack_Nxn.shape
        if self.unrounded:
            rows: Sequence[Tensor] = stack_Nxn.unbind()
        elif how.is_stochastic:
            rows = [
                quantize_scaled(g, shift, how, how.random_stream(*key, "worker", w))
                for w, g in enumerate(stack_Nxn)
            ]
        else:
            rows = quantize_scaled(stack_Nxn, shift, how).unbind()
        sum_n = torch.empty(numel, dtype=torch.float32, device=stack_Nxn.device)
        for start, stop, places in how.ordering.spans(n_workers, numel, 0, numel):
            whole = stop - start == numel
            values = [rows[w] if whole else rows[w][start:stop] for w in places]
            sum_n[start:stop] = self.total(values, how, how.random_stream(*key, "sum", 0, start=start))
        return scale(sum_n, -shift)


def _has_equal_groups(level: Level) -> bool:
    """Return whether a level has several groups, all of the same size."""
    return len(level.groups) > 1 and len(set(map(len, level.groups))) == 1


def _add_groups(stack_Nxn: Tensor, shifts_G: Sequence[int], how: Sum) -> Tensor:
    """Return the sums (G, n) of all G groups of a level, for one layer.

    The result has the same bits as calling `RoundedSum._add` for each group. A single call for all groups has
    less overhead, which matters for small layers. The groups must have the same size M = N / G. The values of
    a group are added in the order of the workers, without random bits.
    """
    stack_MxGxn = stack_Nxn.unflatten(0, (len(shifts_G), -1)).transpose(0, 1).contiguous()
    totals_Gxn = accumulate(quantize_scaled(stack_MxGxn, shifts_G, how).unbind(), how)
    return scale(totals_Gxn, [-shift for shift in shifts_G])


class NativeSum(Summation):
    """Computes a sum with the platform's own float32 all_reduce.

    Raises:
        ValueError: The format is not fp32, or Kahan summation is requested.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if not self.sum.fmt.is_fp32 or self.sum.kahan:
            found = f"{self.sum.fmt}{' with kahan' if self.sum.kahan else ''}"
            raise ValueError(
                f"order=native supports only format=fp32 with kahan=false, because it uses the all_reduce of the "
                f"platform. The sum has format {found}"
            )

    def emulate(self, layers: Layers) -> SumReport:
        for target, stack_Nxn in zip(layers.out, layers.stacks, strict=True):
            torch.sum(stack_Nxn, 0, out=target)
        return self.report(layers)

    def between(self, layers: Layers) -> SumReport:
        """Add the gradients of this rank's workers, and then sum all layers over the ranks in one all_reduce.

        If the sum stays in shards, each rank keeps only the part that it owns.
        """
        ranks, layers = self.workers.ranks, layers.together()
        total_M, *others = (
            torch.cat([stack_Lxn[i] for stack_Lxn in layers.stacks]) for i in range(self.workers.share)
        )
        for other_M in others:
            total_M += other_M
        communicator = Communicator(self.workers.group)
        with naming_lost_ranks(self.workers.group):
            if layers.shards:
                return self._scatter(layers, total_M.split(layers.numels), communicator)
            communicator.add_(total_M).wait()
        for target, part in zip(layers.out, total_M.split(layers.numels), strict=True):
            target.copy_(part)
        return self.report(layers, sent_bytes=2 * (ranks - 1) * total_M.numel() * 4 // ranks)

    def _scatter(self, layers: Layers, totals: Sequence[Tensor], communicator: Communicator) -> SumReport:
        """Sum the local totals (n,) of each layer over the ranks, and keep the part that this rank owns."""
        assert layers.shards is not None
        sharding = layers.shards.sharding.by_rank(communicator.ranks)
        parts = [[totals[part.layer][part.start : part.stop] for part in owned] for owned in sharding.slices]
        longest = max(sum(part.numel() for part in owned) for owned in parts)
        rows_PxM = totals[0].new_zeros(communicator.ranks, longest)
        for row_M, owned in zip(rows_PxM, parts, strict=True):
            if owned:
                filled = torch.cat(owned)
                row_M[: len(filled)] = filled
        mine_M = communicator.add_in_shards(rows_PxM)
        begin = 0
        for part in sharding.slices[communicator.rank]:
            layers.out[part.layer].copy_(mine_M[begin : begin + part.stop - part.start])
            begin += part.stop - part.start
        return self.report(layers, sent_bytes=4 * (communicator.ranks - 1) * longest)
