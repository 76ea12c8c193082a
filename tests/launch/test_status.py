"""What another shell sees of a sweep, and how it stops one."""

import io
import json
import os
import time

import pytest
from driving import drive, finish, wait_for
from rich.console import Console

from cpdrun.launch import logs, status
from cpdrun.launch.cancel import cancel_run, cancel_sweep
from cpdrun.launch.status import as_json, estimate_seconds, print_status, run_status, sweep_status
from cpdrun.record import State, cancellation, write_json
from cpdrun.sweep import plan


@pytest.fixture
def mixed(job, local):
    """A run of each state but running."""
    jobs = [job("done"), job("failed", act="crash"), job("wild", act="diverge")]
    drive(local(), jobs)
    return [*jobs, job("waiting")]


def test_each_state_is_told_with_its_reason(mixed, sweep):
    rows = {row.name: row for row in sweep_status(sweep)}
    assert rows["done"].state is State.DONE and rows["done"].test_accuracy == 0.5
    assert (
        rows["failed"].state is State.FAILED and rows["failed"].reason == "ValueError: the weights are sour"
    )
    assert rows["wild"].state is State.DONE and rows["wild"].diverged
    assert rows["waiting"].state is State.PENDING and rows["waiting"].attempt is None


def test_a_running_run_tells_where_and_how_long(job, local):
    one = job(epochs=100, epoch_s=0.1)
    executor = local()
    executor.submit([one])
    executor.poll(0)
    wait_for(lambda: (run_status(one.run).epoch or 0) >= 3, "three epochs")
    row = run_status(one.run)
    assert row.state is State.RUNNING
    assert row.where.startswith(f"{os.uname().nodename}, agent ")
    assert 5 < row.seconds_left < 60
    assert cancel_run(one.run)
    assert finish(executor)["one"]["outcome"] == "preempted"
    assert not cancel_run(one.run)  # it does not run any more


def test_json_and_table_say_the_same(mixed, sweep):
    out = io.StringIO()
    print_status(Console(file=out, width=140), sweep, watch=False)
    assert "2 done, 1 failed, 1 pending" in out.getvalue()
    rows = json.loads(as_json(sweep_status(sweep)))
    assert {row["name"]: row["state"] for row in rows}["failed"] == "failed"
    assert "the weights are sour" in out.getvalue()


def test_watching_ends_with_the_sweep(job, local, sweep):
    drive(local(), [job()])
    out = io.StringIO()
    print_status(Console(file=out, width=140), sweep, watch=True)
    assert "1 done" in out.getvalue()


def test_watching_ends_when_nobody_launches_any_more(mixed, sweep, monkeypatch):
    monkeypatch.setattr(status, "IDLE_S", 0.0)
    monkeypatch.setattr(status, "WATCH_S", 0.01)
    out = io.StringIO()
    print_status(Console(file=out, width=140), sweep, watch=True)
    assert "1 pending" in out.getvalue()


def test_a_narrow_table_shows_names_whole_and_reasons_below(mixed, sweep):
    out = io.StringIO()
    print_status(Console(file=out, width=70), sweep)
    assert "failed: ValueError: the weights are sour\n" in out.getvalue()
    assert "where, or why" not in out.getvalue()


def test_damaged_files_do_not_stop_the_table(mixed, sweep):
    mixed[0].run.done.write_text('{"status": "fin')
    mixed[1].run.last_attempt().exit.write_text("")
    mixed[1].run.status.write_text("[1, 2")
    rows = {row.name: row for row in sweep_status(sweep)}
    assert "holds no record" in rows["done"].reason
    assert rows["failed"].state is State.PREEMPTED


def test_a_thousand_pending_runs_take_less_than_a_second(sweep):
    for i in range(1000):
        run = sweep.run(f"r{i:04d}")
        run.path.mkdir(parents=True)
        run.config.write_text("nproc: 1\n")
    began = time.perf_counter()
    rows = sweep_status(sweep)
    print_status(Console(file=io.StringIO()), sweep, watch=False)
    assert time.perf_counter() - began < 1.0
    assert len(rows) == 1000


def test_a_thousand_runs_are_planned_in_less_than_three_seconds():
    began = time.process_time()
    assert len(plan(["exp=digits_bits", "seed=range(77)"]).runs) == 1001
    assert time.process_time() - began < 3.0


def test_the_estimate_is_the_median_of_what_is_done(sweep):
    for i, seconds in enumerate((4.0, 6.0, 100.0)):
        sweep.run(f"r{i}").path.mkdir(parents=True)
        write_json(sweep.run(f"r{i}").done, {"status": "finished", "wall_seconds": seconds})
    assert estimate_seconds(sweep.runs(), todo=10, slots=2) == 30.0
    assert estimate_seconds([], todo=10, slots=2) is None


def test_logs_show_what_went_wrong(mixed):
    text = "".join(logs.lines(mixed[1].run))
    assert text.endswith("ValueError: the weights are sour\n")
    assert logs.log_of(mixed[0].run) == mixed[0].run.last_attempt().rank_log(0)


def test_logs_of_nothing_are_one_line(mixed):
    with pytest.raises(logs.NoLogError, match="has not begun"):
        logs.log_of(mixed[3].run)
    with pytest.raises(logs.NoLogError, match=r"no log of rank 5 \(ranks 0 to 0 have one\)"):
        logs.log_of(mixed[0].run, rank=5)


def test_logs_follow_until_the_end(job, local):
    one = job(epochs=5, epoch_s=0.1, act="crash")
    executor = local()
    executor.submit([one])
    executor.poll(0)
    wait_for(one.run.last_attempt, "the attempt")
    text = "".join(logs.lines(one.run, follow=True))
    assert text.startswith("rank 0 of 1") and text.endswith("the weights are sour\n")
    finish(executor)


def test_cancelling_a_sweep_is_seen_by_its_launchers(sweep, job):
    job()
    before = cancellation(sweep)
    assert cancel_sweep(sweep) == (0, 0)
    assert cancellation(sweep) != before
