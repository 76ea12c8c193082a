"""Every element lies in exactly one place of one message, and messages have the size the theory says."""

import pytest
import torch

from cpdrun.comm.wire.message_layout import GRANULE, Layout, shard_by_rows, shard_evenly

SHAPES = [(1,), (7,), (1001,), (0, 5, 0), (3, 1, 64, 1000, 8), (100_000, 33)]


@pytest.mark.parametrize("numels", SHAPES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("segment_values", [8, 1000, 1 << 30])
def test_pieces_tile_the_layers(numels: tuple[int, ...], ranks: int, segment_values: int) -> None:
    if segment_values == 8 and sum(numels) > 10_000:
        segment_values = 80
    layout = Layout(numels, 5, ranks, segment_values)
    seen = [torch.zeros(numel, dtype=torch.int32) for numel in numels]
    for shard in range(ranks):
        for segment in range(layout.segments):
            end = 0
            for piece in layout.pieces[shard][segment]:
                assert (
                    piece.start % 8 == 0
                    and piece.start < piece.stop
                    and piece.byte == end
                    and piece.size == -(-piece.numel // 8) * 5
                )
                seen[piece.layer][piece.start : piece.stop] += 1
                end += piece.size
            assert end <= layout.segment_bytes(segment)
    assert all(bool((count == 1).all()) for count in seen)
    assert sum(layout.segment_bytes(t) for t in range(layout.segments)) == layout.shard_bytes


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("bits", [4, 6, 8, 32])
def test_a_worker_sends_the_theoretical_bytes(ranks: int, bits: int) -> None:
    numels = (64 * 3 * 9, 64, 64 * 64 * 9, 64, 640, 10)
    theory = 2 * (ranks - 1) / ranks * sum(numels) * bits / 8
    sent = Layout(numels, bits, ranks, 1 << 18).sent_bytes()
    assert theory <= sent <= theory + 2 * ranks * bits + 2 * len(numels) * bits


@pytest.mark.parametrize("numels", [(1,), (0, 5, 0), (1001,), (3, 1, 64, 1000, 8, 130), (10,) * 20])
@pytest.mark.parametrize("owners", [1, 2, 4, 8])
def test_every_element_has_one_owner_and_ranks_own_the_shards_of_their_workers(numels, owners) -> None:
    sharding = shard_evenly(numels, owners, GRANULE)
    for ranks in (n for n in (1, 2, 4, 8) if owners % n == 0):
        seen = [torch.zeros(numel, dtype=torch.int32) for numel in numels]
        of_ranks = sharding.by_rank(ranks)
        for owned in of_ranks.slices:
            assert len({part.layer for part in owned}) == len(owned)
            for layer, start, stop in owned:
                assert start % GRANULE == 0 and start < stop
                seen[layer][start:stop] += 1
        assert all(bool((count == 1).all()) for count in seen)
        layout = Layout(numels, 5, ranks, 80, of_ranks)
        pieces = [p for of_owner in layout.pieces for of_segment in of_owner for p in of_segment]
        assert sum(piece.numel for piece in pieces) == sum(numels)
    blocks = sum(-(-numel // 8) for numel in numels)
    assert Layout(numels, 5, owners, 80, sharding).shard_blocks <= -(-blocks // owners) + GRANULE // 8
    some = [p for p in range(len(numels)) if p % 2]
    for whole, part in zip(sharding.slices, sharding.select(some).slices, strict=True):
        assert [(some[p], start, stop) for p, start, stop in part] == [s for s in whole if s.layer % 2]


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
@pytest.mark.parametrize("owners", [2, 4])
def test_rows_are_cut_as_torch_chunk_cuts_them(rows: int, owners: int) -> None:
    shapes = [(rows, 3, 2), (), (rows,)]
    sharding = shard_by_rows(shapes, owners)
    for layer, shape in enumerate(shapes):
        whole = torch.arange(torch.Size(shape).numel()).reshape(shape or 1)
        chunks = [chunk.flatten() for chunk in whole.chunk(owners)] + [whole[:0].flatten()] * owners
        for owner in range(owners):
            assert torch.equal(whole.flatten()[sharding.owned_by(owner, 3)[layer]], chunks[owner])
