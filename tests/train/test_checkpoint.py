"""A checkpoint is whole and of its own run, or it is not used."""

import os
import random
import shutil
import subprocess

import pytest
import torch

from cpdrun.record import forget, read_json, read_json_lines
from cpdrun.train.state import checkpoint

FLIPS = 200
STATE = {"progress": {"epoch": 3}, "model": {"weight": torch.arange(12.0).reshape(3, 4)}}


def loaded(path, run="one"):
    found = checkpoint.choose(path, run)
    return None if found is None else checkpoint.read(found, torch.device("cpu"))


def test_no_flipped_bit_loads(tmp_path, capfd):
    """In weights, in the pickle, in the archive's own tables, in the seal: each bit is in the digest."""
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


def a_list(path):
    torch.save([1, 2], path)


def a_key_error(path):
    path.write_bytes(b"PK\x03\x04" + b"\0" * 100)


def another_runs(path):
    checkpoint.save(path, STATE, "another")


def a_folder(path):
    path.mkdir()


def a_link_to_nowhere(path):
    path.symlink_to("nowhere")


def one_laid_out_as_before(path):
    now, checkpoint.LAYOUT = checkpoint.LAYOUT, 1
    checkpoint.save(path, STATE, "one")
    checkpoint.LAYOUT = now


PUT = [a_list, a_key_error, another_runs, one_laid_out_as_before, a_folder, a_link_to_nowhere]


@pytest.mark.parametrize("put", PUT)
def test_what_is_no_checkpoint_of_the_run_falls_back_and_never_pushes_out_the_one_before(
    tmp_path, put, capfd
):
    path = tmp_path / "ckpt" / "last.pt"
    checkpoint.save(path, {"epoch": 1}, "one")
    checkpoint.save(path, {"epoch": 2}, "one")
    for number in (1, 2):  # twice, so that what was set aside is in the way
        path.unlink(missing_ok=True)
        put(path)
        assert loaded(path) == {"epoch": 1}
        warning = capfd.readouterr().err
        assert (
            warning.count("\n") == 1 and "last.pt cannot be read" in warning and "the previous one" in warning
        )
        assert len(list(path.parent.glob("unreadable*.pt"))) == number
    checkpoint.save(path, {"epoch": 3}, "one")
    assert loaded(path) == {"epoch": 3}
    path.write_bytes(b"")
    assert loaded(path) == {"epoch": 1}


def test_without_any_whole_one_the_run_starts_from_the_beginning(make_run, train_here, capfd):
    straight, other, stopped = make_run("epochs=2"), make_run("epochs=2", "seed=1"), make_run("epochs=2")
    train_here(straight)
    train_here(other)
    stopped.checkpoint.parent.mkdir()
    shutil.copy(other.checkpoint, stopped.checkpoint)
    assert train_here(stopped) == 0
    assert (
        f"it belongs to another run, '{other.name}'); starting from the beginning" in capfd.readouterr().err
    )
    assert read_json(stopped.done)["weights_sha256"] == read_json(straight.done)["weights_sha256"]


def test_forgetting_a_run_takes_folders_in_the_place_of_files_too(make_run):
    run = make_run()
    for path in (run.checkpoint, run.done):
        path.mkdir(parents=True)
        (path / "inside").touch()
    forget(run)
    assert not run.checkpoint.exists() and not run.done.exists()


def test_a_damaged_checkpoint_falls_back_to_the_one_before(make_run, train_here, capfd):
    straight, damaged = make_run("epochs=3"), make_run("epochs=3")
    train_here(straight)
    damaged.preempt.touch()
    train_here(damaged)
    train_here(damaged)
    damaged.preempt.unlink()
    content = damaged.checkpoint.read_bytes()
    damaged.checkpoint.write_bytes(content[: len(content) // 2])
    assert train_here(damaged) == 0
    assert "cannot be read" in capfd.readouterr().err
    assert read_json(straight.done)["weights_sha256"] == read_json(damaged.done)["weights_sha256"]
    assert [row["epoch"] for row in read_json_lines(damaged.metrics)] == [1, 2, 3]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_checkpoint_that_does_not_fit_says_so_and_leaves_the_one_before(tmp_path):
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
