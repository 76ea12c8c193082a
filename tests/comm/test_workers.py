import pytest
import torch
from ranks import run_ranks

from cpdrun.comm import AllReduceSync
from cpdrun.comm.model_parallel import ModelWorkers
from cpdrun.comm.workers import Workers


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_ranks_share_the_workers_in_order(ranks):
    everyone = [Workers(8, rank, ranks) for rank in range(ranks)]
    assert [w for one in everyone for w in one.local] == list(range(8))
    assert all(one.owner(w) == one.rank for one in everyone for w in one.local)
    assert all(list(one.local) == list(everyone[0].emulated_by(one.rank)) for one in everyone)


def test_workers_must_be_shared_equally(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="nproc=3 does not divide world_size=8"):
        Workers.from_environment(8)
    with pytest.raises(ValueError, match="at least 1 worker, not 0"):
        Workers(0)


def gathered() -> tuple:
    workers = Workers.of_group(4)
    table = torch.zeros(4)
    table[workers.local.start : workers.local.stop] = torch.tensor([w + 1.0 for w in workers.local])
    return workers.gather({w: w * w for w in workers.local}), workers.sum_of_disjoint(table).tolist()


def test_values_of_all_workers_are_gathered():
    first, second = run_ranks(2, gathered)
    assert first == ({0: 0, 1: 1, 2: 4, 3: 9}, [1.0, 2.0, 3.0, 4.0])
    assert second == ({}, first[1])
    assert gathered() == first


def refused() -> list[str]:
    messages = []
    knobs = {"order": "rank", "group_size": None, "kahan": False, "rounding": "nearest_even"}
    for make in (
        lambda: ModelWorkers(Workers.of_group(3)),
        lambda: AllReduceSync(
            format="fp32",
            world_size=3,
            parameter_names=["a"],
            overflow="infinity",
            error_feedback=False,
            **knobs,
        ),
    ):
        with pytest.raises(ValueError) as error:
            make()
        messages.append(str(error.value))
    return messages


def test_ranks_that_cannot_share_the_workers_get_the_same_message():
    text = "nproc=2 does not divide world_size=3: each process must emulate the same number of workers"
    assert run_ranks(2, refused) == [[text] * 2] * 2
