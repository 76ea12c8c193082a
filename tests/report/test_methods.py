"""Methods side by side: bits a parameter a step, and the picture of loss against what is sent."""

import csv
import math
import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest
from made_up_methods import CASES, fill_methods

from cpdrun.record import write_run
from cpdrun.report.look.style import METHODS, method_looks
from cpdrun.report.read.method import Method, method_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def methods(new_sweep):
    return fill_methods(new_sweep("methods"))


@pytest.mark.parametrize("workers", [2, 4, 7, 256])
def test_a_plain_sum_of_fp32_has_32_bits_a_parameter_with_any_number_of_workers(
    new_sweep, report, no_pictures, workers
):
    """As many as direct exchange and ring send: 2 (N-1)/N values of a gradient's n."""
    sweep, n = new_sweep(), 7 * 256 * 100
    for format, bits in (("fp32", 32), ("e4m3", 8)):
        sent = 2 * (workers - 1) * n * bits // (8 * workers)
        sweep.add(format, world_size=workers, wire_bytes=sent, done={"parameters": n})
    made = report(sweep, formats=["csv", "md", "tex", "html"])
    rows = list(csv.DictReader((made.folder / "table.csv").open(encoding="utf-8")))
    assert [float(row["bits_per_parameter_per_step"]) for row in rows] == pytest.approx([32, 8])
    assert [float(x) for x in pd.read_csv(made.folder / "details.csv")["bits_per_parameter_per_step"]] == [
        32,
        8,
    ]
    for file in ("table.md", "table.tex", "report.html"):
        assert "bits a parameter a step" in (made.folder / file).read_text(encoding="utf-8")


def test_without_the_number_of_parameters_no_column_is_shown(new_sweep, report, no_pictures):
    sweep = new_sweep()
    sweep.add(wire_bytes=1000)
    sweep.add("e4m3", wire_bytes=250)
    made = report(sweep, formats=["csv", "md", "html"])
    assert "bits_per_parameter_per_step" not in made.table
    assert "a parameter a step" not in (made.folder / "table.md").read_text(encoding="utf-8")


def test_one_worker_sends_nothing(new_sweep, report, no_pictures):
    sweep = new_sweep()
    sweep.add(wire_bytes=0, world_size=1, done={"parameters": 10})
    assert "bits_per_parameter_per_step" not in report(sweep).table


def test_runs_of_other_tools_may_say_it(tmp_path, report, no_pictures):
    from made_up import Sweep

    for seed in (0, 1):
        write_run(
            tmp_path / "theirs", format="fp32", seed=seed, metrics={"test_loss": 1.0}, world_size=2,
            bytes_per_step=400, parameters=100,
        )  # fmt: skip
    assert list(report(Sweep(tmp_path / "theirs")).table["bits_per_parameter_per_step"]) == [32.0]


def test_every_method_is_a_point_named_and_of_a_look_of_its_own(methods, report):
    made = report(methods, tolerance=0.02, formats=["csv", "svg"])
    text = (made.folder / "loss_vs_bytes.svg").read_text(encoding="utf-8")
    titles = [element.text for element in ElementTree.fromstring(text).iter(f"{SVG}title")]
    assert len(titles) == len(CASES)
    assert all(any(case in title for title in titles) for case in CASES)
    bits = dict(zip(made.table["case"], made.table["bits_per_parameter_per_step"], strict=True))
    assert bits == pytest.approx({case: expected for case, (expected, *_) in CASES.items()}, rel=1e-4)


def test_each_family_of_methods_has_a_marker_of_its_own():
    assert len({look.marker for look in METHODS.values()}) == len(METHODS)
    looks = method_looks(["top-k", "somebody's", "with APS", "another"])
    assert list(looks) == ["with APS", "top-k", "another", "somebody's"]
    assert looks["another"].marker != looks["somebody's"].marker


ALL_REDUCE = {"sync._target_": "cpdrun.comm.AllReduceSync", "sync.order": "hierarchical"}
QSGD = {"sync.compressor._target_": "cpdrun.comm.compressors.qsgd.QSGD", "sync.compressor.levels": 7}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"format": "e8m23"} | ALL_REDUCE, Method("without APS", "direct", "fp32")),
        ({"format": "e3m0", "aps": True} | ALL_REDUCE, Method("with APS", "direct", "e3m0", aps=True)),
        ({"format": "fp32"}, Method("without APS")),  # somebody else's: nobody knows how
        (
            {"format": "fp32", "sync._target_": "x.CompressedSync"} | QSGD,
            Method("QSGD", "messages", compressor='{"_target_": "cpdrun.comm.compressors.qsgd.QSGD", "levels": 7}'),
        ),
        ({"format": "fp32", "sync._target_": "x.L", "sync.inner_steps": 16}, Method("local steps", "direct", every=16)),
        (
            {"format": "e4m3", "sync._target_": "x.S", "sync.gather": "bf16"},
            Method("sharded", "sharded", "e4m3", gather="bf16"),
        ),
        (
            {"format": "fp32", "sync._target_": "x.DPSGD", "sync.topology._target_": "x.R", "sync.gather": math.nan},
            Method("gossip", "neighbours"),
        ),
        ({"format": "fp32", "sync._target_": "x.PowerSGD"}, Method("PowerSGD", "factors")),
    ],
)  # fmt: skip
def test_how_workers_exchange_is_read_off_the_config(config, expected):
    assert method_of(config) == expected
