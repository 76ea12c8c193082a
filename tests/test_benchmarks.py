"""Test that benchmarks which depend on internals of the packages still run."""

import sys
from pathlib import Path

import pytest
import torch

from cpdrun.cli import main
from cpdrun.launch.progress.status import sweep_status
from cpdrun.record import State, SweepDir

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


@pytest.mark.parametrize("workload", ["gpt", "convnet"])
def test_recipes_train_on_the_workloads_that_are_timed(benchmarks, workload):
    import custom_fp
    from recipe_steps import make_workload, train_step

    model, x, y = make_workload(workload)
    custom_fp.apply_recipe(model, "nvfp4")
    train_step(model, torch.optim.AdamW(model.parameters(), 5e-4), x[:1], y[:1])
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_row_of_the_kernel_table_describes_machine_code(benchmarks):
    import kernel_table
    from custom_fp import nvrtc
    from ptx_work import Work

    found = kernel_table.read_part(nvrtc.part_of("unpack"), 90)
    work = Work("unpack(e4m3)", instructions=100, doubles=0, shared=1, bytes=5)
    row = kernel_table.row(90, *found["unpack"], work, written=1000)
    registers, *_, machine_instructions, _, _, instructions, share, of = row.split(" | ")
    assert int(registers) <= 255 and of == "unpack(e4m3)"
    # The instructions of the code include the NOPs that pad it, and those of an element do not.
    assert 0 < float(instructions) <= int(machine_instructions) * 100 / 1000 + 0.5
    assert 0 < float(share) < 1


def test_copied_runs_are_a_sweep(benchmarks, tmp_path, monkeypatch):
    import commands

    monkeypatch.setattr(commands, "RUNS", 3)
    few = ["exp=digits_bits", "epochs=1", "model.width=2", "format=fp32", "aps=false", "seed=0", "name=few"]
    assert main(["sweep", *few, f"results_dir={tmp_path}"]) == 0
    commands.copy_runs(tmp_path / "few", tmp_path / "many")
    assert [row.state for row in sweep_status(SweepDir(tmp_path / "many")).rows] == [State.DONE] * 3


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
