"""A run with its agent: the agent classifies how the run ended, and no process outlives the others."""

import json
import os
import signal
import subprocess
import sys

import pytest
from driving import drive, family, processes_of, wait_for

from cpdrun.launch.progress.display import informative_log
from cpdrun.launch.slurm.element import answer_of_tasks
from cpdrun.record import Outcome, State, claim, is_claimed, state_of

STATES = {"finished": State.DONE, "diverged": State.DONE}


@pytest.mark.parametrize(
    ("config", "outcome", "exit_code", "reason"),
    [
        ({"act": "finish"}, "finished", 0, ""),
        ({"act": "diverge"}, "diverged", 0, ""),
        ({"act": "crash"}, "failed", 1, "ValueError: the weights are sour"),
        ({"act": "exit", "code": 2}, "failed", 2, "rank 0 of 1"),
        ({"act": "out_of_memory"}, "out of memory", 1, "MemoryError: Unable to allocate 3 TiB"),
        ({"act": "kill"}, "killed", -9, "rank 0 was killed by SIGKILL"),
        ({"act": "silent"}, "failed", 0, "without a result"),
    ],
    ids=lambda value: value["act"] if isinstance(value, dict) else None,
)
def test_each_ending_of_a_run_is_classified(job, local, config, outcome, exit_code, reason):
    one = job(**config)
    got = drive(local(), [one])["one"]
    assert (got.status, got.exit_code) == (outcome, exit_code)
    assert reason in got.reason
    assert one.run.last_attempt().outcome() == got
    assert state_of(one.run) == STATES.get(outcome, State.FAILED)
    assert not processes_of(one.run.path)


def test_the_informative_log_is_that_of_the_failing_rank(job, local):
    one = job(act="crash", nproc=2, failing_rank=1, epoch_s=0.5)
    outcome = drive(local(), [one])["one"]
    assert outcome.rank == 1
    assert informative_log(one.run) == one.run.last_attempt().rank_log(1)


def test_ranks_have_the_environment_of_torchrun(job, local):
    one = job(nproc=2, show=["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "OMP_NUM_THREADS"])
    drive(local(), [one])
    seen = [json.loads((one.run.path / f"seen{rank}.json").read_text()) for rank in (0, 1)]
    for rank in (0, 1):
        assert seen[rank]["RANK"] == seen[rank]["LOCAL_RANK"] == str(rank)
        assert seen[rank]["WORLD_SIZE"] == "2"
        assert seen[rank]["OMP_NUM_THREADS"] == "1"
    assert seen[0]["MASTER_ADDR"] == seen[1]["MASTER_ADDR"]


def test_a_claimed_run_is_not_started(job, local):
    one = job()
    lock = claim(one.run)
    result = _agent(one)
    assert result.status == "elsewhere"
    assert not one.run.attempts()
    os.close(lock)


def test_a_finished_run_is_not_started(job, local):
    one = job()
    drive(local(), [one])
    assert _agent(one).status == "elsewhere"
    assert len(one.run.attempts()) == 1


def test_a_cold_start_needs_no_warm_process(job):
    one = job()
    assert _agent(one).status == "finished"


@pytest.mark.parametrize("victim", ["agent", "engine", "rank"])
def test_no_process_outlives_a_kill(job, local, victim):
    one = job(epochs=1000, epoch_s=0.05)
    executor = local()
    executor.submit([one])
    executor.poll(0)
    wait_for(one.run.status.exists, "the first epoch")
    os.kill(family(one)[victim], signal.SIGKILL)
    wait_for(lambda: not processes_of(one.run.path), "the end of every process")
    wait_for(lambda: not is_claimed(one.run), "the release of the run")
    events = wait_for(lambda: executor.poll(0.1), "the end of the run")
    assert [event.outcome.status for event in events] == ["killed"]


def test_a_run_killed_from_outside_is_retried(job, local):
    one = job(act="once_killed", epochs=3)
    assert drive(local(retries=1), [one])["one"].status == "finished"
    assert [a.outcome().status for a in one.run.attempts()] == ["killed", "finished"]
    assert (one.run.path / "trace.txt").read_text().split() == ["1", "2", "3"]  # no epoch was done twice


def test_a_failure_that_repeats_is_not_retried_further(job, local):
    one = job(act="crash")
    assert drive(local(retries=5), [one])["one"].status == "failed"
    assert len(one.run.attempts()) == 2


def test_the_first_task_to_fail_is_the_cause():
    lost = {"exit_code": 1, "rank": 0, "ended": 103.5}
    killed = {"exit_code": -9, "rank": 3, "ended": 100.1}
    output = b"\n".join(json.dumps(answer).encode() for answer in (lost, killed)) + b"\nsrun: a word\n"
    assert answer_of_tasks(output, 137) == killed
    good = {"exit_code": 0, "rank": None, "ended": 1.0}
    assert answer_of_tasks(json.dumps(good).encode(), 0)["exit_code"] == 0
    # If srun itself failed, its message is in the log.
    assert answer_of_tasks(b"", 1) == {"exit_code": 1, "rank": None}


def test_a_missing_config_fails_only_its_run(job, local):
    one, other = job("one"), job("other")
    one.run.config.unlink()
    outcomes = drive(local(), [one, other])
    assert outcomes["one"].status == "failed"
    assert "config.yaml" in outcomes["one"].reason
    assert outcomes["other"].status == "finished"


def _agent(job) -> Outcome:
    """Run an agent by hand, without a warm process."""
    done = subprocess.run(
        [sys.executable, "-m", "cpdrun.launch.attempt.agent", str(job.run.path)],
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome.read(json.loads(done.stdout.splitlines()[-1]))
