"""A script that saves `run.state_dict()` with its weights and is started again ends with the bits of one that was not
stopped, whatever the run remembers: residuals, the steps that are drawn by, delayed magnitudes, steps of rules."""

import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from bits import same_bits
from intercepted_script import batch, config
from ranks import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.errors import UserError

STEPS, STOPPED_AT = 4, 2
REMEMBERING = ("format=e3m1", "aps=true", "sync.rounding=stochastic", "sync.error_feedback=true")
DELAYED = (*REMEMBERING, "scaling=aps_delayed")
RULES = "precision.rules=[{modules: '3', role: weight, format: e3m0, steps: [3, null]}]"


def a_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 17), nn.ReLU(), nn.Linear(17, 10))


def trained(saved: bytes | None, until: int, way: str, typed: tuple[str, ...]) -> bytes:
    """What the script has saved after so many steps; on rank 0, of several."""
    interceptor = Interceptor(config(*typed))
    interceptor.install()
    net: nn.Module = a_net()
    optimizer = SGD(net.parameters(), lr=0.5)
    given = torch.load(io.BytesIO(saved), weights_only=True) if saved else {"step": 0, "run": {}}
    if saved:
        net.load_state_dict(given["net"])
    if way == "loaded first":
        interceptor.load_state_dict(given["run"])
    model = DistributedDataParallel(net) if way == "ddp" else net
    if way == "fully_shard":
        torch.distributed.fsdp.fully_shard(net)
        optimizer = SGD(net.parameters(), lr=0.5)
    if way != "loaded first":
        interceptor.load_state_dict(given["run"])
    for step in range(given["step"], until):
        optimizer.zero_grad()
        for w in interceptor.workers if way != "counted" else range(2):
            x, y = batch(w, step)
            if way == "said":
                with interceptor.worker(w):
                    F.cross_entropy(model(x), y).backward()
            else:
                F.cross_entropy(model(x), y).backward()
        optimizer.step()
    whole = {name: _whole(p) for name, p in net.state_dict().items()}
    file = io.BytesIO()
    torch.save({"net": whole, "step": until, "run": interceptor.state_dict()}, file)
    interceptor.uninstall()
    return file.getvalue()


def _whole(value: Any) -> Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def weights_of(saved: bytes) -> list[Tensor]:
    return list(torch.load(io.BytesIO(saved), weights_only=True)["net"].values())


def ends(way: str, *typed: str, forgets: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """Of the one that is not stopped, and of the one that is. forgets: its checkpoint has no `run`."""
    of_rank_0 = [trained(None, STOPPED_AT, way, typed)]
    if forgets:
        saved = torch.load(io.BytesIO(of_rank_0[0]), weights_only=True) | {"run": {}}
        torch.save(saved, file := io.BytesIO())
        of_rank_0 = [file.getvalue()]
    if dist.is_initialized():
        dist.broadcast_object_list(of_rank_0)
    return weights_of(trained(None, STEPS, way, typed)), weights_of(trained(of_rank_0[0], STEPS, way, typed))


@pytest.mark.parametrize("typed", [REMEMBERING, DELAYED], ids=["residuals", "delayed"])
@pytest.mark.parametrize(("way", "workers"), [("alone", 1), ("loaded first", 1), ("said", 2), ("counted", 2)])
def test_a_resumed_process_ends_with_the_same_bits(way: str, workers: int, typed: tuple[str, ...]) -> None:
    whole, halves = ends(way, *typed, f"world_size={workers}")
    assert all(map(same_bits, whole, halves))


@pytest.mark.parametrize("typed", [REMEMBERING, DELAYED[:2] + DELAYED[-1:], (RULES,)])
def test_the_bits_differ_if_the_state_is_not_restored(typed: tuple[str, ...]) -> None:
    whole, halves = ends("alone", *typed, forgets=True)
    assert not all(map(same_bits, whole, halves))


def test_rules_of_later_steps_apply_after_a_resume() -> None:
    whole, halves = ends("alone", RULES)
    assert all(map(same_bits, whole, halves))


def in_two_processes() -> list[str]:
    differ = []
    for way, *typed in (("ddp", *DELAYED), ("fully_shard", *DELAYED), ("said", *DELAYED, "world_size=4")):
        whole, halves = ends(way, "world_size=2", "nproc=2", *typed)
        differ += [] if all(map(same_bits, whole, halves)) else [way]
    return differ


def test_two_processes_resume_from_the_checkpoint_of_rank_0() -> None:
    assert run_ranks(2, in_two_processes) == [[], []]


def test_fp32_has_no_state_and_foreign_state_is_an_error(intercept) -> None:
    assert intercept().state_dict() == {}
    intercept().load_state_dict({"steps": 3, "sums": {}})
    interceptor = intercept(*REMEMBERING)
    interceptor.load_state_dict({})
    with pytest.raises(
        UserError,
        match=r"^run.load_state_dict: the argument must be a state that run.state_dict\(\) returned in this run",
    ):
        interceptor.load_state_dict({"model": {}})
