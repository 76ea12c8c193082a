"""`cpdrun work`: workers that share the folder of a sweep, and a launch that leaves its runs to them."""

import signal
import subprocess
import sys

import pytest
from driving import finish, processes_of, wait_for

from cpdrun.launch.base import LaunchOptions
from cpdrun.launch.pull import PullExecutor
from cpdrun.record import State, state_of


@pytest.fixture
def work(sweep):
    """work(...) -> a worker of the sweep that was started; each runs one rank at a time, as on machines of one core."""
    started = []

    def start(*words: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "cpdrun.cli", "work", str(sweep.path), "--jobs", "1", *words]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_two_workers_share_a_sweep_and_one_takes_over_what_the_other_dropped(sweep, job, work):
    jobs = [job(f"r{i}", epochs=6, epoch_s=0.1) for i in range(5)]
    jobs.append(job("sour", act="crash"))
    one, other = work(), work()
    mine = wait_for(lambda: [j for j in jobs if state_of(j.run) is State.RUNNING][1:], "both to work")
    one.kill()  # as a machine dies; its agent and ranks die with it
    out, err = other.communicate(timeout=60)
    assert other.returncode == 1, out + err
    assert mine and [state_of(j.run) for j in jobs] == [State.DONE] * 5 + [State.FAILED]
    for done in jobs[:5]:
        epochs = (done.run.path / "trace.txt").read_text().split()
        assert epochs == ["1", "2", "3", "4", "5", "6"], "no epoch was trained twice, and none left out"
    assert len(jobs[5].run.attempts()) == 1, "what failed with one is not tried by the other"
    assert "5 done" in out and "sour" in out
    assert processes_of(sweep.path) == []

    again, forced = work(), work("--rerun", "failed")
    assert "nothing is left to do" in again.communicate(timeout=60)[0] and again.returncode == 0
    assert forced.communicate(timeout=60) and forced.returncode == 1
    assert len(jobs[5].run.attempts()) == 2


def test_a_worker_that_is_stopped_saves_and_goes_on_and_takes_what_comes_later(sweep, job, work):
    one = job("one", epochs=20, epoch_s=0.1)
    worker = work()
    wait_for(lambda: (one.run.path / "trace.txt").exists(), "the first epoch")
    worker.send_signal(signal.SIGINT)
    assert worker.wait(60) == 130 and state_of(one.run) is State.PREEMPTED
    worker = work()
    wait_for(lambda: state_of(one.run) is State.RUNNING, "the run to go on")
    later = job("later")
    out, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0, out
    assert state_of(later.run) is state_of(one.run) is State.DONE
    assert len((one.run.path / "trace.txt").read_text().split()) == 20


def test_a_launch_that_leaves_its_runs_to_workers_watches_them(sweep, job, work):
    jobs = [job("good"), job("sour", act="crash"), job("tough", epochs=100, epoch_s=0.1)]
    executor = PullExecutor(sweep=sweep, options=LaunchOptions())
    executor.submit(jobs)
    worker, events = work(), []
    wait_for(lambda: events.extend(executor.poll(0.1)) or jobs[2] in executor.running, "the last to run")
    ends = {event.job.run.name: event.outcome.status for event in events if event.outcome}
    assert ends == {"good": "finished", "sour": "failed"}
    executor.cancel(now=False)
    assert finish(executor)["tough"].status == "preempted"
    worker.communicate(timeout=60)
    assert worker.returncode == 1, "and stops its workers"
