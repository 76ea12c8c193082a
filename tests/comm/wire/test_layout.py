"""Every element lies in exactly one place of one message, and messages have the size the theory says."""

import pytest
import torch

from cpdrun.comm.wire.layout import Layout

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
def test_a_worker_sends_what_the_theory_says(ranks: int, bits: int) -> None:
    numels = (64 * 3 * 9, 64, 64 * 64 * 9, 64, 640, 10)
    theory = 2 * (ranks - 1) / ranks * sum(numels) * bits / 8
    sent = Layout(numels, bits, ranks, 1 << 18).sent_bytes()
    assert theory <= sent <= theory + 2 * ranks * bits + 2 * len(numels) * bits
