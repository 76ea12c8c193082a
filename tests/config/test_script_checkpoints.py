"""The checkpoint that a script starts from identifies its runs by its content."""

from pathlib import Path

import pytest

from cpdrun.config.errors import ConfigError
from cpdrun.config.initial_weights import check_unchanged
from cpdrun.config.script import checkpoint_note, words
from cpdrun.sweep import plan

WORDS = ["script=train.py", "script.metric=val_loss"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('val_loss=1.0')\n")
    (tmp_path / "a.pt").write_text("the weights")
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "model.bin").write_text("more weights")
    return tmp_path


def only(*texts):
    (run,) = plan([*WORDS, *texts]).runs
    return run


@pytest.mark.parametrize(
    "texts",
    [
        ["script_args=--lr 0.1 --resume a.pt"],
        ["script_args=--resume=a.pt --lr 0.1"],
        ["script_args=--init-from ./a.pt"],
        ["script_args=--ckpt {init_from}", "init_from=a.pt"],
        ["script.args.resume_from_checkpoint=a.pt"],
        ["script.args.resume=a.pt", "script.args_style=hydra"],
    ],
)
def test_an_argument_that_names_a_checkpoint_identifies_the_run_by_its_content(here, texts):
    run = only(*texts)
    assert run.config["init_from"] == str(here / "a.pt")
    assert any(str(word).endswith("a.pt") for word in words(run.config, here))
    (here / "a.pt").write_text("other weights")
    assert only(*texts).name != run.name
    with pytest.raises(ConfigError, match=r"a\.pt has changed since this run was planned"):
        check_unchanged(run.config)
    (here / "a.pt").write_text("the weights")
    assert only(*texts).name == run.name
    check_unchanged(run.config)
    (here / "a.pt").unlink()
    with pytest.raises(ConfigError, match=r"init_from: .*a\.pt cannot be read: No such file"):
        check_unchanged(run.config)


def test_a_checkpoint_may_be_a_folder(here):
    run = only("script_args=--resume_from_checkpoint ckpt")
    (here / "ckpt" / "optimizer.bin").write_text("moments")
    assert only("script_args=--resume_from_checkpoint ckpt").name != run.name


@pytest.mark.parametrize(
    "arguments",
    [
        "--resume",  # a flag
        "--resume latest",
        "--resume nowhere.pt",
        "--resume . --lr 0.1",
        "--resume {run_dir}/a.pt",
        "--resume a_{seed}.pt",  # a checkpoint per seed is no common checkpoint
        "--save a.pt",  # an output
        "a.pt",
    ],
)
def test_other_arguments_do_not_name_a_checkpoint(here, arguments):
    (here / "a_0.pt").write_text("the weights of seed 0")
    assert only(f"script_args={arguments}").config["init_from"] is None


def test_a_script_must_get_the_checkpoint(here):
    with pytest.raises(ConfigError, match=r"init_from=a\.pt: the script is not given this file\. Pass it"):
        only("init_from=a.pt")
    with pytest.raises(ConfigError, match=r"have \{init_from\}\. Type init_from=PATH"):
        only("script_args=--ckpt {init_from}")
    assert only("init_from=a.pt", "script_args=--resume a.pt").config["init_from"] == str(here / "a.pt")


def test_the_note_is_only_for_those_who_did_not_type_the_key(here):
    run = only("script_args=--resume a.pt")
    assert checkpoint_note(run.config, ["script_args=--resume a.pt"])[0].startswith(
        f"the script starts from {Path('a.pt').absolute()}, so the content"
    )
    assert not checkpoint_note(run.config, ["init_from=a.pt", "script_args=--ckpt {init_from}"])
    assert not checkpoint_note(only().config, [])
