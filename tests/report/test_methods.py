"""Methods of exchange: bits per parameter and step, loss against bytes, and the fastest method by network."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pandas as pd
import pytest
from made_up_methods import CASES, PARAMETERS, calibrate, fill_methods

from cpdrun.config.overrides import flatten
from cpdrun.costmodel import PATTERNS
from cpdrun.record import write_run
from cpdrun.report.style import METHODS, method_styles
from cpdrun.study.group import Method, method_of
from cpdrun.sweep import plan

CONF = Path(__file__).parents[2] / "conf"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def methods(new_sweep):
    return fill_methods(new_sweep("methods"))


def test_a_sum_in_fp32_has_32_bits_per_parameter_with_any_number_of_workers(new_sweep, report):
    """Direct exchange and ring send 2 (N-1)/N of a gradient's n values."""
    sweep, n = new_sweep(), 7 * 256 * 100
    for workers in (2, 7, 256):
        for format, bits in (("fp32", 32), ("e4m3", 8)):
            sent = 2 * (workers - 1) * n * bits // (8 * workers)
            sweep.add(format, world_size=workers, wire_bytes=sent, done={"parameters": n})
    made = report(sweep, formats=["csv", "md", "tex", "html"])
    for file in ("table", "details"):
        table = pd.read_csv(made.folder / f"{file}.csv")
        assert set(zip(table["format"], table["bits_per_parameter_per_step"], strict=True)) == {
            ("fp32", 32),
            ("e4m3", 8),
        }
    for file in ("table.md", "table.tex", "report.html"):
        assert "bits per parameter and step" in (made.folder / file).read_text(encoding="utf-8")


def test_without_parameters_or_without_bytes_there_is_no_column(new_sweep, report):
    unknown, alone = new_sweep("unknown"), new_sweep("alone")
    for format in ("fp32", "e4m3"):
        unknown.add(format, wire_bytes=1000)
    alone.add(wire_bytes=0, world_size=1, done={"parameters": 10})
    for sweep in (unknown, alone):
        assert "bits_per_parameter_per_step" not in report(sweep).table


def test_runs_of_other_tools_may_record_bytes_and_parameters(new_sweep, report):
    sweep = new_sweep("theirs")
    for seed in (0, 1):
        sent = {"world_size": 2, "bytes_per_step": 400, "parameters": 100}
        write_run(sweep.dir.path, format="fp32", seed=seed, metrics={"test_loss": 1.0}, **sent)
    assert list(report(sweep).table["bits_per_parameter_per_step"]) == [32.0]


def test_every_method_is_a_named_point(methods, report, pictures):
    made = report(methods, tolerance=0.02, formats=["csv", "svg"])
    text = (made.folder / "loss_vs_bytes.svg").read_text(encoding="utf-8")
    titles = [element.text for element in ElementTree.fromstring(text).iter(f"{SVG}title")]
    assert len(titles) == len(CASES)
    assert all(any(case in title for title in titles) for case in CASES)
    bits = dict(zip(made.table["case"], made.table["bits_per_parameter_per_step"], strict=True))
    assert bits == pytest.approx({case: expected for case, (expected, *_) in CASES.items()}, rel=1e-4)


def test_the_certified_method_with_the_fewest_bits_is_an_answer(methods, report):
    said = report(methods, tolerance=0.0205).sentences  # local steps, 2 bits, are at the edge of it: open
    assert said[-1] == (
        "Fewest bits: e3m0 with APS (4) is certified to be at most 0.0205 worse than fp32 (32), in bits per parameter "
        "and step. Open with fewer bits: H=16 (2)."
    )
    said = report(methods, tolerance=0.0001).sentences
    assert said[-1].startswith(
        "Fewest bits: no method that sends less than fp32 (32 bits per parameter and step) is certified."
    )


def test_methods_may_be_axes_instead_of_cases(new_sweep, report):
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


def test_only_formats_that_change_the_bytes_are_drawn_against_them(new_sweep, report, pictures):
    def is_drawn(key, sent_fp32, sent_e4m3):
        sweep = new_sweep(key)
        for seed in (0, 1):
            for name, sent in (("fp32", sent_fp32), ("e4m3", sent_e4m3)):
                sweep.add(seed=seed, world_size=2, wire_bytes=sent, done={"parameters": 100}, **{key: name})
        return (report(sweep, formats=["svg"]).folder / "accuracy_vs_bytes.svg").exists()

    assert is_drawn("sync.gather", 800, 500) and not is_drawn("precision.weights", 800, 800)


def test_each_family_of_methods_has_its_own_marker():
    assert len({look.marker for look in METHODS.values()}) == len(METHODS)
    looks = method_styles(["top-k", "somebody's", "with APS", "another"])
    assert list(looks) == ["with APS", "top-k", "another", "somebody's"]
    assert looks["another"].marker != looks["somebody's"].marker


OURS = {  # family, pattern, and steps between exchanges of the choices in conf/
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
    "sync=gossip_deep_squeeze compressor=rounded format=e4m3": ("gossip", "neighbours", 1),
    "sync=gossip_dpsgd compressor=top_k": ("gossip", "neighbours", 1),
    "sync=gossip_push_sum compressor=top_k": ("gossip", "neighbours", 1),
}


def test_every_sync_and_compressor_has_a_family_a_marker_and_a_cost():
    typed_words = {word for typed in OURS for word in typed.split()}
    choices = [path for group in ("sync", "compressor") for path in (CONF / group).glob("*.yaml")]
    assert typed_words >= {f"{path.parent.name}={path.stem}" for path in choices}
    for typed, expected in OURS.items():
        config = plan(["name=x", *typed.split()]).runs[0].config
        method = method_of(dict(flatten(config)))
        assert (method.family, method.pattern, method.every) == expected, typed
        assert method.family in METHODS and method.pattern in PATTERNS
        assert (method.compressor is None) == (method.pattern in ("direct", "sharded")), typed
        if method.pattern == "sharded":
            assert method.gather == config["sync"]["gather"]
    assert method_of({"format": "fp32"}) == Method("without APS")  # an unknown exchange
    exchange = {"sync._target_": "cpdrun.comm.AllReduceSync", "sync.order": "hierarchical"}
    assert method_of({"format": "e8m23"} | exchange) == Method("without APS", "direct", "fp32")
    assert method_of({"format": "e3m0", "aps": True} | exchange) == Method(
        "with APS", "direct", "e3m0", aps=True
    )


@pytest.fixture
def calibrated(methods):
    calibrate(methods)
    return methods


def crossover_of(made) -> pd.DataFrame:
    return pd.read_csv(made.folder / "crossover.csv").set_index(["network", "method"])


def test_the_fastest_certified_method_of_each_network(calibrated, report):
    """With a free codec at 1 Gbit/s, e3m0 sends 4 bits per parameter, 1.5 * 360,000 / 2 bytes, in two hops, and
    agrees on the scales of two layers in 4 hops of 8 bytes."""
    calibrate(calibrated, codec_s=0.0)
    networks = ["1gbit", "10gbit", "100gbit", "400gbit"]
    made = report(calibrated, tolerance=0.02, formats=["md", "csv", "tex", "html"], networks=networks)
    found = crossover_of(made)
    cell = found.loc[("1gbit", "e3m0 with APS")]
    message_s, alpha_s, wire_s = 10e-6, 50e-6, 1.5 * PARAMETERS / 2 / 117.7e6
    expected = 0.01 + 2 * (3 * message_s + alpha_s) + wire_s + 4 * (alpha_s + message_s + 8 / 117.7e6)
    assert cell["step_s"] == pytest.approx(expected, rel=1e-3)
    assert cell["compute_s"] == pytest.approx(0.01) and cell["wins"]
    assert cell["verdict"] == "certified" and found.loc[("1gbit", "top-k 1%"), "verdict"] == "refuted"
    assert found.loc["1gbit"]["step_s"].idxmin() == "top-k 1%", "it would be the fastest"
    for fast in ("100gbit", "400gbit"):  # 10 ms of computing leave nothing to win
        assert list(found.loc[fast].query("wins").index) == ["bf16"]
    text = (made.folder / "crossover.md").read_text(encoding="utf-8")
    assert text.startswith(
        "Plain bf16 wins on 100gbit and 400gbit, of the methods certified to be at most 0.02 worse than fp32."
    )
    assert "1gbit: e3m0 with APS" in text and text.split("\n\n")[0] in made.printed.replace("%", "\\%")
    assert "Fastest by network" in (made.folder / "report.html").read_text(encoding="utf-8")
    assert (made.folder / "crossover.tex").exists()
    calibrate(calibrated, codec_s=1e-6)  # a codec that takes longer than it saves
    slow = crossover_of(report(calibrated, tolerance=0.02, networks=["10gbit", "100gbit"]))
    assert set(slow.query("wins").index.get_level_values("method")) <= {"fp32", "bf16"}


def test_loss_against_predicted_seconds_has_a_panel_for_each_network(calibrated, report, pictures):
    made = report(calibrated, tolerance=0.02, formats=["csv", "svg"], networks=["1gbit", "400gbit"])
    text = (made.folder / "loss_vs_seconds.svg").read_text(encoding="utf-8")
    titles = [element.text for element in ElementTree.fromstring(text).iter(f"{SVG}title")]
    assert len(titles) == 2 * len(CASES)


def test_seconds_to_the_loss_end_with_the_first_epoch_that_reaches_it(calibrated, report):
    found = crossover_of(report(calibrated, tolerance=0.31, networks=["1gbit"]))
    for method, steps in (("fp32", 300), ("bf16", 300), ("H=16", 400)):  # .3 above the end an epoch before it
        cell = found.loc[("1gbit", method)]
        assert cell["steps_to_loss"] == pytest.approx(steps, abs=60)
        assert cell["seconds_to_loss"] == pytest.approx(cell["steps_to_loss"] * cell["step_s"])
    # pairs of one seed are compared, even if seeds differ by more than the tolerance
    found = crossover_of(report(calibrated, tolerance=0.0002, networks=["1gbit"]))
    assert found.loc[("1gbit", "fp32"), "steps_to_loss"] > 0


def test_reasons_why_no_time_is_predicted(methods, report):
    assert "crossover" not in report(methods).printed, "nobody asked"
    made = report(methods, networks=["1gbit"])
    assert "no crossover: the sweep has no calibration; `cpdrun doctor --calibrate` makes one" in made.printed
    calibrate(methods, values=1000)
    assert "the calibration is for a model with 1,000 values, not 360,000" in report(methods).printed
    calibrate(methods)
    file = methods.dir.calibration
    file.write_text(json.dumps({**json.loads(file.read_text()), "compressors": {}}))
    made = report(methods)
    assert "Not predicted: QSGD of 4 bits: its compressor is not calibrated" in made.printed
    assert (made.folder / "crossover.md").exists()
    file.unlink()
    report(methods)
    assert not (made.folder / "crossover.md").exists(), "it was of an earlier report"


def test_the_document_has_the_bits_and_the_crossover(calibrated, capsys):
    from cpdrun.cli import main

    typed = ["report", str(calibrated.dir.path), "--json", "--networks", "1gbit,400gbit", "--tol", "0.02"]
    assert main([*typed, "--format", "csv"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {row["case"]: row["bits_per_parameter_per_step"] for row in said["table"]}[
        "fp32"
    ] == pytest.approx(32)
    assert {row["network"] for row in said["crossover"]} == {"1gbit", "400gbit"}
    assert any(file.endswith("crossover.csv") for file in said["files"])


def test_cases_with_a_baseline_each_are_not_compared_with_each_other(new_sweep, report, pictures):
    sweep = new_sweep()
    for case, bits in (("ring", 32), ("random pairs", 16)):
        for format in ("fp32", "e4m3"):
            for seed in range(2):
                sent = bits if format == "fp32" else bits // 4
                sync = {"_target_": "cpdrun.comm.gossip.algorithms.DPSGD", "topology": {"_target_": case}}
                about = {"wire_bytes": sent * 100, "done": {"parameters": 400}}
                sweep.add(format, seed=seed, accuracy=0.9 + 0.001 * seed, case=case, sync=sync, **about)
    made = report(sweep, formats=["svg"])
    assert "loss_vs_bytes.svg" not in {file.name for file in made.files}
    assert "Fewest bits" not in made.printed and made.answers[0].startswith("OPEN, case random pairs")
