"""A checkpoint is complete and belongs to its run, or it is not used."""

import os
import random
import shutil
import subprocess

import pytest
import torch

from cpdrun.record import forget, read_json, read_json_lines
from cpdrun.train.state import checkpoint

FLIPS = 60
STATE = {"progress": {"epoch": 3}, "model": {"weight": torch.arange(12.0).reshape(3, 4)}}
SHORT = ("epochs=3", "data.test_fraction=0.9")


def loaded(path):
    found = checkpoint.choose(path, "one")
    return None if found is None else checkpoint.read(found, torch.device("cpu"))


def test_no_flipped_bit_loads(tmp_path, capfd):
    """In the weights, the pickle, the tables of the archive, and the seal: the digest covers each bit."""
    path, dice = tmp_path / "ckpt" / "last.pt", random.Random(0)
    checkpoint.save(path, STATE, "one")
    whole = path.read_bytes()
    for _ in range(FLIPS):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        assert checkpoint.choose(path, "one") is None
        (path.parent / "unreadable.pt").unlink()
    path.write_bytes(whole)
    assert torch.equal(loaded(path)["model"]["weight"], STATE["model"]["weight"])
    assert capfd.readouterr().err.count("starting from the beginning") == FLIPS


def save_former_layout(path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "LAYOUT", 1)
        checkpoint.save(path, STATE, "one")


UNUSABLE = {
    "a list": lambda path: torch.save([1, 2], path),
    "a damaged archive": lambda path: path.write_bytes(b"PK\x03\x04" + b"\0" * 100),
    "of another run": lambda path: checkpoint.save(path, STATE, "another"),
    "a former layout": save_former_layout,
    "a folder": lambda path: path.mkdir(),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("put", UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_checkpoint_is_set_aside_and_the_previous_one_is_read(tmp_path, put, capfd):
    path = tmp_path / "ckpt" / "last.pt"
    checkpoint.save(path, {"epoch": 1}, "one")
    checkpoint.save(path, {"epoch": 2}, "one")
    for number in (1, 2):  # the second time, the file that was set aside is in the way
        path.unlink(missing_ok=True)
        put(path)
        assert loaded(path) == {"epoch": 1}
        warning = capfd.readouterr().err
        assert warning.count("\n") == 1
        assert "last.pt cannot be read" in warning and "the previous one" in warning
        assert len(list(path.parent.glob("unreadable*.pt"))) == number
    checkpoint.save(path, {"epoch": 3}, "one")
    assert loaded(path) == {"epoch": 3}
    path.write_bytes(b"")
    assert loaded(path) == {"epoch": 1}


def test_a_damaged_or_foreign_checkpoint_does_not_change_the_result(make_run, train_here, capfd):
    straight, other, foreign, damaged = (make_run(*SHORT, f"seed={seed}") for seed in (0, 1, 0, 0))
    train_here(straight)
    train_here(other)
    foreign.checkpoint.parent.mkdir()
    shutil.copy(other.checkpoint, foreign.checkpoint)
    assert train_here(foreign) == 0
    said = capfd.readouterr().err
    assert f"it belongs to another run, '{other.name}'); starting from the beginning" in said
    damaged.preempt.touch()
    train_here(damaged)
    train_here(damaged)
    damaged.preempt.unlink()
    content = damaged.checkpoint.read_bytes()
    damaged.checkpoint.write_bytes(content[: len(content) // 2])
    assert train_here(damaged) == 0
    assert "cannot be read" in capfd.readouterr().err
    assert [row["epoch"] for row in read_json_lines(damaged.metrics)] == [1, 2, 3]
    assert len({read_json(run.done)["weights_sha256"] for run in (straight, foreign, damaged)}) == 1


def test_forgetting_a_run_also_removes_folders_in_place_of_files(make_run):
    run = make_run()
    for path in (run.checkpoint, run.done):
        path.mkdir(parents=True)
        (path / "inside").touch()
    forget(run)
    assert not run.checkpoint.exists() and not run.done.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_is_reported_and_the_previous_checkpoint_stays(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(tmp_path)], check=True)
    try:
        path = tmp_path / "ckpt" / "last.pt"
        checkpoint.save(path, {"step": 1}, "one")
        with pytest.raises(OSError, match=r"No space left on device: '.*last\.pt'"):
            checkpoint.save(path, {"step": 2, "weights": torch.ones(100_000)}, "one")
        assert [file.name for file in path.parent.iterdir()] == ["last.pt"]
        assert loaded(path) == {"step": 1}
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
