"""The pictures hold what the runs say; what cannot be drawn is left out with a reason."""

import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import matplotlib
import pytest
from made_up import fill_digits
from matplotlib.figure import Figure

from cpdrun.report import plots
from cpdrun.report.page import pictures
from cpdrun.report.plots._metric_axis import MetricAxis, margin_band, span, value_ranges
from cpdrun.report.plots._panels import spread
from cpdrun.report.style import RC
from cpdrun.stats.evidence import Verdict
from cpdrun.study.pareto import front
from cpdrun.study.reader import read_study

SVG = "{http://www.w3.org/2000/svg}"


def titles(made, name: str) -> list[str]:
    """What the points of a picture say when pointed at."""
    root = ElementTree.parse(made.folder / f"{name}.svg").getroot()
    return [element.text for element in root.iter(f"{SVG}title")]


def drawn(made) -> set[str]:
    return {file.stem for file in made.files if file.suffix == ".svg"}


def test_every_mean_is_a_point(digits, report):
    found = titles(report(digits), "accuracy_vs_bits")
    assert len(found) == 12  # fp32 is the band
    assert len([text for text in found if " with APS" in text]) == 6
    assert any(text.startswith("e3m0 without APS, workers 8: 9.") for text in found)


def test_one_panel_for_each_number_of_workers(new_sweep, report):
    sweep = new_sweep()
    for world_size in (4, 8):
        fill_digits(sweep, world_size=world_size)
    found = titles(report(sweep), "accuracy_vs_bits")
    assert len(found) == 24
    assert len([text for text in found if "workers 4:" in text]) == 12


def test_a_plot_whose_data_the_runs_lack_is_not_drawn_and_not_listed(digits, report):
    made = report(digits)
    assert drawn(made) == {"accuracy_vs_bits"}
    for name in ("training_curves", "accuracy_vs_bytes", "min_bits_vs_workers", "exponent_ranges"):
        assert name not in made.printed and name not in " ".join(made.notes)


def test_a_picture_of_an_earlier_report_does_not_stay(digits, report):
    digits.dir.report.mkdir()
    (digits.dir.report / "training_curves.png").write_bytes(b"old")
    report(digits)
    assert not (digits.dir.report / "training_curves.png").exists()


def test_kinds_of_picture_can_be_chosen(digits, report):
    made = report(digits, formats=["csv", "pdf"])
    assert {file.suffix for file in made.files} == {".csv", ".pdf"}
    assert (made.folder / "accuracy_vs_bits.pdf").read_bytes().startswith(b"%PDF")


SEVERAL_PROCESSES = """
import os, pathlib, sys
from cpdrun.record import SweepDir
from cpdrun.report.page import pictures
from cpdrun.study.reader import read_study
study = read_study([SweepDir(pathlib.Path(sys.argv[1]))])
files = []
for cores in ({0}, {0, 1}):
    os.sched_getaffinity = lambda pid: cores
    files.append(pictures.render(study, pictures.KINDS))
assert files[0] == files[1] and "_jobs" not in vars(pictures)
print(*files[1], *files[1]["accuracy_vs_bits"])
"""


def test_several_processes_draw_the_same_pictures(digits):
    command = [sys.executable, "-c", SEVERAL_PROCESSES, digits.dir.path]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (printed.stdout.split(), printed.stderr) == (["accuracy_vs_bits", "png", "svg", "pdf"], "")


KILLED_PROCESS = """
import os, pathlib, signal, sys
from cpdrun.record import SweepDir
from cpdrun.report.page import pictures
from cpdrun.study.reader import read_study
signal.signal(signal.SIGTERM, signal.default_int_handler)  # as cpdrun.cli does
os.sched_getaffinity = lambda pid: {0, 1}
main, run = os.getpid(), pictures._Job.run
def killed(job):
    if os.getpid() != main:
        os.kill(os.getpid(), signal.SIGKILL)
    return run(job)
pictures._Job.run = killed
print(*pictures.render(read_study([SweepDir(pathlib.Path(sys.argv[1]))]), ["svg"]))
"""


def test_pictures_are_drawn_although_a_process_is_killed(digits):
    command = [sys.executable, "-c", KILLED_PROCESS, digits.dir.path]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (printed.stdout.split(), printed.stderr) == (["accuracy_vs_bits"], "")


def test_another_kind_of_picture_deletes_nothing(digits, report):
    folder = report(digits, formats=["md", "csv", "html", "png", "svg"]).folder
    before = {path.name for path in folder.iterdir()}
    report(digits, formats=["pdf"])
    assert before < {path.name for path in folder.iterdir()}


def test_letters_in_a_pdf_are_truetype(digits, report):
    text = (report(digits, formats=["pdf"]).folder / "accuracy_vs_bits.pdf").read_bytes()
    assert b"/FontFile2" in text and b"/Type3" not in text


def test_the_margin_is_a_line_and_a_single_seed_is_marked(new_sweep):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.98)
    sweep.add("e4m3", accuracy=0.97)
    study = read_study([sweep.dir], tolerance=1.0)
    figure = pictures.draw_one(study, "accuracy_vs_bits")
    (axes,) = figure.subfigs[0].axes
    heights = {
        segment[0][1] for lines in axes.collections for segment in getattr(lines, "get_segments", list)()
    }
    assert {98.0, 97.0} <= heights
    assert "97.0¹" in [text.get_text() for text in axes.texts]
    assert "¹: a single seed." in figure.get_supxlabel().replace("\n", " ")


@pytest.mark.parametrize(("noise", "n_rings"), [(0.001, 1), (0.4, 0)])
def test_no_knee_is_drawn_if_the_seeds_tell_nothing_apart(new_sweep, noise, n_rings):
    sweep = new_sweep()
    means = {("fp32", 4000): 0.59, ("e5m2", 1000): 0.585, ("e4m1", 800): 0.54, ("e3m0", 500): 0.4}
    for i, ((format, size), mean) in enumerate(means.items()):
        for seed in range(6):
            value = mean + noise * math.cos(5 * i + 7 * seed)
            sweep.add(format, seed=seed, accuracy=value, wire_bytes=size)
    figure = pictures.draw_one(read_study([sweep.dir], tolerance=1.0), "accuracy_vs_bytes")
    lines = [line for part in figure.subfigs for axes in part.axes for line in axes.lines]
    assert len([line for line in lines if line.get_markersize() == 10]) == n_rings


def test_training_curves(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        for format, aps, end in (("fp32", False, 0.9), ("e3m0", True, 0.8), ("e3m0", False, 0.1)):
            rows = [{"epoch": i, "test_accuracy": end * i / 3} for i in (1, 2, 3)]
            sweep.add(format, aps=aps, seed=seed, accuracy=end, rows=rows)
    found = titles(report(sweep), "training_curves")
    assert sorted(text.split(",")[0] for text in found) == [
        "e3m0 with APS",
        "e3m0 without APS",
        "fp32",
        "fp32",
    ]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], []),
        ([(1, 0.5)], [0]),
        ([(1, 0.5), (2, 0.9), (3, 0.8)], [0, 1]),
        ([(2, 0.9), (1, 0.9)], [1]),
        ([(1, 0.5), (1, 0.6), (1, 0.6)], [1, 2]),
        ([(3, 0.1), (2, 0.2), (1, 0.3)], [2]),
    ],
)
def test_pareto_front(points, expected):
    assert front(points) == expected


def test_pareto_front_against_the_definition():
    import random

    draw = random.Random(0)
    for _ in range(200):
        points = [(draw.randrange(6), draw.randrange(6)) for _ in range(8)]
        beaten = [any(b[0] <= a[0] and b[1] >= a[1] and b != a for b in points) for a in points]
        assert sorted(front(points)) == [i for i, lost in enumerate(beaten) if not lost]


def test_bytes_on_the_wire(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        for format, size, value in (("fp32", 4000, 0.99), ("e4m3", 1000, 0.98), ("e5m2", 1000, 0.97)):
            sweep.add(format, seed=seed, accuracy=value, wire_bytes=size)
    assert len(titles(report(sweep), "accuracy_vs_bytes")) == 3


def test_fewest_bits_against_workers(new_sweep, report):
    sweep = new_sweep()
    for world_size, low in ((4, 0.989), (8, 0.9)):
        for format, value in (("fp32", 0.99), ("e4m3", 0.99), ("e3m0", low)):
            for seed in range(2):
                sweep.add(format, seed=seed, accuracy=value, world_size=world_size)
    found = titles(report(sweep), "min_bits_vs_workers")
    assert [text.split(":")[0] for text in found] == [
        "e3m0 without APS, workers 4",
        "e4m3 without APS, workers 8",
    ]


def layers(shift: int, underflow: float) -> dict:
    one = {"exponent_min": -20 - shift, "exponent_max": -6 - shift, "underflow": underflow, "overflow": 0.0}
    dead = {"exponent_min": None, "exponent_max": None, "underflow": None, "overflow": None}
    return {"conv.weight": one, "a_layer_$never_used$": dead}


def test_exponent_ranges(new_sweep, report):
    sweep = new_sweep()
    rows = [{"epoch": i, "test_accuracy": 0.9, "layers": layers(i, 0.5)} for i in (1, 2)]
    for format, aps in (("fp32", False), ("e3m0", False), ("e3m0", True)):
        sweep.add(format, aps=aps, accuracy=0.9, rows=rows)
    found = titles(report(sweep), "exponent_ranges")
    assert "e3m0: from 2^-2 to below 2^4" in found
    assert "conv.weight: e3m0 with APS reaches from 2^-13 to 2^-8" in found


def parts(new_sweep, values: dict[str, list[float]]) -> list[tuple[float, float]]:
    """The parts of the y axis for a sweep of these formats' values, in points."""
    sweep = new_sweep()
    for format, seeds in values.items():
        for seed, value in enumerate(seeds):
            sweep.add(format, seed=seed, accuracy=value)
    return value_ranges(read_study([sweep.dir]))


def test_the_axis_is_broken_between_what_trains_and_what_does_not(new_sweep):
    near = {"fp32": [0.99, 0.985], "e5m2": [0.99, 0.98], "e4m3": [0.98, 0.985]}
    upper, lower = parts(new_sweep, near | {"e3m2": [0.8, 0.2], "e3m0": [0.05, 0.15]})
    assert 50 < upper[0] < 98 and upper[1] > 99
    assert lower[0] < 10 and 50 < lower[1] <= upper[0]


@pytest.mark.parametrize(("metric", "sign"), [("test_accuracy", 1), ("test_loss", -1)])
def test_the_error_bar_of_a_certified_format_ends_within_the_margin(new_sweep, metric, sign):
    """The candidate lacks the baseline's best seeds, so its mean is much worse than its pairs are."""
    sweep = new_sweep()
    for seed in range(12):
        value = 0.9 + sign * (0.001 * (seed % 3) + (0.012 if seed >= 8 else 0.0))
        sweep.add("fp32", seed=seed, metrics={metric: value})
        if seed < 8:
            sweep.add("e4m3", seed=seed, metrics={metric: value - sign * 0.001 * (seed % 2)})
    study = read_study([sweep.dir], metric=metric, tolerance=0.005 * (100 if sign == 1 else 1))
    ((group, judged),) = study.judged.items()
    _, low, high = span(study, group)
    _, worst, best = margin_band(study, study.baselines[group])
    assert judged.verdict is Verdict.CERTIFIED
    assert worst < low if sign == 1 else high < best
    ends = [
        study.metric.scale * (study.baselines[group].mean + sign * gap)
        for gap in (judged.judgement.low, judged.judgement.high)
    ]
    assert (low, high) == pytest.approx((min(ends), max(ends)))


@pytest.mark.parametrize(("tolerance", "says_so"), [(0.14, True), (1.0, False)])
def test_the_caption_says_so_if_a_certified_bar_crosses_the_margin(new_sweep, tolerance, says_so):
    from cpdrun.report.plots import accuracy_vs_bits

    sweep = new_sweep()
    for seed in range(7):
        sweep.add("fp32", seed=seed, accuracy=0.98)
        sweep.add("e4m3", seed=seed, accuracy=0.98 + 0.0005 * (7 * seed % 5 - 2))
    study = read_study([sweep.dir], tolerance=tolerance)
    assert [str(judged.verdict) for judged in study.judged.values()] == ["certified"]
    caption = " ".join(accuracy_vs_bits.draw(study).get_supxlabel().split())
    assert ("A certified bar can cross it" in caption) is says_so and "added to the mean of fp32" in caption


def test_where_lower_is_better_the_heap_below_is_shown_large(new_sweep):
    sweep = new_sweep()
    for format, loss in (("fp32", 1.37), ("bf16", 1.38), ("e4m3", 1.45), ("e3m0", 6.9)):
        for seed in range(2):
            sweep.add(format, seed=seed, metrics={"test_loss": loss + 0.01 * seed})
    study = read_study([sweep.dir], metric="test_loss")
    upper, lower = value_ranges(study)
    assert lower[0] < 1.37 and 1.46 < lower[1] < 2 <= upper[0] < 6.9 < upper[1]
    axis = MetricAxis(Figure().subfigures(), study)
    assert axis.parts[1].get_ylabel() and not axis.parts[0].get_ylabel() and axis.heights == [1, 2]


@pytest.mark.parametrize(
    "low", [[0.97, 0.975], [0.1, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9]], ids=["one heap", "evenly spread"]
)
def test_the_axis_is_whole_without_a_gap(new_sweep, low):
    names = ["e3m0", "e3m1", "e3m2", "e4m1", "e4m2", "e4m3", "e5m2"]
    assert (
        len(parts(new_sweep, {"fp32": [0.99, 0.98]} | {n: [v, v] for n, v in zip(names, low, strict=False)}))
        == 1
    )


@pytest.mark.parametrize("places", [[1.0, 1.0, 1.0], [0.0, 0.1, 2.0], [3.0, 1.0, 1.1, 1.2, 1.25], [5.0], []])
def test_names_that_would_touch_are_moved_apart(places):
    moved = spread(places, 0.2)
    ordered = sorted(moved)
    assert all(b - a >= 0.2 - 1e-9 for a, b in pairwise(ordered))
    assert math.isclose(sum(moved), sum(places), abs_tol=1e-9)
    assert all(
        a == pytest.approx(b)
        for a, b in zip(moved, places, strict=True)
        if places.count(b) == len(places) == 1
    )


def test_names_that_are_moved_apart_stay_inside():
    assert spread([9.0, 8.9, 5.0], 1.0, 0.0, 9.0) == pytest.approx([9.0, 8.0, 5.0])
    assert spread([0.0, 0.1], 1.0, 0.0, 9.0) == pytest.approx([0.0, 1.0])


def test_bits_stand_below_long_names(new_sweep):
    from cpdrun.report.plots import accuracy_vs_bits

    sweep = new_sweep()
    for format in (
        "fp32",
        "mxfp6_e3m2_b8_ceil",
        "mxfp8_e5m2_rceil",
        "fp8_e5m2_tensor",
        "int8_channel",
        "e4m3",
    ):
        for seed in range(2):
            sweep.add(format, seed=seed, accuracy=0.9 + 0.001 * seed)
    with matplotlib.rc_context(RC):
        figure = accuracy_vs_bits.draw(read_study([sweep.dir]))
        figure.canvas.draw()
        (axes,) = figure.subfigs[0].axes
        labels = axes.get_xticklabels()
        names = [label.get_window_extent() for label in labels]
        bits = [text.get_window_extent() for text in axes.texts if text.get_fontweight() == "bold"]
        bits = [box for box in bits if box.y1 < axes.get_window_extent().y0]
    assert "mxfp6_e3m2_b8_ceil" in [label.get_text() for label in labels], "whole"
    assert len(bits) == 3 and min(box.y0 for box in names) > max(box.y1 for box in bits)


def test_no_format_was_enough_is_no_number_of_bits(new_sweep):
    from cpdrun.report.plots.fewest_bits import draw_workers

    sweep = new_sweep()
    for world_size, low in ((4, 0.989), (8, 0.5)):
        for format, value in (("fp32", 0.99), ("e4m3", low)):
            for seed in range(2):
                sweep.add(format, seed=seed, accuracy=value + 0.001 * seed, world_size=world_size)
    figure = draw_workers(read_study([sweep.dir]))
    (axes,) = figure.subfigs[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["8", "none tried"]
    assert not [line for line in axes.lines if len(line.get_xdata()) == 2 and set(line.get_xdata()) == {4, 8}]


def test_every_plot_states_its_title_what_it_shows_and_what_it_needs():
    found = {plot.name: plot for plot in plots.available()}
    assert list(found) == plots.names()
    assert len({plot.title for plot in found.values()}) == len(found)
    assert {plot.question for plot in found.values()} == set(plots.QUESTIONS) - {""}
    for plot in found.values():
        assert plot.alt.endswith(".") and len(plot.alt) > len(plot.title) and plot.needs


def test_titles_name_the_metric(digits, report):
    page = report(digits, metric="test_loss", formats=["html"]).folder / "report.html"
    assert "<h3>Test loss against bits</h3>" in page.read_text(encoding="utf-8")


def test_a_new_plot_is_one_file(digits, report, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "from matplotlib.figure import Figure\nfrom cpdrun.report.plots import Plot\n\n"
        "PLOTS = [Plot('own', 'My <own>', 'Nothing, \"as yet\".', '', lambda study: Figure(figsize=(1, 1)))]\n"
    )
    monkeypatch.setattr(plots, "__path__", [str(tmp_path)])
    made = report(digits, formats=["html", "svg"])
    monkeypatch.delitem(sys.modules, "cpdrun.report.plots.own")
    text = (made.folder / "report.html").read_text()
    assert (
        "<h3>My &lt;own&gt;</h3>" in text
        and "Other pictures" in text
        and 'aria-label="Nothing, &quot;as yet&quot;."' in text
    )
    assert (made.folder / "own.svg").exists()


def test_evidence_is_a_line_for_each_format_compared_from_four_pairs_on(new_sweep, report):
    made = report(fill_digits(new_sweep(), seeds=4))
    assert len({text for text in titles(made, "evidence_vs_pairs") if "against fp32" in text}) == 12
    few = report(fill_digits(new_sweep("few"), seeds=3))
    assert not (few.folder / "evidence_vs_pairs.svg").exists() and "evidence_vs_pairs" not in few.printed
