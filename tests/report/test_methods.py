"""Methods side by side: bits a parameter a step, and the picture of loss against what is sent."""

import csv
import json
import math
import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest
from made_up_methods import CASES, PARAMETERS, calibrate, fill_methods

from cpdrun.config.overrides import flatten
from cpdrun.costmodel import PATTERNS, network, network_names
from cpdrun.record import write_run
from cpdrun.report.style import METHODS, method_styles
from cpdrun.study.group import Method, method_of
from cpdrun.sweep import plan

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


def test_the_fewest_bits_that_do_as_well_are_an_answer(methods, report, no_pictures):
    said = report(methods, tolerance=0.0205).sentences  # local steps, 2 bits, are at the edge of it: open
    assert said[-1] == (
        "Fewest bits: e3m0 with APS (4) is certified to be at most 0.0205 worse than fp32 (32), in bits per parameter "
        "and step. Open with fewer bits: H=16 (2)."
    )
    said = report(methods, tolerance=0.0001).sentences
    assert said[-1].startswith(
        "Fewest bits: no method that sends less than fp32 (32 bits per parameter and step) is certified."
    )


def test_methods_that_are_axes_and_no_cases_are_compared_too(new_sweep, report, no_pictures):
    sweep = new_sweep()
    for bits, loss, settings in CASES.values():
        for seed in (0, 1):
            sent = round(bits / 8 * PARAMETERS * 1.5)
            sweep.add(
                seed=seed, world_size=4, metrics={"test_loss": loss + seed / 1000}, wire_bytes=sent,
                done={"judged_by": "test_loss", "parameters": PARAMETERS},
                **{"format": "fp32", "aps": False} | settings,
            )  # fmt: skip
    calibrate(sweep)
    made = report(sweep, tolerance=0.02, networks=["1gbit"])
    found = crossover_of(made).loc["1gbit"]
    assert set(found.index) == {
        "fp32", "bf16", "e4m3", "e3m0, APS", "fp32, top-k", "fp32, QSGD", "fp32, local steps", "e4m3, sharded"
    }  # fmt: skip
    assert found.loc["fp32, top-k"]["verdict"] == "open" and found.loc["fp32"]["verdict"] == "certified"
    assert any("fp32, local steps (2)" in line for line in made.sentences)


def test_formats_that_change_what_is_sent_are_drawn_against_it_whatever_their_key(new_sweep, report):
    """sync.gather is no format of gradients, and yet a format of the wire; precision.weights is none."""
    drawn = {}
    for key, bytes_of in (
        ("sync.gather", {"fp32": 800, "e4m3": 500}),
        ("precision.weights", {"fp32": 800, "e4m3": 800}),
    ):
        sweep = new_sweep(key)
        for seed in (0, 1):
            for name, sent in bytes_of.items():
                sweep.add(seed=seed, world_size=2, wire_bytes=sent, done={"parameters": 100}, **{key: name})
        made = report(sweep)
        drawn[key] = (made.folder / "accuracy_vs_bytes.svg").exists()
    assert drawn == {"sync.gather": True, "precision.weights": False}


def test_each_family_of_methods_has_a_marker_of_its_own():
    assert len({look.marker for look in METHODS.values()}) == len(METHODS)
    looks = method_styles(["top-k", "somebody's", "with APS", "another"])
    assert list(looks) == ["with APS", "top-k", "another", "somebody's"]
    assert looks["another"].marker != looks["somebody's"].marker


ALL_REDUCE = {"sync._target_": "cpdrun.comm.AllReduceSync", "sync.order": "hierarchical"}
POWER_SGD = '{"_target_": "x.PowerSGD"}'
QSGD = {"sync.compressor._target_": "cpdrun.comm.compressors.qsgd.QSGD", "sync.compressor.levels": 7}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"format": "e8m23"} | ALL_REDUCE, Method("without APS", "direct", "fp32")),
        ({"format": "e3m0", "aps": True} | ALL_REDUCE, Method("with APS", "direct", "e3m0", aps=True)),
        ({"format": "fp32"}, Method("without APS")),  # somebody else's: nobody knows how
        (
            {"format": "fp32", "sync._target_": "x.CompressedSync"} | QSGD,
            Method("QSGD", "messages", compressor='{"_target_": "cpdrun.comm.compressors.qsgd.QSGD", "levels": "7"}'),
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
        ({"format": "fp32", "sync._target_": "x.PowerSGD"}, Method("PowerSGD", "factors", compressor=POWER_SGD)),
    ],
)  # fmt: skip
def test_how_workers_exchange_is_read_off_the_config(config, expected):
    assert method_of(config) == expected


OURS = {  # what conf/sync and conf/compressor make: family, pattern, steps between exchanges
    "sync=all_reduce": ("without APS", "direct", 1),
    "sync=requantised format=int2_affine_b128": ("without APS", "direct", 1),
    "sync=compressed compressor=top_k": ("top-k", "messages", 1),
    "sync=compressed compressor=random_k": ("random-k", "messages", 1),
    "sync=compressed compressor=qsgd": ("QSGD", "messages", 1),
    "sync=compressed compressor=min_max": ("min-max", "messages", 1),
    "sync=compressed compressor=sign": ("sign", "messages", 1),
    "sync=power_sgd": ("PowerSGD", "factors", 1),
    "sync=local compressor=rounded format=e4m3": ("local steps", "direct", 16),
    "sync=local compressor=top_k sync.inner_steps=4": ("local steps", "messages", 4),
    "sync=sharded format=e4m3": ("sharded", "sharded", 1),
    "sync=gossip_choco compressor=top_k": ("gossip", "neighbours", 1),
}


def test_every_sync_and_compressor_of_ours_has_a_family_a_look_and_a_cost():
    for typed, expected in OURS.items():
        config = plan(["name=x", *typed.split()]).runs[0].config
        method = method_of(dict(flatten(config)))
        assert (method.family, method.pattern, method.every) == expected, typed
        assert method.family in METHODS and method.pattern in PATTERNS
        assert (method.compressor is None) == (method.pattern in ("direct", "sharded")), typed
        if method.pattern == "sharded":
            assert method.gather == config["sync"]["gather"]


# ---- which is fastest where


@pytest.fixture
def calibrated(methods):
    calibrate(methods)
    return methods


def crossover_of(made) -> pd.DataFrame:
    return pd.read_csv(made.folder / "crossover.csv").set_index(["network", "method"])


def test_who_wins_on_which_network(calibrated, report, no_pictures):
    """By hand, at 1 Gbit/s: e3m0 sends 4 bits a parameter, 1.5 * 360,000 / 2 bytes, in two hops; a free codec costs
    nothing, agreeing on two layers 4 hops of 8 bytes."""
    calibrate(calibrated, codec_s=0.0)
    networks = ["1gbit", "10gbit", "100gbit", "400gbit"]
    made = report(calibrated, tolerance=0.02, formats=["md", "csv", "tex", "html"], networks=networks)
    found = crossover_of(made)
    cell = found.loc[("1gbit", "e3m0 with APS")]
    message_s, alpha_s, wire_s = 10e-6, 50e-6, 1.5 * PARAMETERS / 2 / 117.7e6
    expected = 0.01 + 2 * (3 * message_s + alpha_s) + wire_s + 4 * (alpha_s + message_s + 8 / 117.7e6)
    assert cell["step_s"] == pytest.approx(expected, rel=1e-3)
    assert cell["compute_s"] == pytest.approx(0.01) and cell["wins"]
    assert cell["verdict"] == "certified" and found.loc[("1gbit", "top-k 1 %"), "verdict"] == "refuted"
    assert found.loc["1gbit"]["step_s"].idxmin() == "top-k 1 %", "and would be fastest"
    for fast in ("100gbit", "400gbit"):  # 10 ms of computing leave nothing to win
        assert list(found.loc[fast].query("wins").index) == ["bf16"]
    text = (made.folder / "crossover.md").read_text(encoding="utf-8")
    assert text.startswith(
        "Plain bf16 wins on 100gbit and 400gbit, of the methods certified to be at most 0.02 worse than fp32."
    )
    assert "1gbit: e3m0 with APS" in text and text.split("\n\n")[0] in made.printed.replace("%", "\\%")
    assert "Fastest by network" in (made.folder / "report.html").read_text(encoding="utf-8")
    assert (made.folder / "crossover.tex").exists()


def test_loss_against_predicted_seconds_has_a_panel_for_each_network(calibrated, report):
    made = report(calibrated, tolerance=0.02, formats=["csv", "svg"], networks=["1gbit", "400gbit"])
    text = (made.folder / "loss_vs_seconds.svg").read_text(encoding="utf-8")
    titles = [element.text for element in ElementTree.fromstring(text).iter(f"{SVG}title")]
    assert len(titles) == 2 * len(CASES)


def test_seconds_to_the_loss_pair_runs_of_a_seed(calibrated, report, no_pictures):
    """Seeds that lie further apart than the tolerance reach each its own."""
    found = crossover_of(report(calibrated, tolerance=0.0002, networks=["1gbit"]))
    assert found.loc[("1gbit", "fp32"), "steps_to_loss"] > 0


def test_seconds_to_the_loss_are_those_of_the_first_epoch_that_has_it(calibrated, report, no_pictures):
    found = crossover_of(report(calibrated, tolerance=0.31, networks=["1gbit"]))
    for method, steps in (("fp32", 300), ("bf16", 300), ("H=16", 400)):  # .3 above the end an epoch before it
        cell = found.loc[("1gbit", method)]
        assert cell["steps_to_loss"] == pytest.approx(steps, abs=60)
        assert cell["seconds_to_loss"] == pytest.approx(cell["steps_to_loss"] * cell["step_s"])


def test_a_codec_that_takes_longer_than_it_saves_loses_to_plain_bf16_everywhere(
    calibrated, report, no_pictures
):
    calibrate(calibrated, codec_s=1e-6)
    made = report(calibrated, tolerance=0.02, networks=["10gbit", "100gbit"])
    assert set(crossover_of(made).query("wins").index.get_level_values("method")) <= {"fp32", "bf16"}


def test_what_cannot_be_predicted_is_said_and_why(methods, report, no_pictures):
    assert "crossover" not in report(methods).printed, "nobody asked"
    made = report(methods, networks=["1gbit"])
    assert "no crossover: the sweep has no calibration; `cpdrun doctor --calibrate` makes one" in made.printed
    calibrate(methods, values=1000)
    assert "the calibration is for a model with 1,000 values, not 360,000" in report(methods).printed
    calibrate(methods)
    file = methods.dir.calibration
    without = {**json.loads(file.read_text()), "compressors": {}}
    file.write_text(json.dumps(without))
    made = report(methods)
    assert "Not predicted: QSGD of 4 bits: its compressor is not calibrated" in made.printed
    assert (made.folder / "crossover.md").exists()
    file.unlink()
    report(methods)
    assert not (made.folder / "crossover.md").exists(), "of an earlier report"


def test_as_json_for_programs(calibrated, capsys):
    from cpdrun.cli import main

    typed = ["report", str(calibrated.dir.path), "--json", "--networks", "1gbit,400gbit", "--tol", "0.02"]
    assert main([*typed, "--format", "csv"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {row["case"]: row["bits_per_parameter_per_step"] for row in said["table"]}[
        "fp32"
    ] == pytest.approx(32)
    assert {row["network"] for row in said["crossover"]} == {"1gbit", "400gbit"}
    assert any(file.endswith("crossover.csv") for file in said["files"])


def test_400_gbit_is_a_network_like_the_others():
    names = network_names()
    assert names[-1] == "400gbit" and {"1gbit", "10gbit", "100gbit"} < set(names)
    assert network("400gbit").latency_s <= network("100gbit").latency_s
