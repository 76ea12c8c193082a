"""What another shell shows of a sweep, its logs and its launch, and how it cancels runs."""

import io
import json
import math
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest
from driving import drive, finish, make_job, wait_for
from rich.console import Console

from cpdrun.launch.base import Event, Job, LaunchOptions
from cpdrun.launch.cancel import cancel_run, cancel_sweep
from cpdrun.launch.local import LocalExecutor
from cpdrun.launch.progress import logs, status
from cpdrun.launch.progress.best_result import BestResult, deciding
from cpdrun.launch.progress.display import Display, print_summary
from cpdrun.launch.progress.status import (
    BestRun,
    RunStatus,
    Snapshot,
    estimate_seconds,
    print_status,
    run_status,
    sweep_document,
    sweep_status,
    watch_status,
)
from cpdrun.launch.summary import FailedRun, LeftRunning, Summary
from cpdrun.record import Ending, Outcome, Result, State, SweepDir, cancellation, json_text, write_json
from cpdrun.sweep import plan


def shown(sweep, *, watch=False, **options):
    """Return what `cpdrun status` prints on a console with these options."""
    out = io.StringIO()
    console = Console(file=out, **{"width": 140, **options})
    if watch:
        watch_status(console, sweep)
    else:
        print_status(console, sweep_status(sweep))
    return out.getvalue()


@pytest.fixture(scope="module")
def ended(tmp_path_factory, warm):
    """A sweep with a run in each state but running, from a real launch. Tests that change it use `mixed`."""
    sweep = SweepDir(tmp_path_factory.mktemp("ended") / "sweep")
    acts = {"done": "finish", "failed": "crash", "wild": "diverge"}
    options = {"warm_start": True, "sweep": sweep, "options": LaunchOptions(), "warm": warm}
    executor = LocalExecutor(2, 1, **options)
    drive(executor, [make_job(sweep, name, act=act) for name, act in acts.items()])
    executor.close()
    make_job(sweep, "waiting")
    return sweep


@pytest.fixture
def mixed(ended, sweep):
    """A copy of the ended sweep."""
    shutil.copytree(ended.path, sweep.path)
    return sweep


def test_each_state_is_shown_with_its_reason(ended):
    rows = {row.name: row for row in sweep_status(ended).rows}
    assert rows["done"].state is State.DONE and rows["done"].test_accuracy == 0.5
    assert rows["failed"].state is State.FAILED
    assert rows["failed"].reason == "ValueError: the weights are sour"
    assert rows["wild"].state is State.DONE and rows["wild"].diverged
    assert rows["waiting"].state is State.PENDING and rows["waiting"].attempt is None


def test_a_running_run_is_shown_with_its_host_and_time_left(job, local):
    one = job(epochs=100, epoch_s=0.1)
    executor = local()
    executor.submit([one])
    executor.poll(0)
    wait_for(lambda: (run_status(one.run)[0].epoch or 0) >= 3, "three epochs")
    row = run_status(one.run)[0]
    assert row.state is State.RUNNING
    assert row.where.startswith(f"{os.uname().nodename}, agent ")
    assert 5 < row.seconds_left < 60
    assert cancel_run(one.run)
    assert finish(executor)["one"].status == "preempted"
    assert not cancel_run(one.run)  # it does not run any more


def test_json_and_table_agree(ended):
    text = shown(ended)
    assert "2 done, 1 failed, 1 pending" in text and "the weights are sour" in text
    rows = asdict(sweep_document(sweep_status(ended)))["runs"]
    assert {row["name"]: row["state"] for row in rows}["failed"] == "failed"


def test_watching_ends_with_the_sweep_or_when_nobody_launches_it(mixed, monkeypatch):
    monkeypatch.setattr(status, "WATCH_S", 0.01)
    monkeypatch.setattr(status, "IDLE_S", 0.0)
    assert "1 pending" in shown(mixed, watch=True)
    monkeypatch.setattr(status, "IDLE_S", 1e9)
    shutil.rmtree(mixed.run("waiting").path)
    assert "2 done, 1 failed" in shown(mixed, watch=True)


def test_a_narrow_table_shows_complete_names_and_reasons_below(ended):
    text = shown(ended, width=70, force_terminal=True, color_system=None)
    assert "failed: ValueError: the weights are sour\n" in text
    assert "where or why" not in text


def test_a_thousand_pending_runs_are_shown_from_few_files(sweep, opened):
    for i in range(1000):
        run = sweep.run(f"r{i:04d}")
        run.path.mkdir(parents=True)
        run.config.write_text("nproc: 1\n")
    opened.clear()
    assert len(sweep_status(sweep).rows) == 1000
    assert len(opened) <= 1001  # the lock of each, and the sweep's own record
    opened.clear()
    shown(sweep)
    assert len(opened) <= 1001


def test_a_thousand_runs_are_planned_from_few_compositions(opened):
    assert len(plan(["exp=digits_bits", "seed=range(77)"]).runs) == 1001
    what_is_installed = [path for path in opened if path.endswith("/entry_points.txt")]
    assert len(what_is_installed) == len(set(what_is_installed))
    assert len(opened) - len(what_is_installed) < 100


def test_the_estimate_is_based_on_the_median_of_done_runs(sweep):
    for i, seconds in enumerate((4.0, 6.0, 100.0)):
        sweep.run(f"r{i}").path.mkdir(parents=True)
        write_json(sweep.run(f"r{i}").done, {"status": "finished", "wall_seconds": seconds})
    assert estimate_seconds(sweep.runs(), todo=10, slots=2) == 30.0
    assert estimate_seconds([], todo=10, slots=2) is None


def test_logs_show_the_error_of_a_run(ended):
    text = "".join(logs.lines(ended.run("failed")))
    assert text.endswith("ValueError: the weights are sour\n")
    done = ended.run("done")
    assert logs.log_of(done) == done.last_attempt().rank_log(0)
    with pytest.raises(logs.NoLogError, match="has not begun"):
        logs.log_of(ended.run("waiting"))
    with pytest.raises(logs.NoLogError, match=r"no log of rank 5 \(ranks 0 to 0 have one\)"):
        logs.log_of(done, rank=5)


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


ODD = {
    "a folder in place of done.json": lambda run: (run.done.unlink(), run.done.mkdir()),
    "where.json without a process": lambda run: write_json(run.last_attempt().where, {"host": "here"}),
    "where.json of another kind": lambda run: write_json(run.last_attempt().where, {"host": 5, "pid": []}),
    "progress of another kind": lambda run: write_json(run.status, {"epoch": "x", "epochs": None}),
    "deep JSON": lambda run: run.done.write_text("[" * 100_000),
    "metrics alone": lambda run: run.done.write_text('{"metrics": {}}'),
    "an attempt without end": lambda run: (run.done.unlink(), write_json(run.last_attempt().exit, [])),
    "an attempt that is a file": lambda run: (run.path / "attempts" / "7").write_text(""),
    "half a file": lambda run: (run.done.write_text('{"status": "fin'), run.status.write_text("[1, 2")),
    "an empty exit.json": lambda run: (run.done.unlink(), run.last_attempt().exit.write_text("")),
}


@pytest.mark.parametrize("damage", ODD.values(), ids=ODD)
def test_a_damaged_run_has_its_line_and_does_not_affect_the_others(mixed, damage):
    damage(mixed.run("wild"))
    lines = shown(mixed).splitlines()
    assert any(line.startswith("wild ") for line in lines)
    assert next(line for line in lines if line.startswith("done ")).split()[1:4] == ["done", "1/1", "50.0%"]
    json.loads(json_text(asdict(sweep_document(sweep_status(mixed)))))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not read")
def test_an_unreadable_run_has_its_line(open_sweep):
    sweep = open_sweep
    for name in ("one", "other"):
        sweep.run(name).path.mkdir(parents=True)
        write_json(sweep.run(name).done, {"status": "finished"})
    sweep.run("one").path.chmod(0o700)
    os.seteuid(65534)
    try:
        rows = {row.name: row for row in sweep_status(sweep).rows}
    finally:
        os.seteuid(0)
    assert (rows["one"].state, rows["other"].state) == (State.FAILED, State.DONE)
    assert rows["one"].reason.startswith("cannot be read: Permission denied: ")


@pytest.fixture
def open_sweep():
    """A sweep that all users can read, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield SweepDir(Path(folder) / "sweep")


def test_every_axis_is_a_column(job, sweep):
    """On a narrow terminal, hashes stand for the names of runs, because they identify them, too."""
    names = [f"convnet-e4m3-w8-s0-000000000{i}" for i in range(2)]
    cases = ["'8 bits, top-k'", "fp32"]
    for name, rate, case in zip(names, ("0.1", "0.2"), cases, strict=True):
        one = job(name)
        lines = ["exp=digits_bits", "optim.lr=0.1,0.2", "format=e4m3", f"optim.lr={rate}", f"case={case}"]
        one.run.overrides.write_text("\n".join([*lines, "script.args.depth=2"]))
        write_json(one.run.done, {"status": "finished", "metrics": {"test_accuracy": 0.5}})
    sweep.manifest.write_text(
        "axes: {optim.lr: [0.1, 0.2], format: [e4m3, e5m2], seed: [0], case: [a, b], script.args.depth: [1, 2]}\n"
    )
    values = [("0.1", "8 bits, top-k"), ("0.2", "fp32")]
    assert [row.axes for row in sweep_document(sweep_status(sweep)).runs] == [
        {"optim.lr": rate, "format": "e4m3", "case": case, "script.args.depth": "2"} for rate, case in values
    ]
    for options, name in (({"width": 80, "force_terminal": True}, "0000000000"), ({}, names[0])):
        lines = shown(sweep, color_system=None, **options).splitlines()
        assert lines[0].split()[:6] == ["run", "lr", "format", "case", "depth", "state"]
        assert [*lines[1].split()[:3]] == [name, "0.1", "e4m3"] and "8 bits, top-k" in lines[1]


def test_runs_that_wait_for_the_first_one_are_pending(job, sweep):
    job("one")
    sweep.manifest.write_text("axes: {}\nruns: [one, another]\n")
    assert [(row.name, row.state) for row in sweep_status(sweep).rows] == [
        ("another", State.PENDING),
        ("one", State.PENDING),
    ]


def test_the_best_run_and_the_time_left_are_shown(sweep, monkeypatch):
    for i, accuracy in enumerate((0.8, 0.9, 0.7)):
        sweep.run(f"r{i}").path.mkdir(parents=True)
        done = {"status": "finished", "metrics": {"test_accuracy": accuracy}, "wall_seconds": 10.0}
        write_json(sweep.run(f"r{i}").done, done)
    for i in range(3, 6):
        sweep.run(f"r{i}").path.mkdir()
    running = RunStatus("r3", State.RUNNING, seconds_left=4.0)
    found = lambda run, axes=(): (running, None) if run.name == "r3" else run_status(run, axes)  # noqa: E731
    monkeypatch.setattr(status, "run_status", found)
    document = sweep_document(sweep_status(sweep))
    assert document.best == BestRun("r1", "test_accuracy", 0.9)
    assert document.seconds_left == 24.0  # 4 s of the running run, then two runs of 10 s
    assert shown(sweep).splitlines()[-1].endswith("best so far 90.0% (r1); about 24.0 s left")
    sweep.manifest.write_text("search: {expected_runs: 9}\n")
    # A search is likely to need 9 runs, so five more of 10 s.
    assert sweep_document(sweep_status(sweep)).seconds_left == 54.0


def test_a_loss_is_best_if_it_is_low_and_a_metric_of_unknown_direction_has_no_best():
    best = BestResult()
    for label, loss in (("a", 0.5), ("b", 0.4), ("c", None), ("d", math.inf)):
        best.add(label, Result.read({"status": "finished", "metrics": {"test_loss": loss}}))
    assert best.text == "best so far 0.4 (b)"
    unknown = BestResult()
    unknown.add("a", Result.read({"status": "finished", "metrics": {"odd": 1.0}, "judged_by": "odd"}))
    assert unknown.text == ""


def test_watching_in_a_pipe_prints_a_line_for_each_change(sweep, monkeypatch):
    name = "convnet-e4m3-w8-s0-1f0c2d3e4a"
    seen = iter(
        [
            [RunStatus(name, State.PENDING)],
            [RunStatus(name, State.RUNNING, epoch=1, epochs=2)],
            [RunStatus(name, State.RUNNING, epoch=2, epochs=2)],
            [RunStatus(name, State.DONE, epoch=2, epochs=2, test_accuracy=0.75)],
        ]
    )
    monkeypatch.setattr(status, "sweep_status", lambda _: Snapshot(sweep, next(seen), {}))
    monkeypatch.setattr(status, "WATCH_S", 0.0)
    assert shown(sweep, watch=True).splitlines() == [
        "sweep: 1 pending",
        f"running {name}  1/2",
        f"done {name}  2/2  75.0%",
        "sweep: 1 done",
    ]


def test_control_characters_of_a_name_do_not_reach_the_terminal(job, local, sweep):
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    drive(local(), [job(f"a{evil}", act="crash")])
    run = next(sweep.runs())
    write_json(run.last_attempt().exit, {"outcome": "failed", "reason": f"sour {evil}"})
    failed, left = FailedRun(run.name, f"sour {evil}"), LeftRunning(run.name, f"7 (daemon {evil})")
    out = io.StringIO()
    print_summary(Console(file=out, width=300), sweep, Summary(failed=[failed], left_running=[left]))
    tables = [shown(sweep, width=width, force_terminal=True, color_system=None) for width in (70, 300)]
    text = "".join([*tables, out.getvalue()])
    assert r": 7 (daemon \x1b]0;owned\x07\x1b[2J\u202e)" in text
    assert not set(text) & set(evil[:1] + "\x07\u202e")
    assert r"sour \x1b]0;owned\x07\x1b[2J\u202e" in text


def test_a_summary_folds_progress_bars_and_prints_each_reason_once(mixed):
    sweep, runs = mixed, [mixed.run("failed"), mixed.run("wild")]
    for run in runs:
        with run.last_attempt().rank_log(0).open("a") as log:
            log.write("\r1/3 [>  ]\r2/3 [=> ]\r3/3 [==>]\nerror: boom\n")
    out = io.StringIO()
    summary = Summary(failed=[FailedRun(run.name, "error: boom") for run in runs])
    print_summary(Console(file=out, width=300), sweep, summary)
    lines = out.getvalue().splitlines()
    assert "    3/3 [==>]" in lines and not any("2/3" in line for line in lines)
    assert [line for line in lines if "boom" in line] == [
        f"failed {runs[0].name} and 1 more run: error: boom"
    ]
    assert f"failed for the same reason: {runs[1].name}" in lines


def test_logs_escape_control_characters_on_a_terminal_and_not_in_a_pipe(mixed):
    one = mixed.run("failed")
    with one.last_attempt().rank_log(0).open("a") as log:
        log.write("\x1b[2Jcleared\tof all\n")
    command = [sys.executable, "-m", "cpdrun.cli", "logs", str(one.path)]
    assert b"\x1b[2Jcleared\tof all\n" in subprocess.check_output(command)
    ours, theirs = pty.openpty()
    subprocess.run(command, stdout=theirs, check=True)
    shown = os.read(ours, 65536).decode()
    assert "\x1b" not in shown and r"\x1b[2Jcleared" in shown


def test_lines_of_a_launch_show_the_axes_of_a_run(sweep):
    out = io.StringIO()
    display = Display(Console(file=out, width=200), axes=["precision.accumulator", "format"])
    typed = ["precision.accumulator=fp32,e5m2", "format=e4m3", "precision.accumulator=e5m2"]
    one = Job(sweep.run("convnet-e4m3-w8-s0-1f0c2d3e4a"), {}, typed)
    display.event(Event(one))
    display.event(Event(one, Outcome(Ending.FAILED, reason="sour")))
    lines = out.getvalue().splitlines()
    assert lines[0] == "start convnet-e4m3-w8-s0-1f0c2d3e4a precision.accumulator=e5m2"
    assert lines[1].startswith("failed convnet-e4m3-w8-s0-1f0c2d3e4a precision.accumulator=e5m2  sour ")


def test_a_run_that_ends_is_shown_with_the_metric_that_judges_it():
    def told(judged_by, metrics):
        result = Result.read({"status": "finished", "metrics": metrics, "judged_by": judged_by})
        return deciding(result).text

    of_text = {"test_accuracy": 0.3, "test_bits_per_byte": 2.04364}
    assert told("test_bits_per_byte", of_text) == "test bits per byte 2.044"
    assert told("test_bits_per_byte", {**of_text, "test_bits_per_byte": None}) == "test accuracy 30.0%"
    assert (
        told("test_accuracy", {"test_accuracy": 0.5})
        == told(None, {"test_accuracy": 0.5})
        == "test accuracy 50.0%"
    )
    asked_for = Result.read({"status": "finished", "metrics": of_text, "judged_by": "test_accuracy"})
    assert deciding(asked_for, "test_bits_per_byte").text == "test bits per byte 2.044"


def test_a_run_that_ends_leaves_a_line_with_its_metric_on_a_terminal(sweep):
    out = io.StringIO()
    display = Display(Console(file=out, width=200, force_terminal=True, color_system=None), axes=["optim.lr"])
    display.expect(3)
    with display:
        for name, accuracy in (("a-0123456789", 0.5), ("b-0123456789", 0.75), ("c-0123456789", 0.25)):
            job = Job(sweep.run(name), {}, ["optim.lr=0.1"])
            display.event(Event(job))
            job.run.path.mkdir(parents=True)
            write_json(job.run.done, {"status": "finished", "metrics": {"test_accuracy": accuracy}})
            display.event(Event(job, Outcome(Ending.FINISHED)))
    lines = [line for line in out.getvalue().splitlines() if "finished" in line]
    assert re.search(
        r"finished a-0123456789 optim.lr=0.1  test accuracy 50.0%  .* s  \[1/3\]  the best so far", lines[0]
    )
    assert re.search(r"\[2/3\]  the best so far  about .* s left$", lines[1])
    assert lines[2].endswith("[3/3]  best so far 75.0% (b optim.lr=0.1)")


def test_a_repeated_reason_is_printed_once(sweep):
    out = io.StringIO()
    display = Display(Console(file=out, width=200))
    for name in ("a", "b"):
        display.event(Event(Job(sweep.run(name), {}, []), Outcome(Ending.FAILED, reason="no module named x")))
    assert out.getvalue().count("no module named x") == 1
    assert "failed b  for the same reason" in out.getvalue()
