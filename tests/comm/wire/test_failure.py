"""Ranks that wait for a killed rank end long before the timeout of gloo, half an hour, and name the killed one."""

import os
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from cpdrun.comm import RankLost, Sum, all_reduce, ddp_hook, naming_lost_ranks

VICTIM = 1


def all_reduce_loop(kind: str | Sum) -> None:
    all_reduce(torch.ones(300_000), kind)


def backward_loop() -> None:
    model = DistributedDataParallel(torch.nn.Linear(30, 30))
    model.register_comm_hook(*ddp_hook(model, "e4m3", aps=True))
    while True:
        model(torch.ones(2, 30)).sum().backward()


def broadcast_loop() -> None:
    """What the training loop does between exchanges."""
    with naming_lost_ranks():
        dist.broadcast(torch.ones(1000), src=VICTIM)


def run_until_rank_1_dies(loop: Callable) -> str:
    if dist.get_rank() == VICTIM:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    with pytest.raises(RuntimeError) as caught:  # autograd raises it for a RankLost of the hook
        while True:
            loop()
    assert loop is backward_loop or isinstance(caught.value, RankLost)
    return str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "loop"),
    [
        (3, partial(all_reduce_loop, "e4m3")),
        (2, partial(all_reduce_loop, "dynamic_tree")),
        (2, broadcast_loop),
        (2, backward_loop),
    ],
)
def test_survivors_name_a_rank_that_died(ranks: int, loop: Callable) -> None:
    for message in run_ranks(ranks, run_until_rank_1_dies, loop, dies={VICTIM}):
        assert f"rank {VICTIM} ended in the middle of a step" in message


def test_other_errors_pass_through() -> None:
    with pytest.raises(RuntimeError, match="of our own") as caught, naming_lost_ranks():
        raise RuntimeError("a mistake of our own")
    assert not isinstance(caught.value, RankLost)
