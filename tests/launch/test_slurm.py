"""A real Slurm of one node: arrays, failures, cancellation, the time limit, two tasks."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from driving import finish, make_job, wait_for

from cpdrun.launch.base import LaunchError, LaunchOptions
from cpdrun.launch.cancel import cancel_sweep
from cpdrun.launch.slurm import SlurmExecutor, elements_of
from cpdrun.launch.squeue import elements_in_queue
from cpdrun.record import State, SweepDir, read_json, state_of

NODE = Path(__file__).parents[2] / "scripts" / "slurm_one_node.sh"
DEFAULTS = {
    "partition": None,
    "account": None,
    "time": None,
    "gres": None,
    "mem": None,
    "nodes": 1,
    "tasks_per_node": 1,
    "max_parallel": None,
    "warning_s": 60,
    "setup": [],
    "sbatch": [],
}

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    if os.geteuid() != 0 or (shutil.which("slurmctld") is None and shutil.which("apt-get") is None):
        pytest.skip("a Slurm of our own needs root, and slurmctld or Debian's packages")
    folder = tmp_path_factory.mktemp("slurm")
    environ = {**os.environ, "SLURM_CI_DIR": str(folder)}
    started = subprocess.run([NODE, "start"], env=environ, capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stdout + started.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        yield
    subprocess.run([NODE, "stop"], env=environ, check=True)


@pytest.fixture(scope="module", autouse=True)
def under_limit(node, tmp_path_factory):
    """A run that meets its time limit while the other tests go on.

    Slurm counts limits in minutes and looks at them every 30 s: the warning comes 5 to 35 s after the start.
    """
    sweep = SweepDir(tmp_path_factory.mktemp("under_limit"))
    long = make_job(sweep, "long", epochs=72, epoch_s=0.5)
    settings = {**DEFAULTS, "time": "00:01:00", "warning_s": 55}
    executor = SlurmExecutor(**settings, sweep=sweep, options=LaunchOptions())
    executor.submit([long])
    return executor, long


@pytest.fixture
def slurm(sweep, node):
    """slurm(time=..., ...) -> a SlurmExecutor for the sweep."""

    def make(*, options=None, **settings):
        options = options or LaunchOptions()
        return SlurmExecutor(**{**DEFAULTS, **settings}, sweep=sweep, options=options)

    return make


def test_an_array_with_a_limit_and_a_failing_element(job, slurm, sweep):
    jobs = [job(f"r{i}", epochs=2, epoch_s=0.3, act="crash" if i == 2 else "finish") for i in range(5)]
    executor = slurm(max_parallel=2)
    executor.submit(jobs)
    assert "#SBATCH --array=0-4%2\n" in sweep.array_script(1).read_text()
    array = read_json(sweep.slurm)[0]["job"]
    most = 0
    outcomes = {}
    while executor.unfinished:
        most = max(most, list(elements_in_queue([array]).values()).count("RUNNING"))
        outcomes |= {e.job.run.name: e.outcome["outcome"] for e in executor.poll(0.1) if e.kind == "ended"}
    assert most <= 2
    assert outcomes == {f"r{i}": "failed" if i == 2 else "finished" for i in range(5)}
    assert read_json(jobs[0].run.last_attempt().where)["slurm_job"]


def test_a_sweep_is_not_submitted_twice(job, slurm, sweep):
    jobs = [job(f"r{i}", epochs=40, epoch_s=0.1) for i in range(2)]
    first, second = slurm(max_parallel=1), slurm(max_parallel=1)
    first.submit(jobs)
    second.submit(jobs)
    assert len(read_json(sweep.slurm)) == 1
    cancel_sweep(sweep)
    finish(first)


def test_cancelled_from_another_shell(job, slurm, sweep):
    jobs = [job("running", epochs=400, epoch_s=0.1), job("waiting")]
    executor = slurm(max_parallel=1)
    executor.submit(jobs)
    wait_for(jobs[0].run.status.exists, "the first epoch")
    assert cancel_sweep(sweep) == (1, 1)
    outcomes = finish(executor)
    assert outcomes["running"]["outcome"] == "preempted"
    assert state_of(jobs[0].run) is State.PREEMPTED
    assert state_of(jobs[1].run) is State.PENDING
    assert elements_of(sweep) == {}


def test_two_tasks_of_srun_are_one_run(job, slurm):
    one = job(nproc=4, show=["RANK", "WORLD_SIZE", "MASTER_ADDR"])
    executor = slurm(tasks_per_node=2)
    executor.submit([one])
    assert finish(executor)["one"]["outcome"] == "finished"
    seen = [read_json(one.run.path / f"seen{rank}.json") for rank in range(4)]
    assert [(s["RANK"], s["WORLD_SIZE"]) for s in seen] == [(str(rank), "4") for rank in range(4)]
    assert len({s["MASTER_ADDR"] for s in seen}) == 1


def test_ranks_that_cannot_be_spread_are_refused(job, slurm):
    with pytest.raises(LaunchError, match="does not divide nproc=3"):
        slurm(tasks_per_node=2).submit([job(nproc=3)])


def test_a_controller_that_does_not_answer_is_waited_for(job, slurm, monkeypatch):
    one = job()
    executor = slurm()
    executor.submit([one])
    with monkeypatch.context() as patch:
        patch.setattr("cpdrun.launch.slurm.elements_in_queue", _no_answer)
        assert executor.poll(0.1) == []
    assert finish(executor)["one"]["outcome"] == "finished"


def _no_answer(_):
    raise LaunchError("squeue: Unable to contact slurm controller")


def test_without_slurm_one_line_says_so(job, sweep, monkeypatch):
    monkeypatch.setenv("PATH", "")
    executor = SlurmExecutor(**DEFAULTS, sweep=sweep, options=LaunchOptions())
    with pytest.raises(LaunchError, match="sbatch is not here"):
        executor.submit([job()])


def test_the_time_limit_saves_and_requeues_the_very_element(under_limit):
    executor, long = under_limit
    assert finish(executor, deadline_s=180)["long"]["outcome"] == "finished"
    ends = [read_json(attempt.exit)["outcome"] for attempt in long.run.attempts()]
    assert ends == ["preempted"] * (len(ends) - 1) + ["finished"] and len(ends) >= 2
    assert (long.run.path / "trace.txt").read_text().split() == [str(n) for n in range(1, 73)]
