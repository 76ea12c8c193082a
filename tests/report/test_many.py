"""Several sweeps in one report, mixed versions, and very many runs."""

import pytest
from made_up import Sweep, fill_digits

from cpdrun.report import ReportError


def test_several_sweeps_have_the_sweep_as_an_axis(new_sweep, report):
    a, b = fill_digits(new_sweep("one"), seeds=2), fill_digits(new_sweep("two"), seeds=2)
    made = report(a, b)
    assert list(made.table.columns)[4] == "sweep"
    assert len(made.table) == 26
    assert {each["facet"] for each in made.verdicts} == {"sweep one", "sweep two"}
    assert made.folder.parent.name == "one+two"
    assert not a.dir.report.exists()


def test_mixed_versions_are_told(new_sweep, report, no_pictures):
    sweep = new_sweep()
    for seed, torch in enumerate(("2.9.0", "2.9.0", "2.10.0")):
        env = {"python": "3.11.7", "packages": {"torch": torch}, "hostname": f"node{seed}"}
        sweep.add(seed=seed, accuracy=0.9 + 0.01 * seed, env=env)
    printed = report(sweep).printed
    assert "made with different versions: torch 2.9.0 (2 runs), 2.10.0 (1 run)" in printed
    assert "node0" not in printed


def test_one_version_is_not_worth_a_word(new_sweep, report, no_pictures):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, env={"packages": {"torch": "2.9.0"}})
    assert "different versions" not in report(sweep).printed


@pytest.mark.timeout(240)
def test_two_thousand_runs(new_sweep, report, opened):
    sweep = new_sweep()
    names = ["fp32", "bf16", "fp16", *(f"e{e}m{m}" for e in (3, 4, 5) for m in (0, 1, 2, 3))]
    rows = [{"epoch": i, "test_accuracy": 0.09 * i, "train_loss": 1 / i} for i in range(1, 11)]
    index = 0
    for world_size in (4, 8, 16, 32, 64):
        for name in names:
            for aps in (False, True):
                for seed in range(14):
                    if index == 2000:
                        break
                    sweep.add(
                        name,
                        aps=aps,
                        seed=seed,
                        accuracy=0.9 + 0.001 * (seed % 3),
                        world_size=world_size,
                        rows=rows,
                        wire_bytes=1000 * world_size,
                        name=f"run-{index:05d}",
                    )
                    index += 1
    opened.clear()
    made = report(sweep, formats=["md", "csv", "html"])
    of_runs = sum(path.startswith(f"{sweep.dir.path}/runs/") for path in opened)
    assert (
        4 * 2000 <= of_runs < 10 * 2000
    )  # up to nine files of each run, none of them again for every picture
    assert (made.folder / "report.html").stat().st_size < 5_000_000
    assert made.table["n"].sum() == 2000


def test_sweeps_of_one_name_stay_apart_and_one_given_twice_counts_once(tmp_path, report, no_pictures):
    here, there = Sweep(tmp_path / "a" / "same"), Sweep(tmp_path / "b" / "same")
    for sweep, accuracy in ((here, 0.9), (there, 0.5)):
        sweep.add(accuracy=accuracy)
    made = report(here, there, here)
    assert made.table["test_accuracy_mean"].tolist() == [0.9, 0.5]
    assert made.table["sweep"].tolist() == [str(here.dir.path), str(there.dir.path)]


def test_a_folder_that_cannot_be_written_is_one_line(new_sweep, report):
    sweep = fill_digits(new_sweep(), seeds=1)
    sweep.dir.report.write_text("a file stands in its place", encoding="utf-8")
    with pytest.raises(ReportError, match=r"cannot write .*report"):
        report(sweep)
