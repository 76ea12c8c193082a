"""N processes and one that plays N workers end with the same bits, however the script trains."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from bits import same_bits
from held_script import ACROSS, Net, batch, config, held
from ranks import run_ranks
from torch import Tensor, nn

from cpdrun.attach.hold import Hold

E3M0 = ("format=e3m0", "aps=true")
PARAMETERS = len(list(Net().parameters()))


def equal(found: list[Tensor], expected: list[Tensor], rank: int = 0) -> bool:
    """Bit for bit; buffers on rank 0, whose they are: DDP hands them to the others before the next forward pass."""
    pairs = list(zip(found, expected, strict=True))
    return all(same_bits(a, b) for a, b in (pairs if rank == 0 else pairs[:PARAMETERS]))


def test_two_processes_equal_one_that_plays_two_workers() -> None:
    expected, _ = held(ACROSS, *E3M0, "world_size=2")
    ranks = run_ranks(2, held, ACROSS, *E3M0, "world_size=2", "nproc=2")
    for rank, (found, facts) in enumerate(ranks):
        assert [name for name in ACROSS if not equal(found[name], expected[name], rank)] == []
        assert facts["gradients"]["exchange"] == ["DistributedDataParallel"]
        assert facts["gradients"]["wire"]["bytes_per_step_sent"] > 0


SPLIT = ["plain", "no_sync", "unused parameters", "GradScaler, clipped", "two optimizers"]
DRAWN = ("format=e3m1", "aps=true", "sync.rounding=stochastic", "sync.error_feedback=true")


def test_four_workers_in_two_processes_equal_four_in_one() -> None:
    """Under DDP, and without it."""
    expected, _ = held(SPLIT, *DRAWN, "world_size=4")
    for ddp in (True, False):
        ranks = run_ranks(2, held_by, ddp, *DRAWN, "world_size=4", "nproc=2")
        for rank, (found, facts) in enumerate(ranks):
            assert [name for name in SPLIT if not equal(found[name], expected[name], rank)] == [], ddp
            assert facts["gradients"]["exchange"] == ["run.worker around each worker's backward pass"]


def held_by(ddp: bool, *typed: str) -> tuple[dict[str, list[Tensor]], dict[str, Any]]:
    return held(SPLIT, *typed, ddp=ddp)


def a_net() -> nn.Module:
    """Of odd sizes, so that no shard is whole."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 17),
        nn.ReLU(),
        nn.Sequential(nn.Linear(17, 13), nn.ReLU()),
        nn.Linear(13, 10),
    )


def steps_of(model: nn.Module, workers: range, run: Any = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        for w in workers:
            x, y = batch(w, step)
            if run is None:
                F.cross_entropy(model(x), y).backward()
            else:
                with run.worker(w):
                    F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def sharded(*typed: str) -> tuple[list[Tensor], dict[str, Any]]:
    hold = Hold(config(*typed, "nproc=2"))
    hold.install()
    model = a_net()
    fully_shard_of_today = torch.distributed.fsdp.fully_shard
    fully_shard_of_today(model[3])
    fully_shard_of_today(model)
    steps_of(model, range(dist.get_rank(), dist.get_rank() + 1))
    hold.check()
    return [p.full_tensor().detach() for p in model.parameters()], hold.facts()


def test_fully_shard_equals_one_process_that_plays_the_workers() -> None:
    typed = ("world_size=2", *DRAWN)
    hold = Hold(config(*typed))
    hold.install()
    model = a_net()
    steps_of(model, hold.workers, hold)
    for weights, facts in run_ranks(2, sharded, *typed):
        assert all(same_bits(a, b.detach()) for a, b in zip(weights, model.parameters(), strict=True))
        assert facts["gradients"]["exchange"] == ["fully_shard"]
        assert facts["gradients"]["values"] == sum(p.numel() for p in model.parameters())
