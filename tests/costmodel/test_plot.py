"""The plot and the table of the predicted speedup, from a sweep with a calibration."""

import io

import pytest
import yaml
from rich.console import Console

from cpdrun.costmodel import Calibration, Codec, Network, Setup, Workload, forecast, network, speedup
from cpdrun.record import SweepDir, write_json, write_text
from cpdrun.report import ReportOptions, ReportUsageError, write_report
from cpdrun.report.cost import forecast_table
from cpdrun.report.plots import NotDrawnError, speedup_vs_workers
from cpdrun.report.svg import MARK, texts_of
from cpdrun.study.reader import read_study

CODECS = {
    "fp32": Codec(32, 1e-9, 1e-9, 1e-9, 1e-9),
    "e4m3": Codec(8, 1e-9, 1e-9, 1e-9, 1e-9, 2e-10),
    "e2m1": Codec(4, 1e-9, 1e-9, 1e-9, 1e-9, 2e-10),
}
CALIBRATION = Calibration(
    {"device": "cpu"}, Workload((1000, 9_000_000), 0.02, 0.04, 0.01), CODECS, Network(1e-4, 3e7)
)


@pytest.fixture
def sweep(tmp_path):
    """fp32, e4m3 with APS and e5m2, one finished run each."""
    sweep = SweepDir(tmp_path / "digits_bits")
    for fmt, aps in (("fp32", False), ("e4m3", True), ("e5m2", False)):
        run = sweep.run(fmt)
        run.path.mkdir(parents=True)
        config = {"format": fmt, "aps": aps, "world_size": 8, "seed": 0}
        write_text(run.config, yaml.safe_dump(config))
        write_json(run.done, {"status": "finished", "metrics": {"test_accuracy": 0.9}})
    return sweep


def labels(figure) -> list[str]:
    marks = [artist.get_gid() for axes in figure.axes for artist in axes.lines if (artist.get_gid() or "")]
    return [texts_of(mark)[0] for mark in marks if mark.startswith(MARK)]


def test_each_calibrated_format_is_a_line_in_each_networks_panel(sweep):
    write_json(sweep.calibration, CALIBRATION.as_json())
    figure = speedup_vs_workers.draw(read_study([sweep]))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["100mbit", "as measured between the ranks", "1gbit", "10gbit", "100gbit", "400gbit"]
    found = labels(figure)
    assert {text.split(",")[0] for text in found} == {"fp32", "e4m3 APS"}  # e5m2 has no rate, e2m1 no runs
    assert len(found) == 6 * 2 * len(speedup_vs_workers.WORKERS)
    setup = Setup(64, CALIBRATION.workload, CODECS["e4m3"], CALIBRATION.network, aps=True)
    assert f"e4m3 APS, 64 workers: {speedup(setup):.3g} times one worker" in found


@pytest.mark.parametrize(
    ("written", "reason"), [(None, "cpdrun doctor --calibrate"), ("{", "not JSON"), ("{}", "measure again")]
)
def test_without_a_valid_calibration_the_error_says_what_to_do(sweep, written, reason):
    if written is not None:
        write_text(sweep.calibration, written)
    with pytest.raises(NotDrawnError, match=reason):
        speedup_vs_workers.draw(read_study([sweep]))


def test_a_calibration_of_other_formats_is_refused(sweep):
    other = Calibration({}, CALIBRATION.workload, {"e2m1": CODECS["e2m1"]}, None)
    write_json(sweep.calibration, other.as_json())
    with pytest.raises(NotDrawnError, match="--formats"):
        speedup_vs_workers.draw(read_study([sweep]))


def test_the_forecast_has_a_row_for_each_format_and_number_of_workers():
    rows = list(forecast(CALIBRATION, network("1gbit"), "1gbit", workers=(1, 64)))
    assert [(row.format, row.workers) for row in rows] == [
        (name, n) for name in ("fp32", "e4m3", "e2m1") for n in (1, 64)
    ]
    of_64 = [row.speedup for row in rows if row.workers == 64]
    assert of_64 == sorted(of_64)
    text = io.StringIO()
    Console(file=text, width=80).print(forecast_table("1gbit", rows))
    for row in rows:
        assert f"{1e3 * row.total_s:.3g} ms" in text.getvalue() and f"{row.speedup:.3g}x" in text.getvalue()


def test_a_forecast_omits_numbers_of_workers_that_are_not_whole_groups():
    rows = forecast(CALIBRATION, network("1gbit"), "1gbit", algorithm="hierarchical", group_size=8)
    assert {row.workers for row in rows} == {8, 16, 32, 64, 128, 256, 512, 1024}


def test_the_requested_networks_are_the_panels(sweep, tmp_path):
    write_json(sweep.calibration, CALIBRATION.as_json())
    own = tmp_path / "office.yaml"
    own.write_text("latency_s: 1.0e-3\nbandwidth_bytes_per_s: 5.0e+6\n")
    asked = {name: network(name) for name in ("10gbit", str(own))}
    figure = speedup_vs_workers.draw(read_study([sweep], networks=asked))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["10gbit", str(own)]
    with pytest.raises(ReportUsageError, match="unknown network '10gbits': choose 100mbit, 1gbit, 10gbit"):
        write_report([sweep], ReportOptions(networks=["10gbits"]))
