"""The pictures show the values of the runs. A picture without data is left out."""

import math
import random
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import matplotlib
import matplotlib.image
import pytest
from made_up import fill_digits
from matplotlib.figure import Figure

from cpdrun.report import plots
from cpdrun.report.page import pictures as drawing
from cpdrun.report.plots import accuracy_vs_bits
from cpdrun.report.plots._metric_axis import MetricAxis, margin_band, span, value_ranges
from cpdrun.report.plots._panels import spread
from cpdrun.report.plots.fewest_bits import draw_workers
from cpdrun.report.style import RC
from cpdrun.stats.evidence import Verdict
from cpdrun.study.pareto import front
from cpdrun.study.reader import read_study

pytestmark = pytest.mark.usefixtures("pictures")


def titles(made, name: str) -> list[str]:
    """Return the descriptions of the points of a picture."""
    root = ElementTree.parse(made.folder / f"{name}.svg").getroot()
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]


def add(sweep, values: dict, metric="test_accuracy", **config):
    """Add a run for each format and seed. `values` maps a format to the value of the metric for each seed."""
    for format, seeds in values.items():
        for seed, value in enumerate(seeds):
            sweep.add(format, seed=seed, metrics={metric: value}, **config)
    return sweep


def test_every_mean_is_a_point_and_pictures_without_data_are_left_out(digits, report):
    digits.dir.report.mkdir()
    (digits.dir.report / "training_curves.png").write_bytes(b"of an earlier report")
    made = report(digits)
    found = titles(made, "accuracy_vs_bits")
    assert len(found) == 12  # fp32 is the band
    assert len([text for text in found if " with APS" in text]) == 6
    assert any(text.startswith("e3m0 without APS, workers 8: 9.") for text in found)
    assert {file.stem for file in made.files if file.suffix == ".svg"} == {"accuracy_vs_bits"}
    assert not (made.folder / "training_curves.png").exists()
    for name in ("training_curves", "accuracy_vs_bytes", "min_bits_vs_workers", "exponent_ranges"):
        assert name not in made.printed and name not in " ".join(made.notes)
    pixels = matplotlib.image.imread(made.folder / "accuracy_vs_bits.png")
    assert pixels.shape[1] == 1050  # the width of a paper's column at 300 dots per inch
    assert len({tuple(color) for row in pixels[::20, ::20] for color in row}) > 3
    assert str(made.folder / "accuracy_vs_bits.png") in made.printed


def test_a_pdf_has_truetype_letters(digits, report):
    made = report(digits, formats=["csv", "pdf"])
    assert {file.suffix for file in made.files} == {".csv", ".pdf"}
    content = (made.folder / "accuracy_vs_bits.pdf").read_bytes()
    assert content.startswith(b"%PDF") and b"/FontFile2" in content and b"/Type3" not in content


SEVERAL_PROCESSES = """
import os, pathlib, signal, sys
from cpdrun.record import SweepDir
from cpdrun.report.page import pictures
from cpdrun.study.reader import read_study
signal.signal(signal.SIGTERM, signal.default_int_handler)  # as cpdrun.cli does
study = read_study([SweepDir(pathlib.Path(sys.argv[1]))])
files = []
for cores in ({0}, {0, 1}):
    os.sched_getaffinity = lambda pid: cores
    files.append(pictures.render(study, ["png", "svg"]))
assert files[0] == files[1] and "_jobs" not in vars(pictures)
main, run = os.getpid(), pictures._Job.run
def killed(job):
    if os.getpid() != main:
        os.kill(os.getpid(), signal.SIGKILL)
    return run(job)
pictures._Job.run = killed
assert pictures.render(study, ["svg"])["accuracy_vs_bits"]["svg"] == files[0]["accuracy_vs_bits"]["svg"]
print(*files[1], *files[1]["accuracy_vs_bits"])
"""


def test_several_processes_draw_the_same_pictures_even_if_one_is_killed(digits):
    command = [sys.executable, "-c", SEVERAL_PROCESSES, digits.dir.path]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (printed.stdout.split(), printed.stderr) == (["accuracy_vs_bits", "png", "svg"], "")


def test_the_margin_is_a_line_and_a_single_seed_is_marked(new_sweep):
    study = read_study([add(new_sweep(), {"fp32": [0.98, 0.98], "e4m3": [0.97]}).dir], tolerance=1.0)
    figure = drawing.draw_one(study, "accuracy_vs_bits")
    (axes,) = figure.subfigs[0].axes
    lines = (
        lines for collection in axes.collections for lines in getattr(collection, "get_segments", list)()
    )
    assert {98.0, 97.0} <= {segment[0][1] for segment in lines}
    assert "97.0¹" in [text.get_text() for text in axes.texts]
    assert "¹: a single seed." in figure.get_supxlabel().replace("\n", " ")


@pytest.mark.parametrize(("noise", "n_rings"), [(0.001, 1), (0.4, 0)])
def test_a_knee_is_drawn_unless_the_seeds_distinguish_no_points(new_sweep, noise, n_rings):
    sweep = new_sweep()
    means = {("fp32", 4000): 0.59, ("e5m2", 1000): 0.585, ("e4m1", 800): 0.54, ("e3m0", 500): 0.4}
    for i, ((format, size), mean) in enumerate(means.items()):
        values = [mean + noise * math.cos(5 * i + 7 * seed) for seed in range(6)]
        add(sweep, {format: values}, wire_bytes=size)
    figure = drawing.draw_one(read_study([sweep.dir], tolerance=1.0), "accuracy_vs_bytes")
    lines = [line for part in figure.subfigs for axes in part.axes for line in axes.lines]
    assert len([line for line in lines if line.get_markersize() == 10]) == n_rings


def test_pictures_of_records_with_curves_bytes_workers_and_ranges(new_sweep, report):
    sweep = new_sweep()
    dead = dict.fromkeys(("exponent_min", "exponent_max", "underflow", "overflow"))
    for workers, e3m0 in ((4, 0.989), (8, 0.9)):
        for format, aps, end, size in (
            ("fp32", False, 0.99, 4000),
            ("e4m3", False, 0.99, 1000),
            ("e3m0", True, e3m0, 500),
        ):
            layers = [
                {
                    "conv.weight": {
                        "exponent_min": -20 - i,
                        "exponent_max": -6 - i,
                        "underflow": 0.5,
                        "overflow": 0.0,
                    }
                }
                for i in (1, 2, 3)
            ]
            rows = [
                {
                    "epoch": i,
                    "test_accuracy": end * i / 3,
                    "layers": layers[i - 1] | {"a_layer_$never_used$": dead},
                }
                for i in (1, 2, 3)
            ]
            for seed in range(2):
                config = {"world_size": workers, "wire_bytes": size, "rows": rows}
                sweep.add(format, aps=aps, seed=seed, accuracy=end, **config)
    made = report(sweep)
    points = titles(made, "accuracy_vs_bits")
    assert len(points) == 4 and len([text for text in points if "workers 4:" in text]) == 2
    assert len(titles(made, "accuracy_vs_bytes")) == 6
    curves = [text.split(",")[0] for text in titles(made, "training_curves")]
    assert set(curves) == {"fp32", "e4m3 without APS", "e3m0 with APS"}
    fewest = [text.split(":")[0] for text in titles(made, "min_bits_vs_workers")]
    assert {"e3m0 with APS, workers 4", "e4m3 without APS, workers 8"} <= set(fewest)
    ranges = titles(made, "exponent_ranges")
    assert "e3m0: from 2^-2 to below 2^4" in ranges
    assert any(text.startswith("conv.weight: e3m0 with APS reaches from 2^-") for text in ranges)


def test_the_pareto_front_equals_its_definition():
    draw = random.Random(0)
    for n in (0, 1, 3, *(8,) * 100):
        points = [(draw.randrange(6), draw.randrange(6)) for _ in range(n)]
        beaten = [any(b[0] <= a[0] and b[1] >= a[1] and b != a for b in points) for a in points]
        assert sorted(front(points)) == [i for i, lost in enumerate(beaten) if not lost]


def ranges(sweep, values, metric="test_accuracy"):
    """Return the parts of the y axis for these values."""
    return value_ranges(read_study([add(sweep, values, metric).dir], metric=metric))


def test_the_axis_is_broken_between_formats_that_train_and_others(new_sweep):
    near = {"fp32": [0.99, 0.985], "e5m2": [0.99, 0.98], "e4m3": [0.98, 0.985]}
    upper, lower = ranges(new_sweep("broken"), near | {"e3m2": [0.8, 0.2], "e3m0": [0.05, 0.15]})
    assert 50 < upper[0] < 98 and upper[1] > 99
    assert lower[0] < 10 and 50 < lower[1] <= upper[0]
    evenly = dict(
        zip(
            ("e3m0", "e3m1", "e3m2", "e4m1", "e4m2", "e4m3", "e5m2"),
            (10, 15, 30, 45, 60, 75, 90),
            strict=True,
        )
    )
    assert (
        len(ranges(new_sweep("even"), {"fp32": [0.99, 0.98]} | {n: [v / 100] for n, v in evenly.items()}))
        == 1
    )
    assert len(ranges(new_sweep("near"), {"fp32": [0.99, 0.98], "e3m0": [0.97], "e3m1": [0.975]})) == 1


def test_the_lower_part_of_the_axis_is_larger_if_lower_is_better(new_sweep):
    losses = {"fp32": 1.37, "bf16": 1.38, "e4m3": 1.45, "e3m0": 6.9}
    sweep = add(new_sweep(), {name: [loss, loss + 0.01] for name, loss in losses.items()}, "test_loss")
    study = read_study([sweep.dir], metric="test_loss")
    upper, lower = value_ranges(study)
    assert lower[0] < 1.37 and 1.46 < lower[1] < 2 <= upper[0] < 6.9 < upper[1]
    axis = MetricAxis(Figure().subfigures(), study)
    assert axis.parts[1].get_ylabel() and not axis.parts[0].get_ylabel() and axis.heights == [1, 2]


@pytest.mark.parametrize(("metric", "sign"), [("test_accuracy", 1), ("test_loss", -1)])
def test_the_error_bar_of_a_certified_format_ends_within_the_margin(new_sweep, metric, sign):
    """The candidate lacks the baseline's best seeds, so its mean is much worse than its pairs are.

    The point shows the pairs, too, and lies within its bar.
    """
    best = [0.9 + sign * (0.001 * (seed % 3) + (0.012 if seed >= 8 else 0.0)) for seed in range(12)]
    ours = [value - sign * 0.001 * (seed % 2) for seed, value in enumerate(best[:8])]
    sweep = add(new_sweep(), {"fp32": best, "e4m3": ours}, metric)
    study = read_study([sweep.dir], metric=metric, tolerance=0.005 * (100 if sign == 1 else 1))
    ((group, judged),) = study.judged.items()
    point, low, high = span(study, group)
    assert low < point < high and not low <= study.metric.scale * group.mean <= high
    _, worst, best = margin_band(study, study.baselines[group])
    assert judged.verdict is Verdict.CERTIFIED
    assert worst < low if sign == 1 else high < best
    mean = study.baselines[group].mean
    ends = [study.metric.scale * (mean + sign * gap) for gap in (judged.judgment.low, judged.judgment.high)]
    assert (low, high) == pytest.approx((min(ends), max(ends)))


@pytest.mark.parametrize(("tolerance", "is_said"), [(0.14, True), (1.0, False)])
def test_the_caption_explains_certified_bars_that_cross_the_margin(new_sweep, tolerance, is_said):
    values = [0.98 + 0.0005 * (7 * seed % 5 - 2) for seed in range(7)]
    study = read_study([add(new_sweep(), {"fp32": [0.98] * 7, "e4m3": values}).dir], tolerance=tolerance)
    assert [str(judged.verdict) for judged in study.judged.values()] == ["certified"]
    caption = " ".join(accuracy_vs_bits.draw(study).get_supxlabel().split())
    assert ("A certified bar can cross it" in caption) is is_said and "added to the mean of fp32" in caption


def test_names_that_would_overlap_are_moved_apart():
    for places in ([1.0, 1.0, 1.0], [0.0, 0.1, 2.0], [3.0, 1.0, 1.1, 1.2, 1.25], []):
        moved = spread(places, 0.2)
        assert all(b - a >= 0.2 - 1e-9 for a, b in pairwise(sorted(moved)))
        assert math.isclose(sum(moved), sum(places), abs_tol=1e-9)
    assert spread([5.0], 0.2) == [5.0]
    assert spread([9.0, 8.9, 5.0], 1.0, 0.0, 9.0) == pytest.approx([9.0, 8.0, 5.0])
    assert spread([0.0, 0.1], 1.0, 0.0, 9.0) == pytest.approx([0.0, 1.0])


def test_bits_are_below_long_names(new_sweep):
    names = ("fp32", "mxfp6_e3m2_b8_ceil", "mxfp8_e5m2_rceil", "fp8_e5m2_tensor", "int8_channel", "e4m3")
    sweep = add(new_sweep(), {name: [0.9, 0.901] for name in names})
    with matplotlib.rc_context(RC):
        figure = accuracy_vs_bits.draw(read_study([sweep.dir]))
        figure.canvas.draw()
        (axes,) = figure.subfigs[0].axes
        labels = axes.get_xticklabels()
        bits = [text.get_window_extent() for text in axes.texts if text.get_fontweight() == "bold"]
        bits = [box for box in bits if box.y1 < axes.get_window_extent().y0]
        bottom = min(label.get_window_extent().y0 for label in labels)
    assert "mxfp6_e3m2_b8_ceil" in [label.get_text() for label in labels]
    assert len(bits) == 3 and bottom > max(box.y1 for box in bits)


def test_no_sufficient_format_is_no_number_of_bits(new_sweep):
    sweep = new_sweep()
    for workers, low in ((4, 0.989), (8, 0.5)):
        add(sweep, {"fp32": [0.99, 0.991], "e4m3": [low, low + 0.001]}, world_size=workers)
    figure = draw_workers(read_study([sweep.dir]))
    (axes,) = figure.subfigs[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["8", "none tried"]
    assert not [line for line in axes.lines if len(line.get_xdata()) == 2 and set(line.get_xdata()) == {4, 8}]


def test_evidence_is_drawn_from_four_pairs_on(new_sweep, report):
    made = report(fill_digits(new_sweep(), seeds=4), formats=["svg"])
    assert len({text for text in titles(made, "evidence_vs_pairs") if "against fp32" in text}) == 12


def test_every_plot_has_a_title_a_question_and_a_description():
    found = {plot.name: plot for plot in plots.available()}
    assert list(found) == plots.names()
    assert len({plot.title for plot in found.values()}) == len(found)
    assert {plot.question for plot in found.values()} == set(plots.QUESTIONS) - {""}
    for plot in found.values():
        assert plot.alt.endswith(".") and len(plot.alt) > len(plot.title) and plot.needs


def test_a_new_plot_is_one_file_and_titles_name_the_metric(digits, report, tmp_path, monkeypatch):
    page = report(digits, metric="test_loss", formats=["html"]).folder / "report.html"
    assert "<h3>Test loss against bits</h3>" in page.read_text(encoding="utf-8")
    (tmp_path / "own.py").write_text(
        "from matplotlib.figure import Figure\nfrom cpdrun.report.plots import Plot\n\n"
        "PLOTS = [Plot('own', 'My <own>', 'Nothing, \"as yet\".', '', lambda study: Figure(figsize=(1, 1)))]\n"
    )
    monkeypatch.setattr(plots, "__path__", [str(tmp_path)])
    made = report(digits, formats=["html", "svg"])
    monkeypatch.delitem(sys.modules, "cpdrun.report.plots.own")
    text = (made.folder / "report.html").read_text()
    assert "<h3>My &lt;own&gt;</h3>" in text and "Other pictures" in text
    assert 'aria-label="Nothing, &quot;as yet&quot;."' in text and (made.folder / "own.svg").exists()
