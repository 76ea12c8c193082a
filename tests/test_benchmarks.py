"""Test that benchmarks which depend on internals of the packages still run."""

import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "scripts" / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield
    for name in (path.stem for path in BENCHMARKS.glob("*.py")):
        sys.modules.pop(name, None)


def test_the_plain_script_and_the_loop_take_turns(benchmarks):
    import training_step

    overrides, samples = training_step.WORKLOADS["convnet, digits"]
    loop_s, plain_s = training_step.measure(overrides, samples, 1, torch.device("cpu"), steps=3)
    assert len(loop_s) == len(plain_s) == 3


def test_small_calls_can_be_timed(benchmarks):
    import harness
    import numerics

    calls = numerics.small_calls("cpu")
    seconds = harness.time_fastest(calls, repeats=1)
    assert seconds.keys() == calls.keys()
    table = harness.ratio_table("one call", seconds, "us").splitlines()
    assert table[0] == "| one call | us | ratio |" and len(table) == 2 + len(calls)
    assert table[2].endswith(" 1.00 |"), "ratios are relative to the first row"


def test_calls_take_turns_and_the_warm_up_is_not_timed(benchmarks):
    import harness

    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = harness.time_turns(calls, repeats=2)
    assert order == ["a", "b"] * 3
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}


def test_a_report_is_written_with_all_its_parts(benchmarks, tmp_path, capsys):
    import harness

    path = tmp_path / "made" / "page.md"
    with harness.Report(path, only="first") as report:
        report.add("head")
        report.add_table(("name", "value"), [("a", 1)])
        report.time("second", lambda: pytest.fail("a skipped table is not prepared"), 1)
    expected = "head\n\n| name | value |\n|---|---:|\n| a | 1 |\n"
    assert path.read_text() == expected == capsys.readouterr().out
