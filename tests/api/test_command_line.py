"""Conversion of keyword arguments to the words of a command line."""

from pathlib import Path

import numpy as np
import pytest
from custom_fp import Format

from cpdrun.api.command_line import typed
from cpdrun.cli import parser_of, read
from cpdrun.errors import MistypedError, UserError

KEYS = [
    ({"format": "e4m3"}, ["format=e4m3"]),
    ({"format": ["e4m3", "fp32"], "aps": (True, False)}, ["format=e4m3,fp32", "aps=true,false"]),
    ({"seed": range(3)}, ["seed=0,1,2"]),
    ({"optim.lr": [0.1, 0.2]}, ["optim.lr=0.1,0.2"]),
    ({"optim": {"lr": [0.1, 0.2], "momentum": 0.9}}, ["optim.lr=0.1,0.2", "optim.momentum=0.9"]),
    ({"search": {"tune": {"optim": {"lr": [0.1, 0.2]}}}}, ["search.tune.optim.lr=0.1,0.2"]),
    ({"data.files": [["*.txt", "a b"]]}, ["data.files=['*.txt','a b']"]),
    ({"name": None}, ["name=null"]),
    ({"name": "a,b"}, ["name='a,b'"]),
    ({"optim.lr": np.array([0.25, 0.5]), "epochs": np.int64(3)}, ["optim.lr=0.25,0.5", "epochs=3"]),
    ({"format": Format.parse("e4m3")}, ["format=e4m3"]),
    ({"results_dir": Path("there/is")}, ["results_dir=there/is"]),
    (
        {"script": "train.py", "script_args": "--seed {seed}"},
        ["script=train.py", "script_args=--seed {seed}"],
    ),
]


@pytest.mark.parametrize(("keywords", "words"), KEYS, ids=[str(k) for k, _ in KEYS])
def test_keywords_are_keys(keywords, words):
    assert typed(parser_of("sweep"), [], keywords) == words


OPTIONS = [
    ("sweep", {"jobs": 2, "dry_run": True, "fail_fast": False}, ["--jobs=2", "--dry-run"]),
    ("sweep", {"wait": False}, ["--no-wait"]),
    ("sweep", {"no_wait": True}, ["--no-wait"]),
    ("sweep", {"wait": True, "no_wait": False, "jobs": None}, []),
    ("search", {"budget": "2h", "report": True}, ["--budget=2h", "--report"]),
    ("report", {"format": ["csv", "html"], "ci": 99}, ["--format=csv,html", "--ci=99"]),
    ("report", {"baseline": {"format": "bf16", "aps": False}}, ["--baseline=format=bf16,aps=false"]),
    ("report", {"results_dir": "x"}, ["results_dir=x"]),
    ("logs", {"rank": 1}, ["--rank=1"]),
]


@pytest.mark.parametrize(("command", "keywords", "words"), OPTIONS)
def test_keywords_are_options(command, keywords, words):
    assert typed(parser_of(command), [], keywords) == words


def test_the_words_can_be_parsed():
    words = typed(parser_of("sweep"), ["exp=digits_bits"], {"seed": [0, 1], "jobs": 2, "rerun": "all"})
    arguments = read(["sweep", *words])
    assert arguments.overrides == ["exp=digits_bits", "seed=0,1"]
    assert (arguments.jobs, arguments.rerun, arguments.json) == (2, "all", False)


@pytest.mark.parametrize(
    ("command", "keywords", "why"),
    [
        ("report", {"metrc": "x"}, "cpdrun report has no option 'metrc' .did you mean 'metric'"),
        ("status", {"json": True}, "has no option 'json'"),
        ("sweep", {"dry_run": 1}, "dry_run=1: must be True or False"),
        ("sweep", {"format": []}, "an axis needs at least one value"),
        ("sweep", {"jobs": [1, 2]}, "takes one value"),
    ],
)
def test_a_mistake_is_one_line(command, keywords, why):
    with pytest.raises(UserError, match=why):
        typed(parser_of(command), [], keywords)


def test_a_parser_error_raises_instead_of_exiting():
    with pytest.raises(MistypedError, match="--jobs: must be a whole number, at least 1, not '0'"):
        read(["sweep", "exp=digits_bits", "--jobs", "0"])
