"""Baselines other than fp32, also on other axes: that of a search, or the one that was typed."""

import pandas as pd
import pytest
import yaml

from cpdrun.errors import UserError
from cpdrun.record import write_text

SCATTER = (-0.001, 0.0, 0.001, 0.0005)
FP32_AT_LR = {"format": "fp32", "aps": False, "optim.lr": 0.1}


@pytest.fixture
def fill(new_sweep):
    """fill({(format, aps, lr): mean}, baseline of its search) -> the sweep."""

    def fill(cells: dict, baseline=None, name="digits_bits", **more):
        sweep = new_sweep(name)
        for (format, aps, lr), mean in cells.items():
            for seed, shift in enumerate(SCATTER):
                optim = {"_target_": "cpdrun.optim.sgd.SGD", "lr": lr}
                sweep.add(format, aps=aps, seed=seed, accuracy=mean + shift, optim=optim)
        if baseline:
            search = {"tolerance": 1, "baseline": baseline, **more}
            write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [], "search": search}))
        return sweep

    return fill


def differences(made, *keys):
    table = pd.read_csv(made.folder / "details.csv").dropna(subset=["vs_baseline"])
    return {
        row[:-1]: round(row[-1], 3)
        for row in zip(*(table[key] for key in (*keys, "vs_baseline")), strict=True)
    }


def facets(made):
    return [(each["facet"], each["candidate"]) for each in made.verdicts]


def test_a_baseline_with_its_own_rate_serves_the_formats_of_every_rate(fill, report):
    cells = {("fp32", False, 0.1): 0.98, ("e4m3", False, 0.1): 0.90, ("e4m3", False, 0.05): 0.978}
    made = report(fill(cells, FP32_AT_LR))
    assert differences(made, "format", "optim.lr") == {("e4m3", 0.1): -0.08, ("e4m3", 0.05): -0.002}
    lrs = ("optim.lr 0.05", "optim.lr 0.1")
    assert facets(made) == [(lr, "e4m3 without APS") for lr in lrs]
    assert "at most 1 point worse than fp32 with optim.lr 0.1" in made.printed
    assert "The baseline is fp32 with optim.lr 0.1." in made.printed


def test_a_rate_of_the_baseline_alone_makes_no_facet(fill, report, pictures):
    cells = {("fp32", False, 0.1): 0.98, ("e4m3", False, 0.05): 0.979, ("e3m0", True, 0.05): 0.97}
    made = report(fill(cells, FP32_AT_LR), formats=["csv", "svg"])
    assert [facet for facet, _ in facets(made)] == ["", ""]
    assert differences(made, "format", "aps") == {("e4m3", False): -0.001, ("e3m0", True): -0.01}
    assert "fp32 with optim.lr 0.1" in (made.folder / "accuracy_vs_bits.svg").read_text(encoding="utf-8")
    without = report(fill({key: cells[key] for key in list(cells)[:2]}, name="without a search"))
    assert any("No answer: there is no finished fp32 run" in line for line in without.answers)


def test_a_baseline_may_be_scaled(fill, report):
    cells = {("e4m3", True, 0.1): 0.98, ("e4m3", False, 0.1): 0.5, ("e3m0", True, 0.1): 0.97}
    made = report(fill(cells, {"format": "e4m3", "aps": True}))
    assert differences(made, "format", "aps")["e3m0", True] == -0.01
    assert set(pd.read_csv(made.folder / "details.csv")["baseline"].dropna()) == {"e4m3 with APS"}


CELLS = {("bf16", False, 0.1): 0.98, ("fp32", False, 0.1): 0.98, ("e4m3", False, 0.1): 0.979}


def test_a_baseline_may_be_given_by_another_spelling_of_its_format(fill, new_sweep, report):
    made = report(fill(CELLS, {"format": "e8m7", "aps": False}))
    assert "at most 1 point worse than e8m7" in made.printed and facets(made)[0][1].startswith("e4m3")
    weights = new_sweep("weights")
    for name in ("e8m23", "e4m3"):
        for seed, shift in enumerate(SCATTER):
            weights.add(seed=seed, accuracy=0.98 + shift, precision={"weights": name})
    search = {"tolerance": 1, "baseline": {"precision.weights": "fp32"}}
    write_text(weights.dir.manifest, yaml.safe_dump({"runs": [], "search": search}))
    assert facets(report(weights)) == [("", "e4m3 of weights")]


def test_a_typed_baseline_replaces_that_of_the_search(fill, report):
    sweep = fill(CELLS, {"format": "fp32", "aps": False})
    made = report(sweep, baseline={"format": "bf16"})
    assert "at most 1 point worse than bf16" in made.printed
    assert set(pd.read_csv(made.folder / "details.csv")["baseline"].dropna()) == {"bf16"}
    with pytest.raises(UserError, match="no run has this value; the runs have bf16, e4m3, fp32"):
        report(sweep, baseline={"format": "fp16"})
    with pytest.raises(UserError, match="the runs have no key 'formt'"):
        report(sweep, baseline={"formt": "bf16"})


def test_cases_are_compared_at_each_value_of_another_axis(new_sweep, report):
    sweep = new_sweep()
    for case, gap in (("fp32", 0.0), ("half", -0.02)):
        for format, mean in (("fp32", 0.98), ("e4m3", 0.90)):
            for seed, shift in enumerate(SCATTER):
                config = {"case": case, "precision": {"weights": case}}
                sweep.add(format, seed=seed, accuracy=mean + gap + shift, **config)
    made = report(sweep)
    assert set(differences(made, "format", "case").values()) == {-0.02}
    assert {facet for facet, _ in facets(made)} == {"format fp32", "format e4m3"}


def test_each_of_several_sweeps_keeps_its_baseline(new_sweep, report):
    """model.errors follows the format in one sweep, is fp32 in another, and is an axis of a third."""
    follows, fixed, varies = map(new_sweep, ("follows", "fixed", "varies"))
    for seed, shift in enumerate(SCATTER):
        for format, mean in (("fp32", 0.98), ("e4m3", 0.97)):
            run = {"seed": seed, "accuracy": mean + shift}
            follows.add(format, model={"errors": format}, **run)
            fixed.add(format, model={"errors": "fp32"}, **run)
            for errors in ("fp32", "e5m2"):
                varies.add(format, model={"errors": errors}, **run)
    made = report(follows, fixed)
    assert facets(made) == [(f"sweep {name}", "e4m3 without APS") for name in ("fixed", "follows")]
    assert differences(made, "sweep") == {("fixed",): -0.01, ("follows",): -0.01}
    assert "model.errors" not in pd.read_csv(made.folder / "details.csv")
    made = report(follows, varies)
    assert [facet for facet, _ in facets(made)] == [
        "sweep follows, model.errors as format",
        "sweep varies, model.errors e5m2",
        "sweep varies, model.errors fp32",
    ]
    assert all(each["pairs"] == len(SCATTER) for each in made.verdicts)
