"""all_reduce, all_reduce_ and all_reduce_coalesced in a script's ranks equal emulate_all_reduce, bit for bit."""

import itertools

import pytest
import torch
import torch.distributed as dist
from bits import large, same_bits
from ranks import run_ranks

from cpdrun.comm import Sum, all_reduce, all_reduce_, all_reduce_coalesced, emulate_all_reduce
from cpdrun.comm.sums import exchange as exchange_module

CALLS = [
    (fmt, {"aps": aps, **options})
    for fmt, aps, options in itertools.product(
        ["e2m1", "e5m10"],
        [False, True],
        [
            {"order": "ring"},
            {"order": "tree"},
            {"order": "aligned"},
            {"kahan": True},
            {"rounding": "stochastic", "seed": 9},
            {"rounding": "stochastic", "seed": 9, "order": "exact"},
        ],
    )
]
CALLS += [("dynamic_tree", {}), ("mxfp6_e3m2", {}), (Sum("linear", requantise="once"), {})]


def call_all_reduce(segment_values: int) -> list[torch.Tensor]:
    exchange_module.SEGMENT_VALUES = segment_values
    mine = large(dist.get_rank())
    results = [all_reduce(mine, fmt, **options) for fmt, options in CALLS]
    assert torch.equal(mine, large(dist.get_rank()))
    assert torch.equal(all_reduce_(mine, "e5m2"), mine)
    return [*results, mine]


@pytest.mark.parametrize(("ranks", "segment_values"), [(1, 4096), (3, 4096), (2, 1 << 18)])
def test_all_reduce_equals_emulate_all_reduce(ranks: int, segment_values: int) -> None:
    tensors = [large(rank) for rank in range(ranks)]
    expected = [emulate_all_reduce(tensors, fmt, **options) for fmt, options in [*CALLS, ("e5m2", {})]]
    for results in run_ranks(ranks, call_all_reduce, segment_values):
        for call, ours, emulated in zip([*CALLS, "in place"], results, expected, strict=True):
            assert same_bits(ours, emulated), call


def call_shapes() -> list[torch.Tensor]:
    rank = dist.get_rank()
    whole = torch.arange(24.0).view(4, 6) + rank
    half = whole.half()
    in_place = whole.t().clone().t()
    all_reduce_(in_place, "e4m3")
    all_reduce_(half, "e4m3")
    with pytest.raises(ValueError, match="they are on cpu and meta"):
        all_reduce_coalesced([whole, whole.to("meta")], "e4m3")
    return [
        all_reduce(whole.t(), "e4m3"),
        all_reduce(torch.tensor(1.5), "e4m3"),
        all_reduce(torch.zeros(0, 3), "e4m3"),
        *all_reduce_coalesced([whole, whole[0] * 1000], "e4m3", aps=True),
        in_place,
        half.float(),
    ]


def test_shapes_strides_and_dtypes() -> None:
    wholes = [torch.arange(24.0).view(4, 6) + rank for rank in range(2)]
    plain = emulate_all_reduce(wholes, "e4m3")
    expected = [
        plain.t(),
        torch.tensor(3.0),
        torch.zeros(0, 3),
        emulate_all_reduce(wholes, "e4m3", aps=True),
        emulate_all_reduce([w[0] * 1000 for w in wholes], "e4m3", aps=True),
        plain,
        plain,
    ]
    for results in run_ranks(2, call_shapes):
        for ours, emulated in zip(results, expected, strict=True):
            assert same_bits(ours.contiguous(), emulated.contiguous())
