"""Digests of code and data, and what changed since a run was trained."""

import os

import pytest

from cpdrun.record import fingerprint
from cpdrun.record.fingerprint import changes_since, code_digest, data_digest, file_digest, own_digest


@pytest.fixture(autouse=True)
def look_anew():
    """Forget cached digests: a process reads each file once, and these tests change files."""

    def forget():
        for kept in (file_digest, data_digest, own_digest):
            kept.cache_clear()

    forget()
    yield forget
    forget()


def env_of(tmp_path) -> dict:
    code = {
        "cpdrun": {"sha256": own_digest()},
        "mine": {"file": str(tmp_path / "mine.py"), "sha256": file_digest(tmp_path / "mine.py")},
    }
    data = tmp_path / "data"
    return {
        "code": code,
        "code_sha256": code_digest(code),
        "data_path": str(data),
        "data_sha256": data_digest(data),
    }


def config_of(tmp_path) -> dict:
    return {"data": {"data_dir": str(tmp_path / "data")}}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "mine.py").write_text("width = 4\n")
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "data" / "train" / "a.bin").write_bytes(b"abc")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "content", "changed"),
    [
        ("mine.py", "width = 4\n", []),
        ("mine.py", "width = 8\n", ["mine"]),
        ("data/train/a.bin", "abd", ["data"]),
        ("data/train/b.bin", "", ["data"]),
    ],
)
def test_changes_are_named(project, look_anew, file, content, changed):
    env = env_of(project)
    (project / file).write_text(content)
    look_anew()
    assert changes_since(env, config_of(project)) == changed and (env_of(project) == env) == (not changed)


def test_the_same_run_in_another_folder_of_data_is_noticed(project, look_anew):
    env = env_of(project) | {"data_folders": {"data_dir": str(project)}}
    for name, content in (("same", "abc"), ("other", "abd")):
        (project / name / "data" / "train").mkdir(parents=True)
        (project / name / "data" / "train" / "a.bin").write_text(content)
    for name, changed in (("same", []), ("other", ["data"]), ("absent", [])):
        assert changes_since(env, {"data": {"data_dir": str(project / name)}}) == changed


def test_another_cpdrun_is_named(project, monkeypatch):
    env = env_of(project)
    monkeypatch.setattr(fingerprint, "own_digest", lambda: "another")
    assert changes_since(env, {}) == ["cpdrun"]


def test_missing_files_and_damaged_entries_are_not_compared(project, look_anew):
    env = env_of(project)
    (project / "mine.py").unlink()
    (project / "data").rename(project / "elsewhere")
    look_anew()
    assert changes_since(env, config_of(project)) == []
    entries = (
        None,
        [],
        {"code": 3},
        {"code": {"mine": 3}},
        {"data_path": 7},
        {"code": {"mine": {"file": 1}}},
    )
    for garbage in entries:
        assert changes_since(garbage, config_of(project)) == []


def test_only_data_and_code_that_the_configuration_names_are_read(project, look_anew, opened):
    """env.json may come from anyone: it must not make a dry run read the whole disk, a device or a pipe."""
    os.mkfifo(project / "pipe.py")
    hostile = [{"data_path": place, "data_sha256": "0"} for place in ("/", "/dev", str(project))]
    hostile += [{"code": {"mine": {"file": place, "sha256": "0"}}} for place in ("/dev/zero", "/etc/passwd")]
    hostile += [{"code": {"mine": {"file": str(project / "pipe.py"), "sha256": "0"}}}]
    for env in hostile[:-1]:
        assert changes_since(env, config_of(project)) == []
    assert not opened
    assert changes_since(hostile[-1], {}) == ["mine"]


def test_large_data_is_identified_by_names_and_sizes(tmp_path, monkeypatch, look_anew):
    monkeypatch.setattr(fingerprint, "MOST_BYTES", 4)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"12345678")
    whole = data_digest(tmp_path)
    look_anew()
    (tmp_path / "b").write_bytes(b"87654321")
    assert data_digest(tmp_path) == whole  # its content is past what is read
    look_anew()
    (tmp_path / "b").write_bytes(b"8765432")
    assert data_digest(tmp_path) != whole
