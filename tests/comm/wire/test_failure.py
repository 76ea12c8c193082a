"""A rank that is killed while others wait for it: they end soon, and say which one.

Soon is before run_ranks gives them up; gloo's own patience is half an hour.
"""

import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from cpdrun.comm import RankLost, all_reduce, naming_lost_ranks

VICTIM = 1


def reduce_until_rank_1_dies() -> str:
    if dist.get_rank() == VICTIM:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    with pytest.raises(RankLost) as caught:
        while True:
            all_reduce(torch.ones(300_000), "e4m3", aps=True)
    return str(caught.value)


def broadcast_until_rank_1_dies() -> str:
    """What the training loop does between exchanges."""
    if dist.get_rank() == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RankLost) as caught, naming_lost_ranks():
        while True:
            dist.broadcast(torch.ones(1000), src=VICTIM)
    return str(caught.value)


@pytest.mark.parametrize("loop", [reduce_until_rank_1_dies, broadcast_until_rank_1_dies])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_survivors_name_it(loop: object, ranks: int) -> None:
    for message in run_ranks(ranks, loop, dies={VICTIM}):
        assert message.startswith(f"rank {VICTIM} ended in the middle of a step")


def fail_for_another_reason() -> None:
    with pytest.raises(RuntimeError, match="of our own") as caught, naming_lost_ranks():
        raise RuntimeError("a mistake of our own")
    assert not isinstance(caught.value, RankLost)


def test_other_errors_pass_through() -> None:
    fail_for_another_reason()
