"""N processes and one that plays N workers end with the same bits, however the script trains."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from bits import same_bits
from intercepted_script import ACROSS, Net, batch, config, train, train_intercepted
from ranks import run_ranks
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.attach.run import Outside
from cpdrun.errors import UserError

E3M0 = ("format=e3m0", "aps=true")
PARAMETERS = len(list(Net().parameters()))


def equal(found: list[Tensor], expected: list[Tensor], rank: int = 0) -> bool:
    """Bit for bit; buffers on rank 0, whose they are: DDP hands them to the others before the next forward pass."""
    pairs = list(zip(found, expected, strict=True))
    return all(same_bits(a, b) for a, b in (pairs if rank == 0 else pairs[:PARAMETERS]))


def test_two_processes_equal_one_that_emulates_two_workers() -> None:
    expected, _ = train_intercepted(ACROSS, *E3M0, "world_size=2")
    ranks = run_ranks(2, train_intercepted, ACROSS, *E3M0, "world_size=2", "nproc=2")
    for rank, (found, facts) in enumerate(ranks):
        assert [name for name in ACROSS if not equal(found[name], expected[name], rank)] == []
        assert facts["gradients"]["exchange"] == ["DistributedDataParallel"]
        assert facts["gradients"]["wire"]["bytes_per_step_sent"] > 0


SPLIT = ["plain", "no_sync", "unused parameters", "GradScaler, clipped", "two optimizers"]
DRAWN = ("format=e3m1", "aps=true", "sync.rounding=stochastic", "sync.error_feedback=true")


def test_four_workers_in_two_processes_equal_four_in_one() -> None:
    """Under DDP, and without it."""
    expected, _ = train_intercepted(SPLIT, *DRAWN, "world_size=4")
    for ddp in (True, False):
        ranks = run_ranks(2, held_by, ddp, *DRAWN, "world_size=4", "nproc=2")
        for rank, (found, facts) in enumerate(ranks):
            assert [name for name in SPLIT if not equal(found[name], expected[name], rank)] == [], ddp
            assert facts["gradients"]["exchange"] == ["run.worker around each worker's backward pass"]


def held_by(ddp: bool, *typed: str) -> tuple[dict[str, list[Tensor]], dict[str, Any]]:
    return train_intercepted(SPLIT, *typed, ddp=ddp)


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
    interceptor = Interceptor(config(*typed, "nproc=2"))
    interceptor.install()
    model = a_net()
    fully_shard_of_today = torch.distributed.fsdp.fully_shard
    fully_shard_of_today(model[3])
    fully_shard_of_today(model)
    steps_of(model, range(dist.get_rank(), dist.get_rank() + 1))
    interceptor.check()
    return [p.full_tensor().detach() for p in model.parameters()], interceptor.facts()


def test_fully_shard_equals_one_process_that_emulates_the_workers() -> None:
    typed = ("world_size=2", *DRAWN)
    interceptor = Interceptor(config(*typed))
    interceptor.install()
    model = a_net()
    steps_of(model, interceptor.workers, interceptor)
    for weights, facts in run_ranks(2, sharded, *typed):
        assert all(same_bits(a, b.detach()) for a, b in zip(weights, model.parameters(), strict=True))
        assert facts["gradients"]["exchange"] == ["fully_shard"]
        values = sum(p.numel() for p in model.parameters())
        assert facts["gradients"]["values"] == values
        whole = values * 6 / 8  # bytes that an all-reduce of 6 bits would send between two
        assert 0.4 * whole < facts["gradients"]["wire"]["bytes_per_step_sent"] < 0.6 * whole


# ---- fp32


def without_and_with() -> list[str]:
    """Of which variants fp32 gives other weights than the script without cpdrun."""
    rank = dist.get_rank()

    class Alone(Outside):
        workers = range(rank, rank + 1)

    plain = {name: train(name, Alone()) for name in FP32}
    found, facts = train_intercepted(FP32, "world_size=2", "nproc=2")
    assert facts["gradients"]["exchange"] == ["left alone"]
    return [name for name in FP32 if not all(map(same_bits, found[name], plain[name]))]


FP32 = ["plain", "static graph", "no_sync", "autocast", "GradScaler, clipped", "two optimizers"]


def test_fp32_in_two_processes_changes_no_bit() -> None:
    assert run_ranks(2, without_and_with) == [[], []]


# ---- several models, and backward passes that count as workers


def adversaries(*typed: str) -> tuple[list[Tensor], dict[str, Any]]:
    """Two models with an optimizer each, the loss of one going through the other."""
    interceptor = Interceptor(config(*typed))
    interceptor.install()
    torch.manual_seed(0)
    makes, judges = nn.Linear(8, 64), nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 1))
    parameters = [*makes.parameters(), *judges.parameters()]
    if dist.is_initialized():
        makes, judges = (
            DistributedDataParallel(makes),
            DistributedDataParallel(judges, broadcast_buffers=False),
        )
    of_makes, of_judges = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (makes, judges))
    for step in range(2):
        of_judges.zero_grad()
        for w in interceptor.workers:
            with interceptor.worker(w):
                x, _ = batch(w, step)
                noise = x.flatten(1)[:, :8]
                real = F.softplus(-judges(x.flatten(1))).mean()
                (real + F.softplus(judges(makes(noise).detach())).mean()).backward()
        of_judges.step()
        of_makes.zero_grad()
        for w in interceptor.workers:
            with interceptor.worker(w):
                x, _ = batch(w, step)
                F.softplus(-judges(makes(x.flatten(1)[:, :8]))).mean().backward()
        of_makes.step()
    interceptor.check()
    interceptor.uninstall()
    return [p.detach() for p in parameters], interceptor.facts()


def test_adversarial_models_with_an_optimizer_each() -> None:
    expected, _ = adversaries(*E3M0, "world_size=2")
    for weights, _ in run_ranks(2, adversaries, *E3M0, "world_size=2", "nproc=2"):
        assert all(map(same_bits, weights, expected))


def counted(*typed: str, bucket_view: bool = False) -> list[Tensor]:
    """Gradient accumulation as libraries do it: losses divided, all but the last pass in no_sync."""
    interceptor = Interceptor(config(*typed))
    interceptor.install()
    model = net = a_net()
    if dist.is_initialized():
        model = DistributedDataParallel(net, gradient_as_bucket_view=bucket_view)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        for w in interceptor.workers:
            waits = dist.is_initialized() and w < interceptor.workers[-1]
            with model.no_sync() if waits else contextlib.nullcontext():
                x, y = batch(w, step)
                (F.cross_entropy(model(x), y) / len(interceptor.workers)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    interceptor.check()
    interceptor.uninstall()
    return [p.detach() for p in net.parameters()]


def both_counted(*typed: str) -> list[list[Tensor]]:
    return [counted(*typed, bucket_view=view) for view in (False, True)]


def test_backward_passes_count_as_workers_under_ddp() -> None:
    """Powers of two: dividing by them first or last gives the same bits."""
    expected = counted(*E3M0, "world_size=4")
    for rank in run_ranks(2, both_counted, *E3M0, "world_size=4", "nproc=2"):
        for weights in rank:
            assert all(map(same_bits, weights, expected))


# ---- what is refused


def what_is_refused() -> dict[str, str]:
    said = {}

    def catch(what: str, call: Callable[[], object], *typed: str) -> None:
        with pytest.raises(UserError) as caught:
            Interceptor(config(*E3M0, "nproc=2", *(typed or ("world_size=2",)))).install()
            call()
        said[what] = str(caught.value)
        if Interceptor.current is not None:
            Interceptor.current.uninstall()

    def plain_step() -> None:
        steps_of(a_net(), range(1))

    def part_of_the_ranks() -> None:
        mine = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        DistributedDataParallel(a_net(), process_group=mine)

    def hook_of_its_own() -> None:
        DistributedDataParallel(a_net()).register_comm_hook(None, default_hooks.allreduce_hook)

    def fsdp1() -> None:
        FullyShardedDataParallel(a_net(), device_id=torch.device("cpu"))

    def several_a_shard() -> None:
        torch.distributed.fsdp.fully_shard(a_net())

    def two_dimensions() -> None:
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
        torch.distributed.fsdp.fully_shard(a_net(), mesh=mesh)

    def unused_in_a_shard() -> None:
        net = Net()
        torch.distributed.fsdp.fully_shard(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(batch(0, 0)[0], use_all=False).sum().backward()
        optimizer.step()

    def forward_outside() -> None:
        model = DistributedDataParallel(a_net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for w in Interceptor.current.workers:
            loss = model(batch(w, 0)[0]).sum()
            with Interceptor.current.worker(w):
                loss.backward()
        optimizer.step()

    catch("forward outside", forward_outside, "format=fp32", "world_size=4", "aps=false")
    catch("no exchange", plain_step)
    catch("part of the ranks", part_of_the_ranks)
    catch("a hook of its own", hook_of_its_own)
    catch("FSDP1", fsdp1)
    catch("several workers a shard", several_a_shard, "world_size=4")
    catch("two dimensions", two_dimensions)
    catch("unused in a shard", unused_in_a_shard)
    catch("three workers", lambda: DistributedDataParallel(a_net()), "world_size=3")
    return said


def one_shard() -> str:
    Interceptor(config(*E3M0)).install()
    with pytest.raises(UserError) as caught:
        torch.distributed.fsdp.fully_shard(a_net())
    return str(caught.value)


def test_unsupported_exchanges_are_errors_of_one_line() -> None:
    assert "Set nproc=2 or more, or use DistributedDataParallel" in run_ranks(1, one_shard)[0]
    for said in run_ranks(2, what_is_refused):
        assert "Put the forward pass into it, too" in said["forward outside"]
        assert "2 processes, but does not exchange gradients" in said["no exchange"]
        assert "uses only 1 of the 2 processes" in said["part of the ranks"]
        assert "Remove the call to register_comm_hook, or run with format=fp32" in said["a hook of its own"]
        assert "FSDP1" in said["FSDP1"] and "Use fully_shard" in said["FSDP1"]
        assert "Set nproc=4, or world_size=2" in said["several workers a shard"]
        assert "a mesh of shape (1, 2)" in said["two dimensions"]
        assert "set_reduce_scatter_unused_params(True)" in said["unused in a shard"]
        assert "nproc=2 does not divide world_size=3" in said["three workers"]
        assert not any("\n" in line for line in said.values())
