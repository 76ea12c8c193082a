"""The first runs of a sweep start before the others, which do not start if a first run fails at once."""

import io

import pytest
from rich.console import Console

from cpdrun.launch import Display
from cpdrun.launch.base import Event, LaunchOptions
from cpdrun.launch.first_run import FirstRun
from cpdrun.record import Ending, Outcome, write_json

LOCAL = {"_target_": "cpdrun.launch.local.LocalExecutor", "jobs": None, "jobs_per_gpu": 1, "warm_start": True}


@pytest.fixture
def jobs(job):
    return [job(f"r{i}", launcher=LOCAL) for i in range(5)]


def first_run(jobs, **options):
    display = Display(Console(file=io.StringIO(), width=200))
    return FirstRun(jobs, LaunchOptions(jobs=2, **options), display), display


def failed(job, seconds, status=Ending.FAILED):
    return Event(job, Outcome(status, reason="no module named x", started=100.0, ended=100.0 + seconds))


def test_only_as_many_runs_start_as_are_trained_at_a_time(jobs):
    first, display = first_run(jobs)
    assert first.jobs == jobs[:2] and display.total == 3  # the other two are added when they are submitted
    display.expect(2)
    assert display.total == 5
    assert first.more(Event(jobs[1], Outcome(Ending.FINISHED))) == jobs[2:]
    assert first.problem == "" and first.held_back == 0
    assert first.more(failed(jobs[0], 1)) == []  # a later failure concerns that run only


def test_no_other_run_starts_if_the_first_one_fails_at_once(jobs):
    first, display = first_run(jobs)
    assert first.more(failed(jobs[1], 2)) == []
    assert first.held_back == 3
    assert display.message == (
        "The first run failed after 2 s. 3 runs were not started; --keep-going starts them anyway."
    )


@pytest.mark.parametrize(
    ("seconds", "status"), [(60, Ending.FAILED), (1, Ending.KILLED), (1, Ending.PREEMPTED)]
)
def test_other_endings_say_nothing_about_the_other_runs(jobs, seconds, status):
    first, _ = first_run(jobs)
    assert first.more(failed(jobs[0], seconds, status)) == jobs[2:]


def test_nothing_is_held_back_if_the_user_wants_all_runs_or_the_sweep_has_a_result(jobs):
    assert first_run(jobs, keep_going=True)[0].jobs == jobs
    write_json(jobs[4].run.done, {"status": "finished", "metrics": {"test_accuracy": 0.5}})
    assert first_run(jobs)[0].jobs == jobs
