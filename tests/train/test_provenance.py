"""env.json and code.diff state with what, and from which code, a run was trained."""

import subprocess
import sys
from importlib.metadata import version
from types import ModuleType

import pytest
import torch

from cpdrun.data.text import PydocText
from cpdrun.record import RunDir, read_json
from cpdrun.train.state import provenance
from cpdrun.train.state.provenance import write_environment


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "results" / "sweep" / "runs" / "one")
    run.path.mkdir(parents=True)
    return run


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A user's repository with one commit. The current folder is inside it."""
    folder = tmp_path / "project"
    (folder / "experiments").mkdir(parents=True)
    (folder / "model.py").write_text("width = 4\n")
    (folder / "secret.env").write_text("TOKEN=one\n")
    monkeypatch.chdir(folder)
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=me", "-c", "user.email=me@here", "commit", "-qm", "first")
    monkeypatch.chdir(folder / "experiments")
    for name in ("model", "notes"):  # as if they were imported
        module = ModuleType(f"of_the_repository_{name}")
        module.__file__ = str(folder / f"{name}.py")
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return folder


def git(*command: str) -> str:
    return subprocess.run(["git", *command], capture_output=True, text=True, check=True).stdout


def env_of(run: RunDir, data: object = None) -> dict:
    write_environment(run, torch.device("cpu"), data)
    return read_json(run.env)


def test_committed_code_is_named_by_its_commit(run, repository):
    env = env_of(run)
    assert env["git_commit"] == git("rev-parse", "HEAD").strip()
    assert env["git_diff"] == "none"
    assert not run.code_diff.exists()
    assert env["packages"]["torch"] == version("torch")
    assert env["device"] and env["hostname"]


def test_uncommitted_code_can_be_restored(run, repository):
    (repository / "model.py").write_text("width = 8\n")
    (repository / "notes.py").write_text("# not of the repository\n")
    (repository / "secret.env").write_text("TOKEN=another\n")
    (repository / "untracked.txt").write_text("mine\n")
    digest = env_of(run)["git_diff"]
    kept = run.code_diff.read_text()
    assert kept.startswith("# not in the repository: notes.py\n")
    assert "TOKEN" not in kept and "untracked" not in kept  # nothing that is not imported
    git("checkout", "-q", "--", ":/")
    subprocess.run(["git", "apply", str(run.code_diff)], cwd=repository, check=True)
    assert (repository / "model.py").read_text() == "width = 8\n"

    (repository / "notes.py").unlink()
    assert env_of(run)["git_diff"] == digest  # files beside the repository do not count as other code
    (repository / "model.py").write_text("width = 16\n")
    assert env_of(run)["git_diff"] not in (digest, "none")
    git("checkout", "-q", "--", ":/")
    env_of(run)
    assert not run.code_diff.exists()


def test_a_huge_diff_is_truncated(run, repository, monkeypatch):
    monkeypatch.setattr(provenance, "DIFF_BYTES", 500)
    (repository / "model.py").write_text("\n".join(f"line = {i}" for i in range(1000)))
    env_of(run)
    text = run.code_diff.read_text()
    assert 500 < len(text) < 600
    assert "# truncated: " in text.splitlines()[-1]


def test_outside_a_repository_there_is_no_commit(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    env = env_of(run)
    assert (env["git_commit"], env["git_diff"]) == (None, None)
    assert not run.code_diff.exists()


def test_the_digest_of_a_dataset_is_recorded(run):
    text = PydocText(context=64, test_fraction=0.1, text_bytes=None)
    assert env_of(run, text)["data_sha256"] == text.sha256
    assert env_of(run, object())["data_sha256"] is None
