"""A rank that is killed does not cost an elastic run: the same attempt goes on, with the bits of an undisturbed run."""

import os
import signal

import pytest
from driving import dawdling, drive, family, finish, make_training_job, processes_of, training, wait_for

from cpdrun.launch.attempt.connection import WarmEngine
from cpdrun.launch.base import LaunchOptions
from cpdrun.launch.local import LocalExecutor
from cpdrun.launch.progress.status import run_status
from cpdrun.record import State, SweepDir, read_json

SYNCS = {
    "all_reduce": ["sync.error_feedback=true"],
    "gossip": ["sync=gossip_choco", "aps=false"],
    "local": ["sync=local", "sync.inner_steps=3"],
}


@pytest.fixture(scope="module")
def trainer():
    """An engine that really trains."""
    with training():
        engine = WarmEngine()
        engine.start()
    yield engine
    engine.close()


def process_of(run, rank):
    """The process that writes the log of `rank`."""
    return next(
        (pid for pid in processes_of(run.path) if _writes(pid, run.attempts()[0].rank_log(rank))), None
    )


def _writes(pid, log):
    try:
        return os.readlink(f"/proc/{pid}/fd/1") == str(log)  # noqa: PTH115
    except OSError:
        return False


def test_killed_ranks_change_no_bit(trainer, sweep, tmp_path, monkeypatch):
    """With error feedback, gossip and outer steps, state that only some ranks have is also restored."""
    from cpdrun.train.rank import run_rank

    slow = tmp_path / "slow"
    slow.touch()
    typed = [*dawdling(slow, pause_s=0.15), "epochs=1"]
    jobs = [make_training_job(sweep, *typed, *sync, "nproc=2", "elastic=true") for sync in SYNCS.values()]
    executor = LocalExecutor(6, 1, warm_start=True, sweep=sweep, options=LaunchOptions(), warm=trainer)
    with training():
        executor.submit(jobs)
        executor.poll(0)
    for number, job in enumerate(jobs):
        run = job.run
        wait_for(lambda r=run: r.attempts() and r.attempts()[0].pulse.exists(), "the attempt")
        victim = wait_for(lambda r=run, n=number % 2: process_of(r, n), "the rank")
        touched = run.attempts()[0].pulse.stat().st_mtime_ns
        wait_for(lambda r=run, t=touched: r.attempts()[0].pulse.stat().st_mtime_ns != t, "a step")
        os.kill(victim, signal.SIGKILL)
    for job in jobs:
        wait_for(lambda r=job.run: r.attempts()[0].losses(), "the step that was reached")
    slow.unlink()
    outcomes = finish(executor)
    executor.close()
    monkeypatch.syspath_prepend(os.path.dirname(__file__))  # noqa: PTH120
    for number, (job, sync) in enumerate(zip(jobs, SYNCS.values(), strict=True)):
        (attempt,) = job.run.attempts()
        (lost,) = attempt.losses()
        outcome = outcomes[job.run.name]
        assert (outcome.status, outcome.restarts, attempt.outcome().restarts) == ("finished", 1, 1)
        assert (lost.rank, lost.signal) == (number % 2, signal.SIGKILL)
        assert 0 < lost.seconds == pytest.approx(outcome.lost_seconds, abs=1e-3)
        assert f"rank {number % 2} was killed by SIGKILL after step " in attempt.agent_log.read_text()
        assert "of work lost" in attempt.rank_log(0).read_text()
        assert run_status(job.run)[0].reason.startswith("restarted 1 time, ")
        calm = make_training_job(SweepDir(tmp_path / "calm" / f"run{number}"), *typed, *sync)
        assert calm.run.name == job.run.name, "elastic is no part of what a run is"
        assert run_rank(str(calm.run.path)) == 0
        assert read_json(calm.run.done)["weights_sha256"] == read_json(job.run.done)["weights_sha256"]
        rows, undisturbed = ([r.metrics for r in one.run.rows()] for one in (job, calm))
        assert rows == undisturbed


def test_a_run_that_dies_at_the_same_step_three_times_is_given_up(job, local):
    one = job(act="kill", elastic=True)
    outcome = drive(local(), [one])["one"]
    assert (outcome.status, outcome.exit_code, len(one.run.attempts())) == ("killed", -signal.SIGKILL, 1)
    assert outcome.reason.endswith(" after step 0, 3 times without a further step: given up")
    assert one.run.attempts()[0].agent_log.read_text().count("all ranks start again") == 2
    wait_for(lambda: not processes_of(one.run.path), "the end of every process")


@pytest.mark.parametrize("act", ["crash", "out_of_memory"])
def test_an_error_is_not_retried(job, local, act):
    one = job(act=act, elastic=True)
    assert drive(local(), [one])["one"].restarts is None
    log = one.run.attempts()[0]
    assert "start again" not in log.agent_log.read_text()
    assert log.rank_log(0).read_text().count("rank 0 of 1") == 1


def test_after_a_killed_engine_the_run_continues_from_its_checkpoint(job, local):
    """The state in memory is lost, so the run continues from its checkpoint by itself."""
    one = job(epochs=40, epoch_s=0.05, elastic=True)
    executor = local()
    executor.submit([one])
    executor.poll(0)
    wait_for(one.run.status.exists, "the first epoch")
    one.run.checkpoint.parent.mkdir(exist_ok=True)
    one.run.checkpoint.touch()
    os.kill(family(one)["engine"], signal.SIGKILL)
    assert finish(executor)["one"].status == "finished"
    killed, _ = (attempt.outcome() for attempt in one.run.attempts())
    assert killed.status == "killed" and 0 < killed.lost_seconds < killed.ended - killed.started + 1
    assert run_status(one.run)[0].state is State.DONE
