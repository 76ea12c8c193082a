"""Test the project that `cpdrun init` writes, with the commands of its README."""

import csv
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typed_line import CPDRUN, Ended, type_line

from cpdrun.cli import main
from cpdrun.config.compose import Composer
from cpdrun.config.errors import ConfigError
from cpdrun.record import RunDir, SweepDir, read_json, write_text
from cpdrun.sweep import plan

SHORT = ("seed=0", "epochs=1", "device=cpu")
AXES = ("format=fp32,e3m0", "aps=true,false")


@pytest.fixture
def project(tmp_path) -> Path:
    assert main(["init", str(tmp_path / "project")]) == 0
    return tmp_path / "project"


def cpdrun(*words: str, cwd: Path) -> Ended:
    return type_line(shlex.join(["cpdrun", *words]), cwd)


def path_of(project: Path) -> str:
    """Return PYTHONPATH with the project in front."""
    return os.pathsep.join(filter(None, [str(project), os.environ.get("PYTHONPATH")]))


def test_sweep_and_report_with_the_users_model_and_data(project):
    swept = cpdrun("sweep", "--config-dir", "conf", "exp=mine", *SHORT, *AXES, cwd=project)
    assert swept.code == 0, swept.said + swept.complained
    runs = list(SweepDir(project / "results" / "mine").runs())
    assert [read_json(run.done)["status"] for run in runs] == ["finished"] * 3
    assert "_target_: waves.network.Conv1d" in runs[0].config.read_text()
    assert {read_json(run.done)["judged_by"] for run in runs} == {"test_balanced_accuracy"}
    reported = cpdrun("report", "--format", "csv,html", cwd=project)
    assert reported.code == 0, reported.complained
    folder = project / "results" / "mine" / "report"
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        cells = {(row["format"], row["aps"]) for row in csv.DictReader(file)}
        assert cells == {("fp32", "False"), ("e3m0", "False"), ("e3m0", "True")}
    assert "balanced accuracy" in reported.said
    assert "waves.network.Conv1d" in (folder / "report.html").read_text(encoding="utf-8")


def test_an_existing_folder_is_not_overwritten(project, capsys):
    network = project / "waves" / "network.py"
    network.write_text("# mine\n")
    assert main(["init", str(project)]) == 2
    assert "is not empty. Type a folder that does not exist yet" in capsys.readouterr().err
    assert network.read_text() == "# mine\n"


def test_changed_code_is_noticed_when_the_command_is_typed_again(project):
    words = ("sweep", "--config-dir", "conf", "exp=mine", *SHORT, "format=fp32", "aps=false")
    assert cpdrun(*words, cwd=project).code == 0
    assert "different code" not in cpdrun(*words, cwd=project).said
    (run,) = SweepDir(project / "results" / "mine").runs()
    assert {"cpdrun", "waves.focal", "waves.network", "waves.signals"} <= set(read_json(run.env)["code"])
    with (project / "waves" / "network.py").open("a") as file:
        file.write("# changed\n")
    again = cpdrun(*words, cwd=project).said
    assert "1 done run used different code or data (waves.network)" in again and "Nothing to do" in again
    anew = cpdrun(*words, "--rerun", "changed", cwd=project)
    assert anew.code == 0 and "1 done, 1 to run" in anew.said, anew.said + anew.complained
    assert "different code" not in cpdrun(*words, cwd=project).said


def test_a_sweep_from_another_folder_names_the_missing_module(project, tmp_path):
    lost = cpdrun("sweep", "--config-dir", str(project / "conf"), "exp=mine", cwd=tmp_path)
    assert lost.code == 2
    assert "cannot import waves.signals.Waves: No module named 'waves'" in lost.complained


def test_torchrun_needs_only_the_config_and_gives_the_bits_of_one_process(
    project, tmp_path, train_here, monkeypatch
):
    """Ranks that a user starts in another folder need PYTHONPATH, but not the folder of yaml files."""
    monkeypatch.syspath_prepend(project)
    (planned,) = plan(["exp=mine", *SHORT, "format=e3m0", "aps=true"], project / "conf").runs
    shutil.rmtree(project / "conf")
    one, two = (RunDir(tmp_path / name / planned.name) for name in ("one", "two"))
    for run in (one, two):
        run.path.mkdir(parents=True)
        write_text(run.config, yaml.safe_dump(planned.config))
    assert train_here(one) == 0
    torchrun = [
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--log-dir",
        str(tmp_path / "logs"),
    ]
    trained = subprocess.run(
        [sys.executable, "-m", *torchrun, "-m", "cpdrun.train.rank", str(two.path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": path_of(project),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert trained.returncode == 0, trained.stderr
    assert read_json(one.done)["weights_sha256"] == read_json(two.done)["weights_sha256"]


def test_the_users_yaml_files_take_precedence(project):
    (project / "conf" / "optim").mkdir()
    (project / "conf" / "optim" / "sgd.yaml").write_text("_target_: torch.optim.SGD\nlr: 0.5\n")
    with Composer(project / "conf") as composer:
        assert composer.compose({})["optim"] == {"_target_": "torch.optim.SGD", "lr": 0.5}
        assert {"conv1d", "convnet"} <= set(composer.groups()["model"])
        assert composer.compose({"exp": "mine"})["model"]["width"] == 16
    with Composer() as composer:
        assert "conv1d" not in composer.groups()["model"]


def test_misspelled_names_are_corrected(project):
    for typed, meant in (
        ("modle=conv1d", "model"),
        ("data.nosie=1", "data.noise"),
        ("model=conv2d", "conv1d"),
    ):
        with pytest.raises(ConfigError, match=rf"did you mean '{meant}'"):
            plan(["exp=mine", typed], project / "conf")
    (project / "conf" / "config.yaml").write_text("epochs: 1\n")
    with pytest.raises(ConfigError, match=r"config\.yaml would replace all defaults"):
        plan(["exp=mine"], project / "conf")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("cpdrun sweep --config-dir conf exp=mine", "exp=mine "),
        ("cpdrun sweep --config-dir conf model=conv1", "model=conv1d "),
        ("cpdrun sweep --config-dir conf exp=mine data.noi", "data.noise="),
    ],
)
def test_the_shell_completes_names_of_the_project(project, typed, offered):
    answer = project / "answer"
    variables = {"COMP_LINE": typed, "COMP_POINT": str(len(typed)), "COMP_TYPE": "9", "_ARGCOMPLETE": "1"}
    variables |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    subprocess.run([CPDRUN], cwd=project, env=os.environ | variables, timeout=240)
    assert offered in answer.read_text().split("\n")
