"""Oversized and malformed yaml files and command lines are reported in one line."""

import pytest

from cpdrun.config.errors import ConfigError
from cpdrun.config.yaml_files import OutOfBoundsError, read_yaml
from cpdrun.sweep import plan

NINES = "\n".join(
    ["b0: &b0 [1,2,3,4,5,6,7,8,9]"] + [f"b{i}: &b{i} [{','.join([f'*b{i - 1}'] * 9)}]" for i in range(1, 10)]
)


@pytest.mark.parametrize(
    "text",
    [
        NINES,
        "a: &a [*a]",
        "&a [&b [*a]]",
        *(mark * 100_000 for mark in ("[", "- ", "? ", "{a: ")),
        "a: " + "x" * (2 << 20),
    ],
    ids=["nine to the tenth", "itself", "itself, within", "brackets", "dashes", "keys", "braces", "2 MB"],
)
def test_oversized_and_endless_yaml_is_rejected(experiment, text):
    folder = experiment(text)
    with pytest.raises(OutOfBoundsError):
        read_yaml(folder / "exp" / "mine.yaml")
    with pytest.raises(ConfigError, match=r"exp/mine\.yaml (is|contains more)"):
        plan(["exp=mine"], folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"epochs: 2 # \xe9t\xe9\n", r"exp/mine\.yaml is not encoded in UTF-8"),
        (b"defaults: 3\n", "Invalid defaults list in 'exp/mine'"),
        (b"sweep: {2: [1]}\n", "sweep: the key 2 must be text"),
        (b"sweep: {cases: {a: {1: 2}}}\n", r"sweep\.cases\.a: the key 1 must be text"),
        (b"sweep: {seed: [0], exclude: [{1: 2}]}\n", r"sweep\.exclude: the key 1 must be text"),
        (b"launcher: null\n", "launcher must name its class"),
        (b"model: {_target_: a/b.c}\n", "model._target_=a/b.c: must be package.module.Class"),
        (b"format: {a: 1}\n", "format={a:1}: unknown format"),
    ],
    ids=str,
)
def test_invalid_yaml_is_reported_in_one_line(experiment, text, message):
    with pytest.raises(ConfigError, match=message):
        plan(["exp=mine"], experiment(text))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("format=[e4m3,e5m2]", r"must be one name. To try several, type e4m3,e5m2 without brackets"),
        ("format=E4M3", r"did you mean 'e4m3fn'"),
        ("format=fp8", r"did you mean e4m3fn \(hardware FP8, maximum 448\) or e5m2\?"),
        ("name=" + "a" * 300, "must have at most 255 bytes, but has 300"),
        ("name='" + "é" * 200 + "'", "must have at most 255 bytes, but has 400"),
        ("name=a\tb", "contains characters that a terminal cannot show"),
        (
            "model._target_=mine." + "N" * 300,
            r"n{40}\.\.\. \(3\d\d bytes\), but file systems allow at most 255",
        ),
        ("results_dir=" + "a/" * 2500, "results_dir: the paths of runs would be 5"),
        ("seed=range(0,1000000)", r"seed=range\(0,1000000\): an axis has at most 100,000 values"),
        ("seed=range(0,90000)", r"seed\(90,000\) = 1,260,000 runs, but one sweep has at most 100,000"),
        ("launcher.warning_s=-1", "launcher.warning_s=-1"),
    ],
    ids=lambda value: value[:30],
)
def test_oversized_requests_are_rejected(typed, message):
    with pytest.raises(ConfigError, match=message):
        plan(["exp=digits_bits", "launcher=slurm", typed])


def test_many_runs_are_announced():
    said = []
    plan(["exp=digits_bits", "seed=range(0,3)"], on_many=said.append)
    assert said == []
    with pytest.raises(ConfigError):  # by the first of them, so the test is fast
        plan(["exp=digits_bits", "seed=range(0,1000)", "world_size=0"], on_many=said.append)
    assert said == [14_000]
