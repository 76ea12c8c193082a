"""The commands as users type them, each in a new folder."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from cpdrun.arguments import add_json
from cpdrun.cli import COMMANDS, main, parser_of, print_error
from cpdrun.errors import UserError, before_a_start
from cpdrun.record import State, SweepDir, read_json, state_of

CPDRUN = Path(sys.executable).with_name("cpdrun")
SMALL = ("exp=digits_bits", "seed=0", "epochs=1", "model.width=4", "device=cpu")


@pytest.fixture
def cpdrun(tmp_path, monkeypatch, capfd):
    """Run a command in this process, in a new folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> subprocess.CompletedProcess:
        capfd.readouterr()
        try:
            code = main(list(words))
        except SystemExit as end:
            code = end.code
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    return run


@pytest.fixture
def cpdrun_process(tmp_path):
    """Run a command in a process of its own, in a new folder."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [CPDRUN, *words],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
            timeout=200,
        )

    return run


def imported_packages(log: str) -> set[str]:
    """Return the packages in the log of a process with PYTHONPROFILEIMPORTTIME=1."""
    modules = [line.rpartition("|")[2].strip() for line in log.splitlines() if "import time:" in line]
    assert len(modules) > 20
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("typed", [(), ("--help",)], ids=["cpdrun", "cpdrun --help"])
def test_help_fits_a_screen_and_imports_no_torch(cpdrun_process, typed):
    result = cpdrun_process(*typed, PYTHONPROFILEIMPORTTIME="1")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in COMMANDS if "--" not in name)
    assert not {"torch", "numpy", "hydra", "rich", "pandas"} & imported_packages(result.stderr)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_describes_the_command_and_each_option(name):
    parser = parser_of(name)
    assert parser.description and all(action.help for action in parser._actions)
    # argparse replaces %% in the help of options, but not in an epilog.
    assert "%%" not in parser.format_help()


def test_dry_run_lists_the_runs_and_writes_nothing(cpdrun, tmp_path):
    result = cpdrun("sweep", "exp=digits_bits", "--dry-run")
    assert result.returncode == 0
    first, *facts = result.stdout.splitlines()
    expected = "format(7) x aps(2) x seed(3) = 42, less 3 (fp32 with APS) -> 39 runs: 0 done, 39 to run"
    assert first == expected
    assert "two minutes on two cores" in facts[0], "what the experiment says of itself"
    assert "recipe: 15 epochs, 8 workers of 8 samples, 64 samples per step" in facts
    assert any(line.split() == ["model", "ConvNet:", "width", "16,", "dropout", "0.0"] for line in facts)
    assert any("fp32 7 MB, e5m2 1.75 MB" in line for line in facts)
    rows = [line.split() for line in facts[-39:]]
    assert rows[0][:4] == ["fp32", "false", "0", "new"] and rows[0][4].startswith("convnet-fp32-w8-s0-")
    assert len({row[4] for row in rows}) == 39
    assert list(tmp_path.iterdir()) == []


def test_dry_run_names_missing_data_the_small_experiment_and_the_slurm_script(cpdrun, tmp_path):
    words = ("sweep", "exp=resnet50_bits", "--dry-run")
    shown = cpdrun(*words, "launcher=slurm", "device=cuda", "--max-parallel", "2").stdout
    assert "missing: data.data_dir=data/imagenet does not exist" in shown
    facts = json.loads(cpdrun(*words, "launcher=slurm", "--json").stdout)
    assert facts["missing"] == ["data.data_dir=data/imagenet"] and facts["to_run"] == len(facts["runs"]) == 7
    assert list(facts["scripts"]) == ["results/resnet50_bits/array.sbatch"] and facts["seconds"] is None
    assert facts["runs"][0]["state"] == "pending" and "format=fp32" in facts["runs"][0]["overrides"]
    assert "exp=resnet50_bits_small needs " in shown
    assert "\n  parameter_groups [{modules:['BatchNorm*'],weight_decay:0.0}]\n" in shown
    for line in ("array=0-6%2", "cpus-per-task=9", "gres=gpu:1", "mem=18G", "time=01:00:00"):
        assert f"#SBATCH --{line}\n" in shown
    axes = ("seed=0", "aps=true", "world_size=4,8", "data=digits,pydoc_text")
    varied = cpdrun("sweep", "exp=digits_bits", *axes, "--dry-run")
    assert "recipe: 15 epochs, 4/8 workers of 8 samples\n" in varied.stdout
    assert "  data       Digits or PydocText\n" in varied.stdout
    rows = [line.split() for line in varied.stdout.splitlines()[-28:]]
    assert [row[3] for row in rows if row[0] == "fp32"] == ["false"] * 4, "the column of baselines"
    (tmp_path / "data" / "imagenet").mkdir(parents=True)
    assert "missing" not in (there := cpdrun(*words).stdout) and "SBATCH" not in there


def test_a_long_table_pages_on_a_terminal(tmp_path):
    """The table after the facts goes through $PAGER, which marks its lines here."""
    command = f"stty rows 12 cols 90; {CPDRUN} sweep exp=digits_bits seed=0 --dry-run"
    script = f"import os, pty; os.chdir({str(tmp_path)!r}); pty.spawn(['/bin/sh', '-c', {command!r}])"
    environment = {**os.environ, "PAGER": "sed s/^/PAGED:/", "TERM": "xterm"}
    for size in ("LINES", "COLUMNS"):  # pytest-xdist sets them, and they override the terminal
        environment.pop(size, None)
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=200
    )
    lines = done.stdout.decode().splitlines()
    assert sum(line.startswith("PAGED:") and " new " in line for line in lines) == 13
    assert any(line.startswith("recipe: 15 epochs") for line in lines), "the facts are not paged"


def test_dry_run_and_status_do_not_import_modules_named_in_yaml(cpdrun_process, tmp_path):
    (tmp_path / "conf" / "exp").mkdir(parents=True)
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\nraise SystemExit('ran')\n")
    (tmp_path / "conf" / "exp" / "evil.yaml").write_text(
        "launcher: {_target_: evil.Launcher}\nmodel: {_target_: evil.Net}\nsweep:\n  format: [fp32, evil.F]\n"
    )
    words = ("sweep", "--config-dir", "conf", "exp=evil")
    shown = cpdrun_process(*words, "--dry-run", PYTHONPATH=str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    assert "checks your own code: launcher._target_=evil.Launcher, model._target_=evil.Net" in shown.stdout
    assert "format=evil.F" in shown.stdout
    assert not (tmp_path / "ran").exists()
    started = cpdrun_process(*words)
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    assert started.returncode == 2 and "importing its module raised SystemExit: ran" in started.stderr
    assert not (tmp_path / "results").exists()

    run = SweepDir(tmp_path / "results" / "received").run("net-evil.F-w8-s0-0123456789")
    run.new_attempt().agent_log.write_text("as it was\n")
    run.config.write_text(
        "format: evil.F\nlauncher: {_target_: evil.Launcher}\nmodel: {_target_: evil.Net}\n"
    )
    status = cpdrun_process("status", "received", PYTHONPATH=str(tmp_path))
    assert status.returncode == 0 and "received: 1 preempted" in status.stdout
    assert cpdrun_process("logs", "evil.F", PYTHONPATH=str(tmp_path)).stdout == "as it was\n"
    assert not (tmp_path / "ran").exists()


def test_sweep_then_report_then_the_same_sweep_again(cpdrun, tmp_path):
    words = ("sweep", *SMALL, "format=fp32,e4m3")
    first = cpdrun(*words)
    assert first.returncode == 0, first.stdout + first.stderr
    sweep = SweepDir(tmp_path / "results" / "digits_bits")
    runs = list(sweep.runs())
    assert [state_of(run) for run in runs] == [State.DONE] * 3
    assert {read_json(run.done)["status"] for run in runs} == {"finished"}
    assert "training took" in first.stdout and "%" in first.stdout

    report = cpdrun("report", "digits_bits")
    assert report.returncode == 0, report.stdout + report.stderr
    assert {"table.csv", "table.md", "accuracy_vs_bits.png", "accuracy_vs_bits.svg"} <= {
        path.name for path in sweep.report.iterdir()
    }
    with (sweep.report / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = "format bits aps world_size n test_accuracy_mean test_accuracy_sd diverged bits_per_parameter_per_step"
    assert list(rows[0]) == columns.split()
    assert [(row["format"], row["bits"]) for row in rows] == [("fp32", "32"), ("e4m3", "8"), ("e4m3", "8")]

    written = {path: path.stat().st_mtime_ns for path in sweep.runs_folder.rglob("*")}
    again = cpdrun(*words)
    assert written == {path: path.stat().st_mtime_ns for path in sweep.runs_folder.rglob("*")}
    assert again.returncode == 0 and "3 done, 0 to run" in again.stdout and "Nothing to do" in again.stdout

    forecast = cpdrun(*words, "format=fp32,e4m3,e5m2", "--dry-run").stdout.splitlines()
    assert forecast[0].endswith("5 runs: 3 done, 2 to run")
    assert any(line.startswith("2 new; about ") for line in forecast)
    names = {line.split()[-1] for line in forecast if " done " in line}
    assert names == {run.name for run in runs}
    assert any(" bytes " in line for line in forecast[-5:]), "the bytes that a worker of a done run sent"

    status = cpdrun("status")
    assert status.returncode == 0 and "digits_bits: 3 done" in status.stdout
    rows = json.loads(cpdrun("status", "digits_bits", "--json").stdout)["sweeps"][0]["runs"]
    assert [row["state"] for row in rows] == ["done"] * 3 and rows[0]["epoch"] == rows[0]["epochs"] == 1
    assert cpdrun("logs", "fp32").returncode == 0
    ambiguous = cpdrun("logs", "e4m3")
    assert ambiguous.returncode == 2 and "'e4m3' may be any of 2 runs" in ambiguous.stderr
    cancelled = cpdrun("cancel", "digits_bits")
    assert cancelled.returncode == 0 and "0 running runs" in cancelled.stdout

    digest = read_json(runs[0].done)["weights_sha256"]
    runs[0].done.unlink()
    one = cpdrun(*words)
    assert one.returncode == 0 and "2 done, 1 to run" in one.stdout
    assert read_json(runs[0].done)["weights_sha256"] == digest

    assert "Nothing to do" in cpdrun(*words, "--rerun", "failed").stdout
    everything = cpdrun(*words, "--rerun", "all")
    assert everything.returncode == 0 and "3 done, 3 to run" in everything.stdout
    assert [run.last_attempt().number for run in runs] == [3, 2, 2]
    assert read_json(runs[0].done)["weights_sha256"] == digest


def test_a_run_that_crashes_is_shown_and_the_others_finish(cpdrun, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, num_classes, fails):\n"
        "        super().__init__()\n"
        "        self.fails, self.linear = fails, nn.Linear(64, num_classes)\n"
        "    def forward(self, x):\n"
        "        if self.fails and self.training:\n"  # the check before the start evaluates one sample
        "            raise RuntimeError('the moon is in the wrong phase')\n"
        "        return self.linear(x.flatten(1))\n"
    )
    own = ("model=custom", "model._target_=mine.Net", "+model.fails=true,false")
    result = cpdrun("sweep", *own, "epochs=1", "max_steps=2", "device=cpu")
    assert result.returncode == 1
    assert "the moon is in the wrong phase" in result.stdout + result.stderr
    assert "rank0.log" in result.stdout + result.stderr
    states = sorted(state_of(run) for run in SweepDir(tmp_path / "results" / "adhoc").runs())
    assert states == [State.DONE, State.FAILED]


def test_sweep_with_an_invalid_record_fails_and_names_it(cpdrun, tmp_path):
    words = ("sweep", *SMALL, "format=fp32", "aps=false", "max_steps=2")
    assert cpdrun(*words).returncode == 0
    (run,) = SweepDir(tmp_path / "results" / "digits_bits").runs()
    run.done.write_text("{}")
    result = cpdrun(*words)
    assert (
        result.returncode == 1
        and "does not contain a record. Remove the file and start the run again" in result.stderr
    )
    run.done.unlink()
    assert cpdrun(*words).returncode == 0


def test_sweep_without_arguments_explains_how_to_list_experiments(cpdrun, tmp_path):
    for words in (("sweep",), ("sweep", "--dry-run")):
        result = cpdrun(*words)
        assert result.returncode == 2 and "say what to run: cpdrun sweep exp=NAME" in result.stderr
        assert "exp=digits_bits" in result.stderr and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert "digits_bits, digits_products, " in cpdrun("sweep", "exp=list").stderr


def test_settings_may_follow_options(cpdrun):
    result = cpdrun("sweep", "exp=digits_bits", "--dry-run", "seed=0", "--retries", "1", "aps=false")
    assert result.returncode == 0 and "-> 7 runs" in result.stdout
    assert cpdrun("sweep", "exp=digits_bits", "--dry-rum", "seed=0").returncode == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("frmat=e4m3",), "unknown key 'frmat' (did you mean 'format'?). Nothing was started."),
        (("exp=digit_bits",), "unknown experiment 'digit_bits' (did you mean 'digits_bits'?)"),
        (("format=e9m2",), "format=e9m2"),
        (("world_size=0",), "world_size=0"),
        (("nproc=3",), "nproc=3 does not divide world_size=8"),
        (("data=fashion_mnist", "data.data_dir=/nowhere"), "apt-get install dataset-fashion-mnist"),
        (("results_dir=/dev/null/here",), "/dev/null/here"),
        (("model._target_=no.such.Net",), "no.such.Net"),
        (("exp=broken", "--config-dir", "conf"), "broken.yaml, line 2"),
        (("exp=resnet50_bits", "device=auto"), "Without it: exp=resnet50_bits_small needs "),
        (("--config-dir", "nowhere"), "nowhere is not a folder"),
        (("--jobs", "0"), "must be a whole number"),
        (("exp=digits_bits", "sync.error_feedback=no"), "sync.error_feedback=no: must be true or false"),
        (("optim.lr=abc",), "optim.lr=abc: must be a number, such as 0.1"),
        (("launcher.jobs=abc",), "launcher.jobs=abc: must be a whole number"),
        (("sync=gossip_choco", "precision=mxfp8"), "workers that gossip keep float32 weights"),
        (("sync=gossip_choco", "compressor=qsgd", "format=fp32,e4m3", "aps=false"), "format=e4m3: QSGD"),
        (("topology=links", "sync=gossip_choco"), "topology.links must be given: topology.links=VALUE"),
        (("+data.size=3",), "unknown key 'data.size'"),
        (("+launcher.colour=red",), "launcher: LocalExecutor: got an unexpected keyword argument 'colour'"),
        (("schedule=step", "schedule.milestones=3"), "schedule.milestones=3: must be a list, such as [3]"),
        (("digits_bits",), "To choose the experiment of this name, type exp=digits_bits"),
        (("exp=zzz",), "unknown experiment 'zzz'; there are "),
        (("--exp", "digits_bits"), "unknown option --exp. Settings are typed as key=value: exp=digits_bits"),
        (("--format=e4m3",), "unknown option --format. Settings are typed as key=value: format=e4m3"),
        (("--batch-size", "8"), "Settings are typed as key=value: batch_size=8"),
        (("--dry-rum",), "unknown option --dry-rum (did you mean '--dry-run'?)"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_mistake_gets_one_line_and_nothing_is_started(cpdrun, tmp_path, words, message):
    (tmp_path / "conf" / "exp").mkdir(parents=True)
    (tmp_path / "conf" / "exp" / "broken.yaml").write_text("# a comment\nepochs: [1,\nseed: 2\n")
    before = sorted(tmp_path.rglob("*"))
    experiment = () if any(word.startswith("exp=") for word in words) else ("exp=digits_bits",)
    result = cpdrun("sweep", *experiment, *words)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith("For the options: ")]
    assert len(lines) == 1, result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_users_experiment_without_config_dir_names_the_option(cpdrun, tmp_path):
    (tmp_path / "conf" / "exp").mkdir(parents=True)
    (tmp_path / "conf" / "exp" / "mine.yaml").write_text("epochs: 1\n")
    result = cpdrun("sweep", "exp=mine", "--dry-run")
    assert result.returncode == 2
    assert "conf/exp/mine.yaml is only read with --config-dir conf" in result.stderr
    assert cpdrun("sweep", "exp=mine", "--dry-run", "--config-dir", "conf").returncode == 0


def test_an_unknown_command_suggests_the_nearest(cpdrun):
    result = cpdrun("serach", "exp=digits_search")
    assert result.returncode == 2
    assert result.stderr == "error: no command 'serach' (did you mean 'search'?)\n"
    assert "; there are: sweep, search, " in cpdrun("xyz").stderr


def test_a_command_is_a_file_and_a_line(capsys, monkeypatch):
    @dataclass
    class HelloDocument:
        greeting: str

    def add(commands):
        hello = commands.add_parser("hello", help="greet")
        add_json(hello)
        return hello

    def run(arguments):
        arguments.output.set_result(HelloDocument("hello"))
        return 0

    module = SimpleNamespace(add=add, run=run, DOCUMENTS={"hello": HelloDocument})
    monkeypatch.setitem(sys.modules, "cpdrun.commands.hello", module)
    monkeypatch.setitem(COMMANDS, "hello", None)
    assert main(["hello", "--json"]) == 0
    expected = {"schema": "cpdrun.hello/1", "exit_code": 0, "greeting": "hello"}
    assert json.loads(capsys.readouterr().out) == expected
    with pytest.raises(SystemExit):
        main([])
    assert "  hello     greet\n" in capsys.readouterr().out


def test_dry_run_states_where_a_scripts_metric_is_read(cpdrun, tmp_path):
    (tmp_path / "train.py").write_text("print('val loss 0.5')\n")
    typed = ["sweep", "train.py", "format=e4m3", "--dry-run"]
    printed = "printed pairs such as val_loss=0.4"
    assert printed in cpdrun(*typed).stdout
    said = cpdrun(*typed, "script.metrics.val_loss=val loss ([0-9.]+)").stdout
    assert printed not in said and "val_loss by 'val loss ([0-9.]+)'" in said


def test_a_message_that_ends_with_a_question_mark_keeps_it(capsys):
    with pytest.raises(UserError) as caught, before_a_start():
        raise UserError("one thing", "sbatch is not here: is this a node that can submit to Slurm?")
    print_error(caught.value)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: one thing."
    assert second.endswith("to Slurm? Nothing was started.")


def test_report_without_sweeps_suggests_a_command(cpdrun):
    result = cpdrun("report")
    assert result.returncode == 2
    assert (
        result.stderr
        == "error: there is no sweep in results/ yet. Start one first, such as cpdrun sweep exp=digits_bits\n"
    )


COMPLETED = {
    "cpdrun rep": ["report"],
    "cpdrun sweep exp=digits_b": ["digits_bits"],
    "cpdrun sweep world": ["world_size="],
    "cpdrun sweep model=resnet_c": ["resnet_cifar"],
    "cpdrun sweep model=resnet_cifar model.dep": ["model.depth="],
    "cpdrun sweep format=fp32,e4m3f": ["fp32,e4m3fn", "fp32,e4m3fnuz"],
    "cpdrun sweep recipe=nvfp4_4": ["nvfp4_4over6"],
    "cpdrun sweep script=tra": ["train.py"],
    "cpdrun search --pl": ["--plan"],
    "cpdrun status m": ["mine"],
    "cpdrun sweep --join m": ["mine"],
    "cpdrun report m": ["mine", "mlp-fp32-w1-s0-0123456789"],
    "cpdrun logs ml": ["mlp-fp32-w1-s0-0123456789"],
}


def test_bash_completes_commands_keys_values_and_names(tmp_path):
    """Register the function of argcomplete in bash, and call it with each line."""
    (tmp_path / "train.py").touch()
    (tmp_path / "results" / "mine" / "runs" / "mlp-fp32-w1-s0-0123456789").mkdir(parents=True)
    script = """
        eval "$(register-python-argcomplete cpdrun)"
        COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
        for line in "$@"; do
            COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9
            _python_argcomplete cpdrun
            echo "${COMPREPLY[@]}"
        done
    """
    env = {**os.environ, "PATH": f"{CPDRUN.parent}:{os.environ['PATH']}"}
    command = ["bash", "--norc", "-c", script, "bash", *COMPLETED]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    offered = [line.split() for line in done.stdout.splitlines()]
    assert dict(zip(COMPLETED, offered, strict=True)) == COMPLETED, done.stderr


def test_completion_imports_neither_hydra_nor_torch(cpdrun_process, tmp_path):
    """An answer takes less than 0.3 s only without them."""
    for typed in ("cpdrun sweep exp=", "cpdrun status "):
        environment = {"COMP_LINE": typed, "COMP_POINT": str(len(typed)), "COMP_TYPE": "9"}
        answer = {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "answer"), "_ARGCOMPLETE": "1"}
        log = cpdrun_process(PYTHONPROFILEIMPORTTIME="1", **answer, **environment).stderr
        heavy = {"torch", "numpy", "hydra", "omegaconf", "rich", "pandas"}
        assert not heavy & imported_packages(log), typed


def test_doctor_lists_the_machine(cpdrun):
    result = cpdrun("doctor")
    assert result.returncode == 0, result.stdout + result.stderr
    for word in ("torch", "custom_fp", "digits", "cores", "Slurm"):
        assert word in result.stdout
