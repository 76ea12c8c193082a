"""What an array asks Slurm for; the scripts alone, so that no Slurm is needed."""

import pytest

from cpdrun.launch import Job, LaunchError, LaunchOptions
from cpdrun.launch.cancel import cancel_sweep
from cpdrun.launch.executors import would_write
from cpdrun.launch.slurm.queued import submitted_of
from cpdrun.record import write_json
from cpdrun.sweep import plan


def scripts(*typed, **options):
    sweep = plan(["exp=digits_bits", "format=fp32,e4m3", "aps=false", "seed=0", "launcher=slurm", *typed])
    jobs = [Job(sweep.directory.run(run.name), run.config, run.overrides) for run in sweep.runs]
    return would_write(jobs[0].config["launcher"], sweep.directory, jobs, LaunchOptions(**options))


def asked(text):
    lines = (line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH"))
    return dict(line.partition("=")[::2] for line in lines)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ((), {"cpus-per-task": "1", "mem": "2G", "time": "01:00:00", "gres": None}),
        (("loaders=8", "threads=2"), {"cpus-per-task": "10", "mem": "20G"}),
        (("nproc=4", "loaders=1"), {"cpus-per-task": "8", "mem": "16G"}),
        (("nproc=4", "loaders=1", "launcher.nodes=2"), {"cpus-per-task": "4", "mem": "8G", "nodes": "2"}),
        (
            ("nproc=4", "launcher.tasks_per_node=2"),
            {"cpus-per-task": "2", "ntasks-per-node": "2", "mem": "8G"},
        ),
        (("device=cuda",), {"gres": "gpu:1"}),
        (("device=cuda", "nproc=8", "launcher.nodes=2"), {"gres": "gpu:4"}),
        (("device=cuda", "launcher.gres=gpu:a100:1"), {"gres": "gpu:a100:1"}),
        (("launcher.mem=null", "launcher.time=null"), {"mem": None, "time": None}),
        (("launcher.mem=3G", "launcher.time=02:30:00"), {"mem": "3G", "time": "02:30:00"}),
        (("launcher.time=90",), {"time": "90"}),
        (("launcher.time=2-12:00",), {"time": "2-12:00"}),
    ],
    ids=str,
)
def test_an_array_asks_for_what_its_runs_use(typed, expected):
    (text,) = scripts(*typed).values()
    found = asked(text)
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("launcher.tasks_per_node=2", "launcher.nodes . launcher.tasks_per_node = 2 does not divide nproc=1"),
        ("+launcher.colour=red", "launcher: SlurmExecutor: .*'colour'"),
        (
            "launcher._target_=cpdrun.launch.slurm.executor.Nothing",
            "launcher: cannot import cpdrun.launch.slurm.executor.Nothing",
        ),
        ("launcher.time=1h", r"launcher.time=1h: Slurm takes minutes \(90\), HH:MM:SS"),
        ("launcher._target_=cpdrun.nowhere.Nothing", "launcher: cannot import cpdrun.nowhere.Nothing"),
    ],
)
def test_a_launcher_that_cannot_be_had_is_one_line(typed, message):
    with pytest.raises(LaunchError, match=message):
        scripts(typed)


def test_the_flagship_gets_its_loaders_and_runs_of_other_needs_a_script_of_their_own():
    (text,) = scripts("exp=resnet50_bits", max_parallel=3).values()
    assert asked(text)["cpus-per-task"] == "9" and asked(text)["array"] == "0-1%3"
    two = scripts("threads=1,2", "loaders=2")
    assert [path.name for path in two] == ["array.sbatch", "array-2.sbatch"]
    assert [asked(text)["cpus-per-task"] for text in two.values()] == ["3", "4"]


def test_a_damaged_list_of_arrays_hides_what_is_damaged_alone(sweep):
    good = {"job": "7", "script": "array.sbatch", "runs": ["one"]}
    sweep.path.mkdir()
    for text in ("", "7", "[1, 2", '{"job": "7"}', '[{"job": 7, "runs": []}, {"job": "7", "runs": "one"}]'):
        sweep.slurm.write_text(text)
        assert submitted_of(sweep) == [] and cancel_sweep(sweep) == (0, 0)
    write_json(sweep.slurm, [None, good])
    assert submitted_of(sweep) == [good]
