"""Slots determine how many ranks run at once, and on which GPUs."""

import pytest
from driving import drive, finish, wait_for

from cpdrun.launch.machine import resources
from cpdrun.launch.machine.resources import Slots


def test_a_run_takes_a_slot_for_each_rank():
    slots = Slots(["cpu"] * 3)
    assert slots.take(2) == ["cpu", "cpu"]
    assert slots.take(2) is None
    assert slots.take(1) == ["cpu"]
    slots.give_back(["cpu", "cpu"])
    assert slots.take(8) is None  # takes all three, which are not free
    slots.give_back(["cpu"])
    assert slots.take(8) == ["cpu"] * 3


def test_gpus_are_shared_evenly_and_ranks_spread():
    slots = Slots(["0", "1"] * 2)
    assert slots.take(2) == ["0", "1"]
    first = slots.take(1)
    second = slots.take(1)
    assert sorted(first + second) == ["0", "1"]
    assert slots.take(1) is None


def test_cuda_visible_devices_limits_the_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-ab12")
    assert resources.gpus() == ["2", "GPU-ab12"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert resources.gpus() == []


def test_the_limit_of_a_container_limits_the_cores(monkeypatch, tmp_path):
    quota = tmp_path / "cpu.max"
    quota.write_text("100000 100000\n")
    monkeypatch.setattr(resources, "CGROUP_CPU_MAX", quota)
    assert resources.cores() == 1
    quota.write_text("max 100000\n")
    assert resources.cores() >= 1


def test_each_run_sees_its_own_gpu(job, local, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    jobs = [job(name, device="auto", show=["CUDA_VISIBLE_DEVICES"], epoch_s=0.3) for name in "ab"]
    drive(local(jobs=None), jobs)
    seen = {(j.run.path / "seen0.json").read_text().split('"')[3] for j in jobs}
    assert seen == {"4", "7"}


def test_there_are_never_more_ranks_than_slots(job, local):
    executor = local(jobs=3)
    executor.submit([job(f"r{i}", nproc=1 + i % 2, epoch_s=0.1) for i in range(5)])
    widths = []
    while executor.unfinished:
        executor.poll(0.05)
        widths.append(sum(j.nproc for j in executor.running))
    assert max(widths) == 3


@pytest.mark.parametrize("now", [False, True])
def test_an_agent_that_is_still_starting_can_be_stopped(job, local, capfd, now):
    executor = local()
    one = job(epochs=100, epoch_s=0.1)
    executor.submit([one])
    executor.poll(0)
    executor.cancel(now=now)
    outcome = finish(executor)["one"]
    assert (outcome.status, outcome.reason) == ("preempted", "stopped before it had begun")
    assert not one.run.attempts() and not one.run.preempt.exists()
    assert capfd.readouterr().err == ""


def test_an_agent_without_warm_process_starts_cold(job, local, warm):
    executor = local(retries=1)
    executor._warm = own = type(warm)()
    one = job(epochs=20, epoch_s=0.05)
    executor.submit([one])
    executor.poll(0)
    wait_for(one.run.status.exists, "the first epoch")
    own.close()  # and with it the engine and the rank
    assert finish(executor)["one"].status == "finished"
    assert len(one.run.attempts()) == 2


def test_a_dead_warm_process_is_replaced(job, local, warm):
    executor = local()
    executor._warm = type(warm)()
    executor._owns_warm = True
    executor.submit([job("before")])
    finish(executor)
    executor._warm.close()
    assert drive(executor, [job("after")])["after"].status == "finished"
