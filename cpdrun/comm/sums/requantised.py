"""Sums in formats with scales of their own (codebooks, MX): decode, add in float32, quantise again.

Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (arXiv:1511.04561), sends gradients as codes of a
codebook, with their scale. Per layer, with the gradients g_w of N workers and Q the format's quantize, which takes
scales from the values it is given:

    q_w = Q(g_w)                                       every worker encodes; codes and scales travel
    s_0 = +0 + q_0                                     decoded, and added in float32, in worker order:
    s_w = Q(s_{w-1}) + q_w     requantise=hop          each partial sum is sent on in the format, as in a ring
    s_w = s_{w-1} + q_w        requantise=once         one owner adds them all
    result = Q(s_{N-1})                                encoded once by its owner; everyone decodes these bytes

so all ranks end with the same bits, those of one process that plays all workers. In the original every rank adds what
the others sent to its own exact gradient, and each ends with different weights.

Without scales (any `Format`) the same formulas hold; requantise=hop is then order=rank of `recipe.py`, bit for bit for
up to 10 mantissa bits. A block or tensor with inf or NaN is NaN in the result (see custom_fp.scaled).

Between ranks: a layer whose format has one scale for all of it goes to one owner, others are cut in pieces of whole
blocks; pieces are dealt to owners by size. On average over N machines each sends 2 (N-1)/N of the packed gradient,
scales included.

Legend: N workers, P ranks, L = N/P workers of mine, n elements of a layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import custom_fp
import torch
import torch.distributed as dist
from custom_fp.formats.names import AnyFormat, is_scaled, parse
from custom_fp.formats.scalar import Format
from custom_fp.scaled import quantize_rows
from torch import Tensor

from cpdrun.comm.sums.recipe import FP32, Level, Recipe
from cpdrun.comm.wire.failure import hang_up, naming_lost_ranks
from cpdrun.comm.wire.layout import ceil_div
from cpdrun.comm.workers import Workers

REQUANTISE = ("hop", "once")
PIECE_VALUES = 1 << 16  # of a layer that may be cut: smaller pieces, evener shares
TO_OWNER, TO_ALL = 75, 76  # tags


@dataclass(frozen=True)
class Requantised:
    """One way to add N tensors: what `recipe.Recipe` is to formats without scales. Raises ValueError."""

    fmt: AnyFormat
    requantise: str = "hop"
    rounding: str = "nearest_even"
    overflow: str = "infinity"
    order: str = "rank"

    def __post_init__(self) -> None:
        object.__setattr__(self, "fmt", parse(self.fmt))
        if self.requantise not in REQUANTISE:
            raise ValueError(f"requantise={self.requantise!r}: choose one of {', '.join(REQUANTISE)}")

    @classmethod
    def of(cls, recipe: Recipe, fmt: AnyFormat) -> "Requantised":
        """From the knobs of a sum in a format without scales; ValueError for those that have no meaning here."""
        for key, allowed in (("order", "rank"), ("kahan", False), ("rounding", "nearest_even")):
            if (value := getattr(recipe, key)) != allowed:
                hint = ": take order=rank, or sync=requantised" if key == "order" else ""
                raise ValueError(
                    f"{key}={value}: format {fmt} has scales of its own, which leaves only {allowed}{hint}"
                )
        return cls(fmt, overflow=recipe.overflow)

    def levels(self, n_workers: int) -> tuple[Level, ...]:
        return Recipe(FP32).levels(n_workers)

    def place(self, worker: int, n_workers: int) -> tuple[int, int]:
        return 0, worker

    def longest_chain(self, n_workers: int) -> int:
        """requantise=once rounds to the format once, after all additions."""
        return n_workers - 1 if self.requantise == "hop" else min(1, n_workers - 1)


def recipe_for(
    fmt: str | AnyFormat | Requantised,
    *,
    order: str,
    group_size: int | str | None,
    kahan: bool,
    rounding: str,
    overflow: str,
    n_workers: int,
    scaled: bool = False,
    compat: str | None = None,
) -> Recipe | Requantised:
    """How to add n_workers tensors in a format with scales or without. scaled: by a rule such as APS.

    Raises ValueError for what does not fit together.
    """
    if not isinstance(fmt, Requantised) and not is_scaled(fmt):
        knobs = Recipe(parse(fmt), order, group_size, kahan, rounding, overflow, compat).for_workers(
            n_workers
        )
        unrounded = compat == "cpd" and not scaled and len(knobs.levels(n_workers)) == 1
        return replace(knobs, unrounded=unrounded)
    if scaled:
        raise ValueError(f"format {getattr(fmt, 'fmt', fmt)} has scales of its own: it takes aps=false")
    if compat:
        raise ValueError(f"compat={compat}: its code has no formats with scales such as {fmt}")
    if isinstance(fmt, Requantised):
        return fmt
    knobs = Recipe(FP32, order, group_size, kahan, rounding, overflow)
    return Requantised.of(knobs.for_workers(n_workers), parse(fmt))


@dataclass(frozen=True)
class SentBytes:
    """real_worker: by each of N machines, on average, rounded up; sent: by this rank to others."""

    real_worker: int
    sent: int


def add(rows: Sequence[Tensor], recipe: Requantised) -> Tensor:
    """s_{N-1} of the definition, from the decoded q_w in worker order; a new float32 tensor."""
    total = rows[0] + 0.0
    for row in rows[1:]:
        if recipe.requantise == "hop":
            total = custom_fp.quantize(total, recipe.fmt)
        total = total + row
    return total


def emulate(rows: Sequence[Tensor], recipe: Requantised) -> Tensor:
    """The sum of N tensors of one shape as N machines form it, float32."""
    stack_Nxn = torch.stack(list(rows)).reshape(len(rows), -1)
    if is_scaled(recipe.fmt):
        decoded_Nxn = quantize_rows(stack_Nxn, recipe.fmt)  # each with scales of its own
    else:
        decoded_Nxn = custom_fp.quantize(stack_Nxn, recipe.fmt)
    return custom_fp.quantize(add(decoded_Nxn.unbind(), recipe), recipe.fmt).view(rows[0].shape)


def sum_layers(
    stacks: Sequence[Tensor],
    recipe: Requantised,
    workers: Workers,
    *,
    out: Sequence[Tensor],
) -> SentBytes:
    """stacks[p]: (L, n_p) float32 of this rank's workers; out[p]: (n_p,), where the sum goes. Collective.

    Raises RankLost where another rank is gone.
    """
    numels = tuple(stack.shape[1] for stack in stacks)
    if workers.ranks == 1:
        for stack, target in zip(stacks, out, strict=True):
            target.copy_(emulate(stack.unbind(), recipe))
        sent = 0
    else:
        dealt = _deal(numels, recipe.fmt, workers.ranks)
        with naming_lost_ranks(workers.group):
            sent = _sum_between_ranks(stacks, recipe, dealt, workers.group, out)
    packed = sum(custom_fp.packed_size(piece.numel, recipe.fmt) for piece in _cut(numels, recipe.fmt))
    return SentBytes(ceil_div(2 * (workers.world_size - 1) * packed, workers.world_size), sent)


# ---- who adds what


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of a layer, encoded by themselves."""

    layer: int
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


@lru_cache(maxsize=512)
def _cut(numels: tuple[int, ...], fmt: AnyFormat) -> tuple[Piece, ...]:
    """All layers in pieces; empty layers have none."""
    if is_scaled(fmt) and fmt.block is None:
        return tuple(Piece(layer, 0, numel) for layer, numel in enumerate(numels) if numel)
    block = 8 if isinstance(fmt, Format) else fmt.block
    size = block * ceil_div(PIECE_VALUES, block)
    return tuple(
        Piece(layer, start, min(start + size, numel))
        for layer, numel in enumerate(numels)
        for start in range(0, numel, size)
    )


@lru_cache(maxsize=512)
def _deal(numels: tuple[int, ...], fmt: AnyFormat, ranks: int) -> tuple[tuple[Piece, ...], ...]:
    """The pieces of each owner: the largest piece first, each to the owner with the least so far."""
    loads, dealt = [0] * ranks, [[] for _ in range(ranks)]
    for piece in sorted(_cut(numels, fmt), key=lambda piece: -piece.numel):
        owner = loads.index(min(loads))
        loads[owner] += piece.numel
        dealt[owner].append(piece)
    return tuple(tuple(sorted(pieces, key=lambda p: (p.layer, p.start))) for pieces in dealt)


# ---- between ranks


def _sum_between_ranks(
    stacks: Sequence[Tensor],
    recipe: Requantised,
    dealt: Sequence[Sequence[Piece]],
    group: dist.ProcessGroup | None,
    out: Sequence[Tensor],
) -> int:
    """Returns the bytes sent to other ranks."""
    fmt, mine = recipe.fmt, dist.get_rank(group)
    local, device = len(stacks[0]), stacks[0].device
    sizes = [sum(custom_fp.packed_size(piece.numel, fmt) for piece in pieces) for pieces in dealt]

    def encoded(worker: int, pieces: Sequence[Piece]) -> list[Tensor]:
        return [custom_fp.pack(stacks[p.layer][worker, p.start : p.stop], fmt) for p in pieces]

    nothing = torch.empty(0, dtype=torch.uint8, device=device)
    payloads = [
        torch.cat([nothing, *(data for w in range(local) for data in encoded(w, pieces))]) for pieces in dealt
    ]
    received = exchange_bytes(payloads, [local * sizes[mine]] * len(dealt), group, TO_OWNER)
    worker_payloads = [part for data in received for part in data.view(local, -1)]
    rows_of_workers = [_decoded(data, dealt[mine], fmt) for data in worker_payloads]
    sums = [
        custom_fp.pack(add([rows[k] for rows in rows_of_workers], recipe), fmt)
        for k in range(len(dealt[mine]))
    ]
    own = torch.cat([nothing, *sums])
    for pieces, data in zip(dealt, exchange_bytes([own] * len(dealt), sizes, group, TO_ALL), strict=True):
        for piece, values in zip(pieces, _decoded(data, pieces, fmt), strict=True):
            out[piece.layer][piece.start : piece.stop] = values
    others = sum(data.numel() for rank, data in enumerate(payloads) if rank != mine)
    return others + (len(dealt) - 1) * own.numel()


def _decoded(data: Tensor, pieces: Sequence[Piece], fmt: AnyFormat) -> list[Tensor]:
    """The values of pieces that were encoded one after the other."""
    parts = data.split([custom_fp.packed_size(piece.numel, fmt) for piece in pieces])
    return [custom_fp.unpack(part, fmt, (piece.numel,)) for part, piece in zip(parts, pieces, strict=True)]


def exchange_bytes(
    outgoing: Sequence[Tensor], sizes: Sequence[int], group: dist.ProcessGroup | None, tag: int
) -> list[Tensor]:
    """outgoing[r] goes to rank r; returns what came from each, sizes[r] bytes. Empty messages are not sent."""
    mine = dist.get_rank(group)
    incoming = [torch.empty(size, dtype=torch.uint8, device=outgoing[0].device) for size in sizes]
    incoming[mine] = outgoing[mine]
    peers = [(mine + i) % len(outgoing) for i in range(1, len(outgoing))]
    address = [dist.get_global_rank(group, r) if group else r for r in range(len(outgoing))]
    operations = [
        dist.P2POp(dist.irecv, incoming[r], address[r], group, tag) for r in peers if incoming[r].numel()
    ] + [dist.P2POp(dist.isend, outgoing[r], address[r], group, tag) for r in peers if outgoing[r].numel()]
    try:
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
    except RuntimeError:
        hang_up([address[r] for r in peers], group)
        raise
    return incoming
