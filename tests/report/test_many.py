"""Several sweeps in one report, and very many runs."""

import pytest
from made_up import Sweep, fill_digits

from cpdrun.report import ReportError


def test_several_sweeps_have_the_sweep_as_an_axis(new_sweep, report):
    a, b = fill_digits(new_sweep("one"), seeds=2), fill_digits(new_sweep("two"), seeds=2)
    made = report(a, b)
    assert list(made.table.columns)[4] == "sweep" and len(made.table) == 26
    assert {each["facet"] for each in made.verdicts} == {"sweep one", "sweep two"}
    assert made.folder.parent.name == "one+two" and not a.dir.report.exists()


def test_sweeps_of_one_name_are_told_apart_and_one_given_twice_counts_once(tmp_path, report):
    here, there = Sweep(tmp_path / "a" / "same"), Sweep(tmp_path / "b" / "same")
    here.add(accuracy=0.9)
    there.add(accuracy=0.5)
    made = report(here, there, here)
    assert made.table["test_accuracy_mean"].tolist() == [0.9, 0.5]
    assert made.table["sweep"].tolist() == [str(here.dir.path), str(there.dir.path)]


def test_files_of_many_runs_are_read_once(new_sweep, report, opened, pictures):
    """The number of opened files per run does not depend on the number of tables and pictures."""
    sweep, runs = new_sweep(), 0
    rows = [{"epoch": i, "test_accuracy": 0.09 * i, "train_loss": 1 / i} for i in range(1, 11)]
    for workers in (4, 8, 16):
        for name in ("fp32", "bf16", *(f"e{e}m{m}" for e in (3, 4, 5) for m in (0, 1, 2, 3))):
            for seed in range(8):
                value, config = (
                    0.9 + 0.001 * (seed % 3),
                    {"world_size": workers, "wire_bytes": 1000 * workers},
                )
                sweep.add(name, seed=seed, accuracy=value, rows=rows, name=f"run-{runs:05d}", **config)
                runs += 1
    opened.clear()
    made = report(sweep, formats=["md", "csv", "html"])
    of_runs = sum(path.startswith(f"{sweep.dir.path}/runs/") for path in opened)
    assert 4 * runs <= of_runs < 10 * runs
    assert (made.folder / "report.html").stat().st_size < 2500 * runs + 1_000_000
    assert made.table["n"].sum() == runs


def test_a_folder_that_cannot_be_written_is_one_line(new_sweep, report):
    sweep = fill_digits(new_sweep(), seeds=1)
    sweep.dir.report.write_text("a file in its place", encoding="utf-8")
    with pytest.raises(ReportError, match=r"cannot write .*report"):
        report(sweep)
