"""Other baselines than fp32, those that lie on other axes too: the report takes a search's, or what was typed."""

import pandas as pd
import pytest
import yaml

from cpdrun.errors import UserError
from cpdrun.record import write_text

SCATTER = (-0.001, 0.0, 0.001, 0.0005)


def fill(sweep, cells: dict):
    """(format, aps, lr) -> mean."""
    for (format, aps, lr), mean in cells.items():
        for seed, shift in enumerate(SCATTER):
            optim = {"_target_": "cpdrun.optim.sgd.SGD", "lr": lr}
            sweep.add(format, aps=aps, seed=seed, accuracy=mean + shift, optim=optim)
    return sweep


def searched(sweep, baseline, **more):
    search = {"tolerance": 1, "baseline": baseline, **more}
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [], "search": search}))
    return sweep


def differences(made):
    table = pd.read_csv(made.folder / "details.csv")
    rows = zip(table["format"], table["aps"], table["optim.lr"], table["vs_baseline"], strict=True)
    return {row[:3]: round(row[3], 3) for row in rows if row[3] == row[3]}


def test_a_baseline_with_a_rate_of_its_own_serves_the_formats_of_every_rate(new_sweep, report, no_pictures):
    cells = {("fp32", False, 0.1): 0.98, ("e4m3", False, 0.1): 0.90, ("e4m3", False, 0.05): 0.978}
    baseline = {"format": "fp32", "aps": False, "optim.lr": 0.1}
    made = report(searched(fill(new_sweep(), cells), baseline))
    assert differences(made) == {("e4m3", False, 0.1): -0.08, ("e4m3", False, 0.05): -0.002}
    assert [(each["facet"], each["candidate"]) for each in made.verdicts] == [
        ("optim.lr 0.05", "e4m3 without APS"),
        ("optim.lr 0.1", "e4m3 without APS"),
    ]
    assert "at most 1 point worse than fp32 with optim.lr 0.1" in made.printed
    assert "The baseline is fp32 with optim.lr 0.1." in made.printed


def test_a_baseline_that_alone_has_another_rate_makes_no_panel_of_its_own(new_sweep, report):
    cells = {("fp32", False, 0.1): 0.98, ("e4m3", False, 0.05): 0.979, ("e3m0", True, 0.05): 0.97}
    baseline = {"format": "fp32", "aps": False, "optim.lr": 0.1}
    made = report(searched(fill(new_sweep(), cells), baseline), formats=["md", "csv", "html", "svg"])
    assert [each["facet"] for each in made.verdicts] == ["", ""]
    assert differences(made) == {("e4m3", False, 0.05): -0.001, ("e3m0", True, 0.05): -0.01}
    assert "fp32 with optim.lr 0.1" in (made.folder / "accuracy_vs_bits.svg").read_text(encoding="utf-8")


def test_without_it_no_fp32_of_that_rate_is_nothing_to_compare_with(new_sweep, report, no_pictures):
    cells = {("fp32", False, 0.1): 0.98, ("e4m3", False, 0.05): 0.979}
    made = report(fill(new_sweep(), cells))
    assert any("No answer: there is no finished fp32 run" in line for line in made.answers)


def test_scaling_is_compared_with_none_of_the_same_format(new_sweep, report, no_pictures):
    cells = {
        (f, aps, 0.1): 0.98 - 0.5 * (f == "e3m0" and not aps)
        for f in ("e4m3", "e3m0")
        for aps in (False, True)
    }
    made = report(searched(fill(new_sweep(), cells), {"scaling": "none"}, baseline_values={"aps": False}))
    table = pd.read_csv(made.folder / "details.csv")
    found = {row["format"]: round(row["vs_baseline"], 3) for _, row in table[table["aps"]].iterrows()}
    assert found == {"e4m3": 0.0, "e3m0": 0.5}
    assert {each["facet"]: each["candidate"] for each in made.verdicts} == {
        "format e3m0": "e3m0 with APS",
        "format e4m3": "e4m3 with APS",
    }


def test_a_baseline_that_is_scaled_is_that_and_no_other(new_sweep, report, no_pictures):
    cells = {("e4m3", True, 0.1): 0.98, ("e4m3", False, 0.1): 0.5, ("e3m0", True, 0.1): 0.97}
    made = report(searched(fill(new_sweep(), cells), {"format": "e4m3", "aps": True}))
    table = pd.read_csv(made.folder / "details.csv").set_index(["format", "aps"])
    assert round(table.loc[("e3m0", True), "vs_baseline"], 3) == -0.01
    assert (table["baseline"].dropna() == "e4m3 with APS").all()


def test_another_spelling_of_a_format_is_that_format(new_sweep, report, no_pictures):
    sweep = fill(
        new_sweep(), {("bf16", False, 0.1): 0.98, ("fp32", False, 0.1): 0.98, ("e4m3", False, 0.1): 0.979}
    )
    said = report(searched(sweep, {"format": "e8m7", "aps": False}))
    assert "at most 1 point worse than e8m7" in said.printed and said.verdicts[0]["candidate"].startswith(
        "e4m3"
    )
    weights = new_sweep("weights")
    for name in ("e8m23", "e4m3"):
        for seed, shift in enumerate(SCATTER):
            weights.add(seed=seed, accuracy=0.98 + shift, precision={"weights": name})
    made = report(searched(weights, {"precision.weights": "fp32"}))
    assert [each["candidate"] for each in made.verdicts] == ["e4m3 of weights"]


def test_what_is_typed_is_the_baseline_and_its_mistakes_are_told(new_sweep, report, no_pictures):
    sweep = fill(
        new_sweep(), {("bf16", False, 0.1): 0.98, ("fp32", False, 0.1): 0.98, ("e4m3", False, 0.1): 0.979}
    )
    made = report(searched(sweep, {"format": "fp32", "aps": False}), baseline={"format": "bf16"})
    assert "at most 1 point worse than bf16" in made.printed
    assert set(pd.read_csv(made.folder / "details.csv")["baseline"].dropna()) == {"bf16"}
    with pytest.raises(UserError, match="no run has this value; the runs have bf16, e4m3, fp32"):
        report(sweep, baseline={"format": "fp16"})
    with pytest.raises(UserError, match="the runs have no key 'formt'"):
        report(sweep, baseline={"formt": "bf16"})


def test_cases_beside_another_axis_are_compared_where_that_is_the_same(new_sweep, report, no_pictures):
    sweep = new_sweep()
    for case, gap in (("fp32", 0.0), ("half", -0.02)):
        for format, mean in (("fp32", 0.98), ("e4m3", 0.90)):
            for seed, shift in enumerate(SCATTER):
                sweep.add(
                    format, seed=seed, accuracy=mean + gap + shift, case=case, precision={"weights": case}
                )
    made = report(sweep)
    table = pd.read_csv(made.folder / "details.csv")
    assert [round(gap, 3) for gap in table["vs_baseline"].dropna()] == [-0.02, -0.02]
    assert {each["facet"] for each in made.verdicts} == {"format fp32", "format e4m3"}


def test_each_of_several_sweeps_keeps_its_baseline(new_sweep, report, no_pictures):
    follows, fixed = new_sweep("follows"), new_sweep("fixed")
    for seed, shift in enumerate(SCATTER):
        for format, mean in (("fp32", 0.98), ("e4m3", 0.97)):
            follows.add(format, seed=seed, accuracy=mean + shift, model={"errors": format})
            fixed.add(format, seed=seed, accuracy=mean + shift, model={"errors": "fp32"})
    made = report(follows, fixed)
    assert [(each["facet"], each["candidate"]) for each in made.verdicts] == [
        ("sweep fixed", "e4m3 without APS"),
        ("sweep follows", "e4m3 without APS"),
    ]
    table = pd.read_csv(made.folder / "details.csv")
    assert "model.errors" not in table and [round(gap, 3) for gap in table["vs_baseline"].dropna()] == [
        -0.01,
        -0.01,
    ]


def test_a_key_that_follows_the_format_in_one_sweep_may_be_an_axis_of_another(new_sweep, report, no_pictures):
    follows, varies = new_sweep("follows"), new_sweep("varies")
    for seed, shift in enumerate(SCATTER):
        for format, mean in (("fp32", 0.98), ("e4m3", 0.97)):
            follows.add(format, seed=seed, accuracy=mean + shift, model={"errors": format})
            for errors in ("fp32", "e5m2"):
                varies.add(format, seed=seed, accuracy=mean + shift, model={"errors": errors})
    made = report(follows, varies)
    assert [each["facet"] for each in made.verdicts] == [
        "sweep follows, model.errors as format",
        "sweep varies, model.errors e5m2",
        "sweep varies, model.errors fp32",
    ]
    assert all(each["pairs"] == len(SCATTER) for each in made.verdicts)
