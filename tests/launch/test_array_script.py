"""What an array asks Slurm for; the scripts alone, so that no Slurm is needed."""

import pytest

from cpdrun.launch import Job, LaunchError, LaunchOptions
from cpdrun.launch.cancel import cancel_sweep
from cpdrun.launch.executors import advice, would_write
from cpdrun.launch.slurm.advice import NO_GPU, limit_seconds
from cpdrun.launch.slurm.queued_runs import submitted_of
from cpdrun.record import EpochRow, SweepDir, append_json_line, write_json
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
def test_an_array_requests_the_resources_of_its_runs(typed, expected):
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
        ("launcher.time=1h", r"launcher.time=1h: must be minutes \(90\), HH:MM:SS"),
        ("launcher._target_=cpdrun.nowhere.Nothing", "launcher: cannot import cpdrun.nowhere.Nothing"),
    ],
)
def test_an_invalid_launcher_is_an_error(typed, message):
    with pytest.raises(LaunchError, match=message):
        scripts(typed)


def test_runs_with_different_resources_have_separate_scripts():
    (text,) = scripts("exp=resnet50_bits", max_parallel=3).values()
    found = asked(text)
    assert (found["cpus-per-task"], found["array"], found["gres"]) == ("9", "0-1%3", "gpu:1")
    two = scripts("threads=1,2", "loaders=2")
    assert [path.name for path in two] == ["array.sbatch", "array-2.sbatch"]
    assert [asked(text)["cpus-per-task"] for text in two.values()] == ["3", "4"]


def test_damaged_entries_of_the_list_of_arrays_are_ignored(sweep):
    good = {"job": "7", "script": "array.sbatch", "runs": ["one"]}
    sweep.path.mkdir()
    for text in ("", "7", "[1, 2", '{"job": "7"}', '[{"job": 7, "runs": []}, {"job": "7", "runs": "one"}]'):
        sweep.slurm.write_text(text)
        assert submitted_of(sweep) == [] and cancel_sweep(sweep) == (0, 0)
    write_json(sweep.slurm, [None, good])
    assert submitted_of(sweep) == [good]


def advice_on(*typed, finished=(), calibration=None, folder=None):
    """Return the advice on a sweep in `folder`, of whose runs some have trained an epoch of 20 steps, in seconds."""
    sweep = plan(["exp=digits_bits", "format=fp32,e4m3", "aps=false", "seed=0", "launcher=slurm", *typed])
    directory = SweepDir(folder) if folder else sweep.directory
    jobs = [Job(directory.run(run.name), run.config, run.overrides) for run in sweep.runs]
    for job, seconds in zip(jobs, finished, strict=False):
        job.run.path.mkdir(parents=True)
        append_json_line(job.run.metrics, EpochRow(1, 20, {}, train_seconds=seconds).as_json())
    if calibration:
        directory.path.mkdir(exist_ok=True)
        write_json(directory.calibration, {"workload": calibration})
    return advice(jobs[0].config["launcher"], directory, jobs, LaunchOptions())


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ((), [NO_GPU]),
        (("device=cuda",), []),
        (("device=cpu",), []),
        (("launcher.gres=gpu:1",), []),
        (("launcher.gres=null",), []),
        (("launcher.sbatch=['--gpus-per-task=1']",), []),
        (("launcher=local",), []),
        (("launcher.time=1h",), []),  # is refused
    ],
    ids=str,
)
def test_a_launch_without_gpu_is_noted(typed, said):
    assert advice_on(*typed) == said


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("90", 5400),
        ("2:30", 150),
        ("01:30:00", 5400),
        ("2-0", 172800),
        ("1-01:30", 91800),
        ("0-0:0:5", 5),
        ("UNLIMITED", None),
        (None, None),
        (90, 5400),
    ],
)
def test_time_limits_are_parsed_as_by_sbatch(limit, seconds):
    assert limit_seconds(limit) == seconds


def test_a_time_limit_before_the_first_checkpoint_is_reported(tmp_path):
    def lines(name, *typed, **known):
        return advice_on("device=cuda", *typed, folder=tmp_path / name, **known)

    assert lines("nothing known") == []
    assert lines("short epochs", finished=[600.0]) == []
    (line,) = lines("slow steps", finished=[7200.0, 7200.0])
    assert line == (
        "launcher.time=01:00:00 is shorter than the time to a run's first checkpoint, about 2 h 00 min (from 2 runs "
        "of this sweep), and a step takes about 6 min 00 s, longer than launcher.warning_s=60. Runs would end "
        "without a checkpoint. Increase launcher.time, or set launcher.warning_s to more than the time of a step"
    )
    assert lines("long enough", "launcher.time=3:00:00", finished=[7200.0]) == []
    assert lines("no limit", "launcher.time=null", finished=[7200.0]) == []
    (line,) = lines("more seldom", "checkpoint.every_epochs=5", finished=[1000.0])
    assert "about 1 h 23 min (from 1 run" in line and line.endswith("before the limit")
    slow, quick = ({"forward_s": s, "backward_s": 2 * s, "update_s": 1.0} for s in (5.0, 0.1))
    (line,) = lines("slow calibration", calibration=slow)  # 8 workers of 15 s
    assert line.startswith(
        "a step takes about 2 min 01 s (from the calibration), longer than launcher.warning_s=60. "
    )
    assert lines("on two ranks", "nproc=4", calibration=slow) == []
    assert lines("quick calibration", calibration=quick) == []
