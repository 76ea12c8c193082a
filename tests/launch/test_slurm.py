"""A real Slurm of one node: arrays, failures, cancellation, the time limit, two tasks, a search in rounds."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from driving import TINY_SEARCH, dawdling, finish, make_job, make_training_job, training, wait_for

from cpdrun.launch.base import LaunchError, LaunchOptions
from cpdrun.launch.cancel import cancel_run, cancel_sweep
from cpdrun.launch.slurm.executor import SlurmExecutor, queued
from cpdrun.launch.slurm.squeue import elements_in_queue
from cpdrun.record import State, SweepDir, read_json, read_manifest, state_of
from cpdrun.search.loop import RunQueue
from cpdrun.search.question import ask
from cpdrun.search.results import Results

NODE = Path(__file__).parents[2] / "scripts" / "slurm_one_node.sh"
DEFAULTS = {
    **dict.fromkeys(("partition", "account", "time", "gres", "mem", "max_parallel")),
    **{"nodes": 1, "tasks_per_node": 1, "warning_s": 60, "setup": [], "sbatch": []},
}

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    if os.geteuid() != 0 or (shutil.which("slurmctld") is None and shutil.which("apt-get") is None):
        pytest.skip("a Slurm of our own needs root, and slurmctld or Debian's packages")
    folder = tmp_path_factory.mktemp("slurm")
    environ = {**os.environ, "SLURM_CI_DIR": str(folder), "SLURM_CI_CPUS": "12"}
    started = subprocess.run([NODE, "start"], env=environ, capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stdout + started.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        yield
    subprocess.run([NODE, "stop"], env=environ, check=True)


@pytest.fixture(scope="module", autouse=True)
def under_limit(node, tmp_path_factory):
    """A run on two tasks of srun that dawdles until its time limit, while the other tests go on.

    Slurm counts limits in minutes and looks at them every 30 s. It sends a warning up to 30 s early, so this one comes
    15 to 45 s after the start. If it came while Python starts, it would end the element.
    """
    sweep = SweepDir(tmp_path_factory.mktemp("under_limit"))
    slow = sweep.path / "slow"
    slow.touch()
    long = make_training_job(
        sweep, *dawdling(slow, pause_s=0.8), "nproc=4"
    )  # over a minute: the warning finds it at work
    settings = {**DEFAULTS, "time": "00:02:00", "warning_s": 75, "tasks_per_node": 2}
    executor = SlurmExecutor(**settings, sweep=sweep, options=LaunchOptions())
    with training():
        executor.submit([long])
    return executor, long, slow


@pytest.fixture
def slurm(sweep, node):
    """slurm(time=..., ...) -> a SlurmExecutor for the sweep."""

    def make(*, options=None, **settings):
        options = options or LaunchOptions()
        return SlurmExecutor(**{**DEFAULTS, **settings}, sweep=sweep, options=options)

    return make


def test_an_array_with_a_limit_a_failing_and_a_cancelled_element(job, slurm, sweep):
    acts = {2: {"act": "crash"}, 3: {"epochs": 400, "epoch_s": 0.1}}
    jobs = [job(f"r{i}", **{"epochs": 2, "epoch_s": 0.3, **acts.get(i, {})}) for i in range(6)]
    executor = slurm(max_parallel=2)
    executor.submit(jobs)
    assert "#SBATCH --array=0-5%2\n" in sweep.array_script(1).read_text()
    array = read_json(sweep.slurm)[0]["job"]
    most, cancelled = 0, []
    outcomes = {}
    while executor.unfinished:
        most = max(most, list(elements_in_queue([array]).values()).count("RUNNING"))
        if not cancelled and jobs[3].run.status.exists():
            cancelled = [cancel_run(jobs[3].run), cancel_run(jobs[5].run), cancel_run(jobs[0].run)]
        outcomes |= {e.job.run.name: e.outcome.status for e in executor.poll(0.1) if e.outcome}
    assert most <= 2
    assert cancelled == [True, True, False]  # running, waiting, finished
    expected = {"r2": "failed", "r3": "preempted", "r5": "preempted"}
    assert outcomes == {f"r{i}": expected.get(f"r{i}", "finished") for i in range(6)}
    assert not jobs[5].run.attempts()
    assert read_json(jobs[0].run.last_attempt().where)["slurm_job"]


def test_a_sweep_is_not_submitted_twice(job, slurm, sweep):
    jobs = [job(f"r{i}", epochs=40, epoch_s=0.1) for i in range(2)]
    first, second = slurm(max_parallel=1), slurm(max_parallel=1)
    first.submit(jobs)
    second.submit(jobs)
    assert len(read_json(sweep.slurm)) == 1
    cancel_sweep(sweep)
    finish(first)


def test_a_search_submits_rounds_until_its_answer_is_certified(node, tmp_path):
    """Type the command and let runs really train. The first round has runs of the baseline only, the second round has
    runs of e4m3, and all further rounds refute e3m0."""
    words = [*TINY_SEARCH, "name=searched", "launcher=slurm", f"results_dir={tmp_path}"]
    with training():
        command = [sys.executable, "-m", "cpdrun.cli", "search", *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, sweep = json.loads(done.stdout), SweepDir(tmp_path / "searched")
    (chain,) = found["chains"]
    assert chain["is_over"] and chain["smallest"] == "e4m3 without APS"
    assert [each["verdict"] for each in chain["candidates"]] == ["certified", "refuted"]
    assert found["says"][0].startswith("CERTIFIED: e4m3 (8 bits) without APS is at most 20 points worse")

    rounds = [array["runs"] for array in read_json(sweep.slurm)]
    assert [{name.split("-")[1] for name in runs} for runs in rounds[:3]] == [{"fp32"}, {"e4m3"}, {"e3m0"}]
    assert {name.split("-")[1] for runs in rounds[3:] for name in runs} <= {"fp32", "e3m0"}
    submitted = sorted(name for runs in rounds for name in runs)
    assert submitted == sorted(read_manifest(sweep)["runs"]) == [run.name for run in sweep.runs()]
    assert all(run.done.exists() and len(run.attempts()) == 1 for run in sweep.runs())
    assert RunQueue(Results(ask(words))).wanted(None, ahead=False) == []  # typed again it submits nothing


def test_a_sweep_of_a_script(node, tmp_path):
    """As it is typed, from a folder that holds nothing but the script: one run ends well, one fails."""
    shutil.copy(Path(__file__).parents[1] / "attach" / "odd_script.py", tmp_path)
    words = ["script=odd_script.py", "script.args.do=fine,raises", "script.metrics.loss=val loss ([0-9.]+)"]
    command = [sys.executable, "-m", "cpdrun.cli", "sweep", *words, "--launcher", "slurm"]
    with training():
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "1 done, 1 failed" in done.stdout, done.stdout + done.stderr
    sweep = SweepDir(tmp_path / "results" / "odd_script")
    ((fine, fails),) = [[sweep.run(name) for name in array["runs"]] for array in read_json(sweep.slurm)]
    assert 0 < fine.result().metrics["loss"] < 1
    reason = fails.last_attempt().outcome().reason
    assert reason.endswith("odd_script.py ended with exit code 1: ValueError: boom")
    assert read_json(fine.last_attempt().where)["slurm_job"]


def test_a_sweep_is_cancelled_from_another_shell(job, slurm, sweep):
    jobs = [job("running", epochs=400, epoch_s=0.1), job("waiting")]
    executor = slurm(max_parallel=1)
    executor.submit(jobs)
    wait_for(jobs[0].run.status.exists, "the first epoch")
    assert cancel_sweep(sweep) == (1, 1)
    outcomes = finish(executor)
    assert outcomes["running"].status == "preempted"
    assert state_of(jobs[0].run) is State.PREEMPTED
    assert state_of(jobs[1].run) is State.PENDING
    assert queued(sweep) == {}


def test_unusual_names_and_values_reach_slurm_unchanged(job, node, tmp_path):
    sweep = SweepDir(tmp_path / "two words %j # 'quoted'")
    one = make_job(sweep, "one")
    executor = SlurmExecutor(
        **{**DEFAULTS, "sbatch": ["--comment='of ours'"]}, sweep=sweep, options=LaunchOptions()
    )
    executor.submit([one])
    assert finish(executor)["one"].status == "finished"
    array = read_json(sweep.slurm)[0]["job"]
    assert (sweep.slurm_logs / f"{array}_0.log").exists()


def test_line_breaks_in_values_are_errors(slurm):
    for settings in ({"partition": "debug\nrm -rf /"}, {"sbatch": ["--qos=low\ntouch evil"]}):
        with pytest.raises(LaunchError, match="must not contain line breaks"):
            slurm(**settings)


def test_ranks_that_cannot_be_divided_among_tasks_are_an_error(job, slurm):
    with pytest.raises(LaunchError, match="does not divide nproc=3"):
        slurm(tasks_per_node=2).submit([job(nproc=3)])


def test_a_silent_controller_is_waited_for(job, slurm, monkeypatch):
    one = job()
    executor = slurm()
    executor.submit([one])
    with monkeypatch.context() as patch:
        patch.setattr("cpdrun.launch.slurm.executor.elements_in_queue", _no_answer)
        assert executor.poll(0.1) == []
    assert finish(executor)["one"].status == "finished"


def _no_answer(_):
    raise LaunchError("squeue: Unable to contact slurm controller")


def test_missing_slurm_is_an_error(job, sweep, monkeypatch):
    monkeypatch.setenv("PATH", "")
    executor = SlurmExecutor(**DEFAULTS, sweep=sweep, options=LaunchOptions())
    with pytest.raises(LaunchError, match="sbatch is not installed here"):
        executor.submit([job()])


def test_two_tasks_reach_their_time_limit_and_continue_in_the_same_element(under_limit, tmp_path):
    executor, long, slow = under_limit
    wait_for(lambda: long.run.attempts() and long.run.attempts()[0].exit.exists(), "the time limit")
    slow.unlink()
    element = read_json(long.run.attempts()[0].where)["slurm_job"]
    more_time = ["scontrol", "update", f"JobId={element}", "TimeLimit=10"]
    wait_for(
        # On a slow machine, the run may have finished while the other tests ran.
        lambda: long.run.done.exists() or subprocess.run(more_time, check=False).returncode == 0,
        "the element in the queue",
    )
    assert finish(executor, deadline_s=120)[long.run.name].status == "finished"
    *warned, last = [attempt.outcome().status for attempt in long.run.attempts()]
    assert last == "finished" and set(warned) == {"preempted"}  # of a slow machine, more than once
    where = {read_json(attempt.where)["slurm_job"] for attempt in long.run.attempts()}
    assert where == {element} and element.endswith("_0")

    undisturbed = make_training_job(SweepDir(tmp_path / "undisturbed"), *dawdling(slow))
    with training():
        subprocess.run([sys.executable, "-m", "cpdrun.train.rank", str(undisturbed.run.path)], check=True)
    weights = [read_json(job.run.done)["weights_sha256"] for job in (long, undisturbed)]
    assert weights[0] == weights[1]
