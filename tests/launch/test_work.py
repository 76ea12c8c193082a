"""`cpdrun sweep --join`: workers that share the folder of a sweep, and a launch that leaves its runs to them."""

import signal
import subprocess
import sys

import pytest
from driving import DEADLINE_S, finish, make_job, processes_of, wait_for

from cpdrun.launch.base import LaunchOptions
from cpdrun.launch.pull import Pool, PullExecutor
from cpdrun.record import Ending, Outcome, Result, State, SweepDir, state_of, write_json


@pytest.fixture
def work(sweep):
    """work(...) -> a started worker of the sweep, which runs one rank at a time."""
    started = []

    def start(*words: str) -> subprocess.Popen:
        options = ["--join", str(sweep.path), "--jobs", "1", *words]
        command = [sys.executable, "-m", "cpdrun.cli", "sweep", *options]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_two_workers_share_a_sweep_and_one_takes_over_from_the_other(sweep, job, work):
    jobs = [job(f"r{i}", epochs=6, epoch_s=0.5) for i in range(5)]
    jobs.append(job("sour", act="crash"))
    one, other = work(), work()
    mine = wait_for(lambda: [j for j in jobs if state_of(j.run) is State.RUNNING][1:], "both to work")
    one.kill()  # as a machine dies; its agent and ranks die with it
    out, err = other.communicate(timeout=DEADLINE_S)
    assert other.returncode == 1, out + err
    assert mine and [state_of(j.run) for j in jobs] == [State.DONE] * 5 + [State.FAILED]
    for done in jobs[:5]:
        epochs = (done.run.path / "trace.txt").read_text().split()
        assert epochs == ["1", "2", "3", "4", "5", "6"], "no epoch was trained twice, and none left out"
    assert len(jobs[5].run.attempts()) == 1, "what failed with one is not tried by the other"
    assert "5 done" in out and "sour" in out
    assert processes_of(sweep.path) == []

    forced = work("--rerun", "failed")
    assert forced.communicate(timeout=DEADLINE_S) and forced.returncode == 1
    assert len(jobs[5].run.attempts()) == 2


def test_an_invalid_config_does_not_block_other_runs(sweep, job):
    _, bad, worse = (job(name) for name in ("good", "bad", "worse"))
    bad.run.config.write_text("format: fp32\n")
    worse.run.config.write_text(worse.run.config.read_text().replace("nproc: 1", "nproc: many"))
    pool = Pool(sweep)
    assert [taken.run.name for taken in pool.take()] == ["good"]
    assert pool.unreadable["bad"].endswith("nproc: is missing") and "whole number" in pool.unreadable["worse"]


def test_a_stopped_worker_takes_no_further_sweep(sweep, job, work):
    one, other = (
        job("one", epochs=1000, epoch_s=0.1),
        make_job(SweepDir(sweep.path.with_name("other")), "two"),
    )
    worker = work(str(other.run.sweep.path))
    wait_for(one.run.status.exists, "the first epoch")
    worker.send_signal(signal.SIGINT)
    assert worker.wait(DEADLINE_S) == 130
    assert (state_of(one.run), state_of(other.run)) == (State.PREEMPTED, State.PENDING)


def test_a_launch_notes_how_workers_retry_and_which_options_have_no_effect(sweep, job):
    one, options = job("one"), LaunchOptions(retries=1)
    executor = PullExecutor(sweep=sweep, options=options)
    executor.submit([one])
    assert executor.note.endswith(str(sweep.path))
    write_json(one.run.new_attempt().exit, Outcome(Ending.FAILED).as_json())
    assert executor.note.endswith(" --rerun failed")
    assert PullExecutor.idle(options) == ["--retries has no effect with this launcher"]
    assert PullExecutor.idle(LaunchOptions()) == []


def test_a_launch_follows_workers_that_are_stopped_and_started_and_stops_them(sweep, job, work):
    one, ready = job("one", epochs=20, epoch_s=0.1), job("ready")
    write_json(ready.run.done, Result(Ending.FINISHED).as_json())
    executor = PullExecutor(sweep=sweep, options=LaunchOptions())
    executor.submit([one, ready])
    worker, events = work(), []
    wait_for(lambda: events.extend(executor.poll(0.1)) or executor.running == [one], "the run to begin")
    assert [(e.job, e.outcome) for e in events if e.outcome] == [(ready, Outcome(Ending.FINISHED))]
    worker.send_signal(signal.SIGINT)
    assert worker.wait(DEADLINE_S) == 130 and state_of(one.run) is State.PREEMPTED
    worker = work()
    wait_for(lambda: state_of(one.run) is State.RUNNING, "the run to go on")
    later, last = job("later"), job("last", epochs=1000, epoch_s=0.1)
    assert finish(executor)["one"].status == "finished"
    assert len((one.run.path / "trace.txt").read_text().split()) == 20
    executor.submit([last])
    wait_for(lambda: executor.poll(0.1) or executor.running == [last], "what came later to be taken")
    executor.cancel(now=False)
    assert finish(executor)["last"].status == "preempted"
    worker.communicate(timeout=DEADLINE_S)
    assert worker.returncode == 130, "a launch that is stopped stops its workers"
    assert state_of(later.run) is State.PENDING
