"""The exchange between real processes equals the emulation in one process, bit for bit, on every rank."""

import itertools

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from cpdrun.comm import AllReduceSync
from cpdrun.comm.scaling import APS

NAMES = ["wide", "scalar", "tiny", "huge", "zero", "inf", "nan", "seven"]
SIZES = [1001, 1, 64, 130, 33, 40, 9, 7]


def gradients(worker: int) -> list[torch.Tensor]:
    """One worker's gradients: ordinary ones, a layer at 2^-140, one at 2^120, zeros, an inf, a NaN."""
    generator = torch.Generator().manual_seed(worker)
    grads = [torch.randn(size, generator=generator) * 1e-3 for size in SIZES]
    grads[2] = torch.randint(-600, 600, (64,), generator=generator) * 2.0**-149
    grads[3] *= 2.0**129
    grads[4].zero_()
    grads[5][worker] = float("inf")
    grads[6][0] = float("nan")
    return grads


def sync(world_size: int, fmt: str, aps: bool, **changes: object) -> AllReduceSync:
    knobs = {
        "order": "rank",
        "group_size": None,
        "kahan": False,
        "rounding": "nearest_even",
        "overflow": "infinity",
        "error_feedback": False,
    }
    if changes.get("order") == "hierarchical":
        changes = {"group_size": 2, **changes}
    return AllReduceSync(
        format=fmt,
        scaling=APS() if aps else None,
        world_size=world_size,
        parameter_names=NAMES,
        **knobs | changes,
    )


def reduce_cases(world_size: int, cases: list[dict]) -> list[list[torch.Tensor]]:
    """Every case's result on this rank, which plays its share of the workers."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    share = world_size // ranks
    mine = [gradients(w) for w in range(rank * share, (rank + 1) * share)]
    return [sync(world_size, **case).reduce(mine, step=3, epoch=0) for case in cases]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit patterns; a NaN equals any NaN."""
    return torch.equal(
        torch.nan_to_num(a, nan=1234.5).view(torch.int32), torch.nan_to_num(b, nan=1234.5).view(torch.int32)
    )


CASES = [
    {"fmt": fmt, "aps": aps, "order": order, "kahan": kahan}
    for fmt, aps, order, kahan in itertools.product(
        ["e1m1", "e3m0", "e4m1", "e4m3", "e5m2", "e4m3fn", "e2m1fn", "e5m6", "e8m7", "fp32"],
        [False, True],
        ["rank", "ring", "hierarchical"],
        [False, True],
    )
]


@pytest.mark.parametrize(("world_size", "ranks"), [(2, 2), (3, 3), (4, 4), (4, 2), (6, 3)])
def test_every_rank_gets_the_emulated_bits(world_size: int, ranks: int) -> None:
    cases = [c for c in CASES if c["order"] != "hierarchical" or world_size % 2 == 0]
    expected = reduce_cases(world_size, cases)
    for rank, results in enumerate(run_ranks(ranks, reduce_cases, world_size, cases)):
        for case, ours, emulated in zip(cases, results, expected, strict=True):
            for name, a, b in zip(NAMES, ours, emulated, strict=True):
                assert same_bits(a, b), f"rank {rank}, {case}, layer {name}"
