"""Hanging runs and runs past their time limit end by themselves, and a rank exits at once when it loses another."""

import os
import signal
import subprocess
import sys

import pytest
from driving import DEADLINE_S, drive, family, finish, processes_of, wait_for

from cpdrun.launch.attempt.watchdog import ASLEEP_S, Watchdog
from cpdrun.record import State, state_of


@pytest.mark.parametrize(("victim", "nproc"), [("rank", 1), ("engine", 1), ("rank", 2)])
def test_a_stopped_process_ends_the_run(job, local, victim, nproc):
    # On an idle machine a rank starts in one second, so a patience of 12 s leaves a margin.
    one = job(epochs=4000, epoch_s=0.05, patience_s=12, nproc=nproc)
    executor = local()
    drive(executor, [job("before")])  # so that the warm engine has imported torch
    executor.submit([one])
    executor.poll(0)
    wait_for(one.run.status.exists, "the first epoch")
    others = family(one)
    os.kill(others["rank"], signal.SIGSTOP)
    os.kill(others[victim], signal.SIGSTOP)
    outcome = finish(executor)["one"]
    assert (outcome.status, outcome.rank) == ("failed", 0)
    assert outcome.reason == "rank 0 was stopped by a signal: no step in 12 s (patience_s)"
    assert state_of(one.run) is State.FAILED
    wait_for(lambda: not processes_of(one.run.path), "the end of every process")


def test_run_past_its_limit_saves_and_is_not_retried(job, local):
    one = job(epochs=4000, epoch_s=0.05, limit_s=1.5)
    outcome = drive(local(retries=3), [one])["one"]
    assert outcome.status == "failed"
    assert (
        outcome.reason
        == "took longer than limit_s=1.5. With a higher limit, it continues from its checkpoint"
    )
    assert one.run.checkpoint.exists() and not one.run.preempt.exists()
    assert len(one.run.attempts()) == 1


@pytest.mark.parametrize("how", ["by itself", "stopped at once"])
def test_run_does_not_wait_for_processes_that_a_rank_left_behind(job, local, how):
    """Let a rank fork a process that holds the lock and the connection of its run."""
    patience_s = (
        8 if how == "by itself" else 600
    )  # 8 is less than the time that the agent waits for the process
    one = job(act="daemon", patience_s=patience_s)
    executor = local()
    drive(executor, [job("before")])
    executor.submit([one])
    executor.poll(0)
    left = one.run.path / "left"
    wait_for(lambda: one.run.done.exists() and left.exists(), "the end of the rank")
    try:
        if how == "stopped at once":
            executor.cancel(now=False)
            executor.cancel(now=True)
        assert finish(executor)["one"].status == "finished"
        assert f"left processes running: {left.read_text()} (" in one.run.last_attempt().agent_log.read_text()
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def watch(watchdog, clock, seconds):
    for _ in range(seconds):
        clock.now += 1
        watchdog.look()


def test_watchdog_counts_from_the_last_pulse(tmp_path, clock):
    watchdog = Watchdog(tmp_path / "pulse", patience_s=30, limit_s=None, clock=clock)
    watch(watchdog, clock, 29)
    (tmp_path / "pulse").touch()
    watch(watchdog, clock, 30)
    assert not watchdog.hangs
    os.utime(tmp_path / "pulse", (5, 5))  # another time, whichever: clocks of machines need not agree
    watch(watchdog, clock, 31)
    assert not watchdog.hangs
    watch(watchdog, clock, 1)
    assert "no step in 30 s" in watchdog.hangs
    assert watchdog.overtime_s <= 0


def test_watchdog_ignores_time_in_which_it_was_suspended(tmp_path, clock):
    """Slurm suspends a job with its agent."""
    watchdog = Watchdog(tmp_path / "pulse", patience_s=30, limit_s=50, clock=clock)
    watch(watchdog, clock, 20)
    clock.now += 100 * ASLEEP_S
    watch(watchdog, clock, 9)
    assert not watchdog.hangs and watchdog.overtime_s <= 0
    watch(watchdog, clock, 25)
    assert watchdog.hangs and 0 < watchdog.overtime_s < 10


LEFT_OVER = """
import sys, time
import torch.distributed as dist
from cpdrun.comm import RankLost
from cpdrun.train import rank as worker

def lose(*_):
    raise RankLost("rank 1 did not come to an exchange in time; rank 0 stops")

worker.meet = lambda *_: None
worker._train = lose
dist.is_initialized = lambda: True
dist.destroy_process_group = lambda: time.sleep(600)  # as gloo's destructor in half of all tries
worker.run_rank(sys.argv[1])
"""


def test_rank_that_lost_another_exits_although_gloo_waits(make_run):
    run = make_run()
    environ = os.environ | {"RANK": "0", "WORLD_SIZE": "2"}
    environ.pop("CPDRUN_ATTEMPT_DIR", None)
    left = subprocess.run(
        [sys.executable, "-c", LEFT_OVER, str(run.path)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert left.returncode == 1
    assert left.stderr.splitlines()[-1].endswith("rank 1 did not come to an exchange in time; rank 0 stops")
