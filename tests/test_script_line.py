"""A script's command line among cpdrun's words: which words are whose."""

import shlex

import pytest

from cpdrun.cli import read
from cpdrun.config.script import words
from cpdrun.errors import MistypedError
from cpdrun.sweep import plan


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('val loss 1.0')\n")


@pytest.mark.parametrize(
    ("typed", "settings"),
    [
        (
            "train.py --lr 0.1 -- format=e4m3,fp32",
            ["script=train.py", "script_args=--lr 0.1", "format=e4m3,fp32"],
        ),
        ("train.py --seed {seed} -- seed=0,1", ["script=train.py", "script_args=--seed {seed}", "seed=0,1"]),
        ("train.py --lr 0.1", ["script=train.py", "script_args=--lr 0.1"]),
        ("train.py format=e4m3 metric=val_loss", ["script=train.py", "format=e4m3", "metric=val_loss"]),
        ("python3 train.py --x 'a b' -- aps=true", ["script=train.py", "script_args=--x 'a b'", "aps=true"]),
        ("-m pack.fit 1 2 -- aps=true", ["script=-m pack.fit", "script_args=1 2", "aps=true"]),
        ("--jobs 2 train.py --lr 1 -- --dry-run", ["script=train.py", "script_args=--lr 1"]),
        ("exp=digits_bits format=e4m3", ["exp=digits_bits", "format=e4m3"]),
        ("train.py --dry-run seed=0,1 --jobs 2", ["script=train.py", "seed=0,1"]),
        ("script=train.py aps=true", ["script=train.py", "aps=true"]),
    ],
)
def test_words_before_two_dashes_belong_to_the_script(typed, settings):
    assert read(["sweep", *shlex.split(typed)]).overrides == settings


def test_options_before_the_script_and_after_the_dashes_belong_to_cpdrun():
    arguments = read(shlex.split("sweep --jobs 2 train.py --lr 1 -- --dry-run"))
    assert arguments.jobs == 2 and arguments.dry_run


@pytest.mark.parametrize("arguments", [["a b"], ["--name", "it's", '{"a": 1}'], ["--seed", "{seed}"]])
def test_the_arguments_of_the_script_are_unchanged(tmp_path, arguments):
    overrides = read(["sweep", "train.py", *arguments, "--", "seed=7"]).overrides
    expected = [word.replace("{seed}", "7") for word in arguments]
    assert words(plan(overrides).runs[0].config, tmp_path) == expected


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("train.py --lr 0.1 format=e4m3", "cpdrun sweep train.py --lr 0.1 -- format=e4m3"),
        ("train.py --lr 1 --dry-run", "cpdrun sweep train.py ... -- --dry-run"),
        ("torchrun --nproc_per_node 2 train.py", "name the script itself"),
        ("train.py --lr 1 -- script_args=x", "are given twice"),
    ],
)
def test_ambiguous_lines_are_errors_with_the_line_to_type(typed, message):
    with pytest.raises(MistypedError, match=message.replace(".", r"\.")):
        read(["sweep", *shlex.split(typed)])
