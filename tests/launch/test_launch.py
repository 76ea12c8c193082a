"""A complete launch in its own process: what it counts, prints and leaves behind."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from driving import DEADLINE_S, HERE, family, processes_of, wait_for
from shared_modules import STAND_IN_VARIABLE

from cpdrun.launch.base import Job
from cpdrun.launch.cancel import cancel_sweep
from cpdrun.launch.progress.status import sweep_status
from cpdrun.launch.summary import training_share
from cpdrun.parent import RUNNER_VARIABLE
from cpdrun.record import State, state_of, write_json


@pytest.fixture
def launcher(sweep):
    """launcher(jobs={...}, ...) -> a started process that launches them."""
    started = []

    def start(**request) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "script.py"), str(sweep.path), json.dumps(request)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
    wait_for(lambda: not processes_of(sweep.path), "the end of every process")


@pytest.fixture
def own_engine(monkeypatch):
    """Let launchers start the engine as their own child, so that it inherits their signal settings."""
    monkeypatch.setenv(RUNNER_VARIABLE, "stand_in")


def result(process: subprocess.Popen) -> tuple[int, dict, str]:
    """Return the exit code, the summary, and everything that was printed before the summary."""
    out, err = process.communicate(timeout=DEADLINE_S)
    lines = out.splitlines()
    assert lines, err
    return process.returncode, json.loads(lines[-1]), "\n".join(lines[:-1])


def test_runs_finish_and_failures_are_shown(launcher, sweep):
    jobs = {"good": {}, "bad": {"act": "crash"}, "wild": {"act": "diverge"}, "better": {"epoch_s": 0.2}}
    code, summary, text = result(launcher(jobs=jobs))
    assert code == 1
    assert (summary["done"], summary["diverged"], summary["failed"]) == (2, 1, ["bad"])
    assert "Traceback" in text  # the last lines of the failing log
    assert f"the whole log: {sweep.run('bad').last_attempt().rank_log(0)}" in text
    assert text.count("start ") == text.count("s  [") == 4  # a line a start, a line an end
    assert not summary["torch_imported"]


def test_the_training_share_is_relative_to_wall_time_and_slots(launcher):
    code, summary, text = result(launcher(jobs={"a": {"epochs": 4, "epoch_s": 0.5}}, options={"jobs": 1}))
    assert code == 0
    assert summary["training_share"] == pytest.approx(2.0 / summary["wall_seconds"])
    assert f"training took {100 * summary['training_share']:.0f}% of the core-seconds" in text


def test_a_resumed_run_does_not_count_its_earlier_training(job):
    one = job()
    write_json(one.run.done, {"status": "finished", "train_seconds": 100.0})
    assert training_share([(one, 5.0)], slots=2, wall_seconds=10.0) == 0.25


def test_not_waiting_needs_a_scheduler(launcher, sweep):
    process = launcher(jobs={"a": {}}, options={"wait": False})
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "--launcher slurm" in err and err.count("\n") == 1


def test_problems_found_by_the_check_leave_nothing_on_disk(launcher, sweep):
    process = launcher(jobs={"a": {"data": "missing"}, "b": {}})
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (2, "", "error: no such data: missing\n")
    assert not sweep.path.exists()


def test_a_launch_interrupted_once_saves_and_continues_later(launcher, sweep):
    jobs = {name: {"epochs": 40, "epoch_s": 0.05} for name in ("a", "b", "c")}
    process = launcher(jobs=jobs)
    wait_for(sweep.run("a").status.exists, "the first epoch")
    process.send_signal(signal.SIGINT)
    code, summary, text = result(process)
    assert (code, summary["interrupted"], summary["failed"]) == (130, 3, [])
    assert "stopping" in text
    assert [state_of(sweep.run(n)) for n in jobs] == [State.PREEMPTED, State.PREEMPTED, State.PENDING]
    assert not sweep.run("a").preempt.exists()

    code, summary, _ = result(launcher(jobs=jobs))
    assert (code, summary["done"]) == (0, 3)
    epochs = (sweep.run("a").path / "trace.txt").read_text().split()
    assert epochs == [str(n) for n in range(1, 41)]  # went on where it was, and did nothing twice


def test_a_launch_interrupted_twice_stops_at_once(launcher, sweep):
    process = launcher(jobs={"a": {"epochs": 2, "epoch_s": 600}})
    attempt = wait_for(lambda: sweep.run("a").last_attempt(), "the attempt")
    wait_for(attempt.rank_log(0).exists, "the rank")
    process.send_signal(signal.SIGINT)
    wait_for(sweep.run("a").preempt.exists, "the first request")
    process.send_signal(signal.SIGINT)
    code, summary, _ = result(process)
    assert (code, summary["interrupted"]) == (130, 1)
    assert state_of(sweep.run("a")) is State.PREEMPTED
    assert not processes_of(sweep.path)


def test_a_cancelled_launch_stops_gracefully(launcher, sweep):
    process = launcher(jobs={name: {"epochs": 400, "epoch_s": 0.05} for name in ("a", "b", "c")})
    wait_for(sweep.run("a").status.exists, "the first epoch")
    cancel_sweep(sweep)
    code, summary, _ = result(process)
    assert (code, summary["interrupted"], summary["failed"]) == (130, 3, [])


def test_fail_fast_stops_the_others(launcher, sweep):
    jobs = {"bad": {"act": "crash"}, "long": {"epochs": 400, "epoch_s": 0.05}, "never": {}}
    code, summary, _ = result(launcher(jobs=jobs, options={"fail_fast": True}))
    assert (code, summary["failed"], summary["interrupted"]) == (1, ["bad"], 2)
    assert state_of(sweep.run("never")) is State.PENDING


def test_a_killed_launcher_takes_everything_with_it(launcher, sweep):
    process = launcher(jobs={"a": {"epochs": 1000, "epoch_s": 0.05}, "b": {"epochs": 1000, "epoch_s": 0.05}})
    wait_for(sweep.run("a").status.exists, "the first epoch")
    process.kill()
    wait_for(lambda: not processes_of(sweep.path), "the end of every process")
    wait_for(lambda: state_of(sweep.run("a")) is State.PREEMPTED, "the release of the run")


def test_two_launchers_execute_each_run_once(launcher, sweep):
    jobs = {f"r{i}": {"epochs": 3, "epoch_s": 0.1} for i in range(6)}
    pair = [launcher(jobs=jobs, options={"jobs": 1}) for _ in range(2)]
    for process in pair:
        code, summary, _ = result(process)
        assert (code, summary["done"]) == (0, 6)  # each reports the whole sweep
    for run in sweep.runs():
        assert [a.outcome().status for a in run.attempts()] == ["finished"]
        assert (run.path / "trace.txt").read_text().split() == ["1", "2", "3"]


@pytest.fixture
def no_flock(monkeypatch):
    """Processes that are started from now on have no flock."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE / 'no_flock'}{os.pathsep}{os.environ['PYTHONPATH']}")


def test_each_run_is_executed_once_without_flock(no_flock, launcher, sweep):
    test_two_launchers_execute_each_run_once(launcher, sweep)
    assert not list(sweep.path.glob("runs/*/.holder*"))


def test_a_dead_launcher_without_flock_is_replaced_when_its_heartbeat_is_old(no_flock, launcher, sweep):
    jobs = {"a": {"epochs": 40, "epoch_s": 0.05}}
    run = sweep.run("a")
    process = launcher(jobs=jobs)
    wait_for(run.status.exists, "the first epoch")
    process.kill()
    wait_for(lambda: not processes_of(sweep.path), "the end of every process")
    second = launcher(jobs=jobs)
    with pytest.raises(subprocess.TimeoutExpired):  # it waits: for all it knows, the first is alive elsewhere
        second.wait(timeout=3)
    assert len(run.attempts()) == 1
    os.utime(run.holder, (0, 0))
    code, summary, _ = result(second)
    assert (code, summary["done"]) == (0, 1)
    assert (run.path / "trace.txt").read_text().split() == [str(n) for n in range(1, 41)]


def test_more_ranks_than_slots_still_run(launcher):
    code, summary, _ = result(launcher(jobs={"wide": {"nproc": 4}, "narrow": {}}, options={"jobs": 2}))
    assert (code, summary["done"]) == (0, 2)


def test_a_results_dir_that_cannot_be_created_is_an_error(launcher, sweep):
    sweep.path.parent.mkdir(exist_ok=True)
    sweep.path.write_text("a file where the folder should be")
    process = launcher(jobs={"a": {}})
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert err.startswith("error: cannot write") and err.count("\n") == 1


def test_an_invalid_done_json_fails_only_its_run(launcher, sweep):
    jobs = {"a": {"epochs": 20, "epoch_s": 0.1}, "b": {}}
    process = launcher(jobs=jobs)
    wait_for(sweep.run("a").status.exists, "the first epoch")
    process.send_signal(signal.SIGINT)
    result(process)
    sweep.run("a").done.write_text('{"status": "fin')
    code, summary, text = result(launcher(jobs=jobs | {"c": {}}, all=True))
    assert (code, summary["failed"], summary["done"]) == (1, ["a"], 2)
    assert "done.json does not contain a record. Remove the file and start the run again" in text


@pytest.fixture
def tmpfs(sweep):
    """Mount a file system of 256 KB in place of the folder of the sweep."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    sweep.path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(sweep.path)], check=True)
    yield sweep.path
    wait_for(lambda: not processes_of(sweep.path), "the end of every process")
    subprocess.run(["umount", str(sweep.path)], check=True)


def test_a_full_disk_is_reported_once(tmpfs, launcher, sweep):
    jobs = {"a": {"epochs": 100, "epoch_s": 0.05}, "b": {}}
    process = launcher(jobs=jobs)
    wait_for(sweep.run("b").done.exists, "the end of the short run")
    wait_for(sweep.run("a").status.exists, "the first epoch")
    filler = tmpfs / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    code, summary, text = result(process)
    assert (code, summary["failed"], summary["done"]) == (1, ["a"], 1)
    assert "stopping because the disk is full" in text and "Traceback" not in text
    assert text.count("Free some space, then type the command again") == 1
    filler.unlink()
    code, summary, _ = result(launcher(jobs=jobs))
    assert (code, summary["done"]) == (0, 1)


def test_read_only_results_are_an_error_but_can_be_shown(tmpfs, launcher, sweep):
    result(launcher(jobs={"a": {}}))
    subprocess.run(["mount", "-o", "remount,ro", str(tmpfs)], check=True)
    process = launcher(jobs={"a": {}, "b": {}})
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert err == f"error: cannot write {sweep.run('b').path}: Read-only file system. Nothing was started.\n"
    assert [(row.name, row.state) for row in sweep_status(sweep).rows] == [("a", State.DONE)]


def test_a_thousand_pending_runs_fit_in_little_memory(launcher, sweep):
    jobs = {"bad": {"act": "crash"}, **{f"r{i}": {} for i in range(999)}}
    code, summary, _ = result(launcher(jobs=jobs, options={"fail_fast": True, "jobs": 1}))
    assert (code, summary["failed"]) == (1, ["bad"])
    assert summary["interrupted"] >= 990
    assert summary["peak_mb"] < 200


def test_a_terminal_shows_a_live_table(launcher, sweep):
    _, _, text = result(launcher(jobs={"a": {"epochs": 20, "epoch_s": 0.1}}, terminal=True))
    assert "50.0%" in text and "0/1 runs" in text and "left" in text


def test_a_launch_can_be_cancelled_during_the_check(launcher, sweep, tmp_path):
    gate = tmp_path / "slow"
    gate.write_text("not looked at")
    sweep.runs_folder.mkdir(parents=True)
    process = launcher(jobs={"a": {"slow_check": str(gate), "epochs": 400, "epoch_s": 0.05}})
    wait_for(lambda: not gate.read_text(), "the look")
    cancel_sweep(sweep)
    gate.unlink()
    code, summary, _ = result(process)
    assert (code, summary["interrupted"], summary["done"]) == (130, 1, 0)


def test_a_killed_check_is_reported(launcher, sweep):
    process = launcher(jobs={"a": {"kill_check": True}})
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "was killed, by a user or because the machine is out of memory" in err


def test_hangup_is_ignored_under_nohup(sweep, own_engine):
    """The launcher, the engine and the rank ignore it."""
    request = {"jobs": {"a": {"epochs": 30, "epoch_s": 0.05}}}
    nohup = subprocess.Popen(
        ["nohup", sys.executable, str(HERE / "script.py"), str(sweep.path), json.dumps(request)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(sweep.run("a").status.exists, "the first epoch")
    others = family(Job(sweep.run("a"), {}, []))
    for pid in (nohup.pid, others["engine"], others["rank"]):
        os.kill(pid, signal.SIGHUP)
    code, summary, _ = result(nohup)
    assert (code, summary["done"]) == (0, 1)


def test_only_the_waiting_thread_of_an_agent_receives_signals(launcher, sweep):
    """A signal that another thread takes does not end the wait for the ranks: 8 of 32 stops were lost so."""
    process = launcher(jobs={"a": {"epochs": 400, "epoch_s": 0.05}})
    wait_for(sweep.run("a").status.exists, "the first epoch")
    agent = family(Job(sweep.run("a"), {}, []))["agent"]
    blocked = {}
    for thread in Path(f"/proc/{agent}/task").iterdir():
        lines = (thread / "status").read_text().splitlines()
        blocked[int(thread.name)] = int(next(ln for ln in lines if ln.startswith("SigBlk")).split()[1], 16)
    wanted = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))
    assert len(blocked) > 1 and blocked.pop(agent) & wanted == 0
    assert all(mask & wanted == wanted for mask in blocked.values())
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert result(process)[0] == 130


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_before_the_start_ends_the_command_with_130(tmp_path, number):
    words = ["sweep", "exp=digits_bits", f"results_dir={tmp_path / 'results'}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cpdrun.cli", *words],
        env={key: value for key, value in os.environ.items() if key != RUNNER_VARIABLE},
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # a shell's & and nohup ignore it
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()  # the plan; now it looks whether the runs can start (on a busy machine, they have)
    process.send_signal(number)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert err == ""


@pytest.mark.parametrize("act", ["moved", "deleted"])
def test_a_moved_or_deleted_sweep_stops_with_an_error(tmp_path, act):
    results = tmp_path / "results"
    typed = ["exp=digits_bits", "format=e4m3,e3m0", "aps=true", "seed=0", "epochs=400", "model.width=4"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cpdrun.cli", "sweep", *typed, "device=cpu", f"results_dir={results}"],
        env={key: value for key, value in os.environ.items() if key != STAND_IN_VARIABLE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: list(results.glob("digits_bits/runs/*/metrics.jsonl")), "the first epoch")
    if act == "moved":
        (results / "digits_bits").rename(results / "elsewhere")
    else:
        while (results / "digits_bits").exists():  # files may be made while it is emptied
            shutil.rmtree(results / "digits_bits", ignore_errors=True)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    gone = f"{results / 'digits_bits'} was moved or deleted while its runs trained, so the runs were stopped"
    *progress, last = err.splitlines()
    assert last == f"error: {gone}" and all(line.endswith(" ...") for line in progress), err
    assert "failed" not in out
    assert not (results / "digits_bits").exists()
    wait_for(lambda: not processes_of(results), "the end of every process")


def test_killed_processes_leave_no_temporary_folders(own_engine, launcher, sweep, tmp_path, monkeypatch):
    """torchrun leaves torchelastic_* folders when it is killed. Our engine uses parts of torchrun and makes none."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = launcher(
        jobs={name: {"epochs": 400, "epoch_s": 0.05, "nproc": 2} for name in "ab"}, options={"jobs": 4}
    )
    for name in "ab":
        wait_for(sweep.run(name).status.exists, "the first epoch")
    os.kill(family(Job(sweep.run("a"), {}, []))["engine"], signal.SIGKILL)
    wait_for(lambda: state_of(sweep.run("a")) is State.FAILED, "the end of the first")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert result(process)[0] in (1, 130)
    assert not [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
