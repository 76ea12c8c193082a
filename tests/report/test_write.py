"""What is written and said, for whole sweeps and for broken ones."""

import io
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib.image
import pytest
import yaml
from made_up import fill_digits
from rich.console import Console

from cpdrun.record import Ending, Outcome, claim, write_json, write_text
from cpdrun.report import ReportError, ReportUsageError, write_report


def test_pictures_are_pictures(digits, report):
    made = report(digits)
    pixels = matplotlib.image.imread(made.folder / "accuracy_vs_bits.png")
    assert pixels.shape[1] == 1050  # a paper's column at 300 dots an inch
    assert len({tuple(color) for row in pixels[::20, ::20] for color in row}) > 3
    root = ElementTree.parse(made.folder / "accuracy_vs_bits.svg").getroot()
    assert root.tag.endswith("svg")


def test_the_same_runs_give_the_same_files(digits, report):
    first = {file.name: file.read_bytes() for file in report(digits).files}
    assert {file.name: file.read_bytes() for file in report(digits).files} == first


def test_it_says_where_the_picture_is(digits, report):
    assert str(digits.dir.report / "accuracy_vs_bits.png") in report(digits).printed


def test_a_terminal_without_unicode_shows_it_in_ascii(digits, no_pictures):
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii"), width=200)
    write_report([digits.dir], console=console, formats=["csv"])
    console.file.flush()
    text = raw.getvalue().decode("ascii")
    assert "fp32: 98.8 %." in text and "-88 [-9" in text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_narrow_terminal_loses_nothing(digits, is_terminal, no_pictures):
    out = io.StringIO()
    console = Console(file=out, width=60, force_terminal=is_terminal, color_system=None)
    write_report([digits.dir], console=console, formats=["csv"])
    assert "…" not in out.getvalue()
    assert "−88 [−9" in out.getvalue() or is_terminal


def test_a_reader_who_leaves_early_ends_the_printing_alone(digits):
    """As `cpdrun report | head -1` does."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "cpdrun.cli", "report", str(digits.dir.path), "--format", "csv,png"]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert result.returncode == 0 and result.stderr == ""
    assert (digits.dir.report / "accuracy_vs_bits.png").is_file()


def test_unfinished_runs_are_counted_and_the_report_goes_on(new_sweep, report, no_pictures):
    sweep = fill_digits(new_sweep())
    sweep.add("e2m1", seed=0, status=None)
    sweep.add("e2m1", seed=1, status=None, outcome="failed", name="broken-run")
    running = sweep.add("e2m1", seed=2, status=None)
    lock = claim(running)
    try:
        made = report(sweep)
    finally:
        os.close(lock)
    assert "39 of 42 runs are finished (1 running, 1 failed, 1 pending)" in made.printed
    assert "broken-run failed: it fell over." in made.printed
    assert len(made.table) == 13


def test_work_that_was_done_again_is_told_of_runs_that_came_to_their_end(new_sweep, report, no_pictures):
    sweep = new_sweep()
    runs = {name: sweep.add(name=name, seed=n) for n, name in enumerate(("once", "twice"))}
    runs["fell"] = sweep.add(name="fell", seed=2, status=None)
    sweep.add(name="calm", seed=3)
    lost = {"once": (1.5, 1), "twice": (2.0, None), "fell": (90.0, 5)}
    for name, (seconds, restarts) in lost.items():
        outcome = Outcome(Ending.KILLED, restarts=restarts, lost_seconds=seconds)
        write_json(runs[name].new_attempt().exit, outcome.as_json())
    write_json(
        runs["twice"].new_attempt().exit, Outcome(Ending.FINISHED, restarts=2, lost_seconds=1.0).as_json()
    )
    assert (
        "4.5 s of work were lost when ranks and runs died, and were done again, 3 times by ranks that started again "
        "at once. twice lost the most, 3.0 s." in " ".join(report(sweep).printed.split())
    )


def test_runs_that_never_started_are_known_from_the_manifest(new_sweep, report, no_pictures):
    sweep = new_sweep()
    name = sweep.add().name
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [name, "another", "third"]}))
    assert "1 of 3 runs are finished (2 not started)" in report(sweep).printed


def test_a_search_is_answered_with_what_it_asked_unless_another_question_is_typed(
    new_sweep, report, no_pictures
):
    sweep = fill_digits(new_sweep())
    question = {"tolerance": 1.0, "confidence": 90, "metric": "test_accuracy", "baseline": {"format": "fp32"}}
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [], "search": question}))
    asked = report(sweep)
    assert "at most 1 point worse than fp32" in asked.printed
    assert "The margin (1 point) and the confidence (90 %) are those of the search; --tol" in asked.printed
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [], "search": {"tolerance": 1.0}}))
    assert "The margin (1 point) is that of the sweep; --tol" in report(sweep).printed
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [], "search": question}))
    typed = report(sweep, tolerance=0.25, ci=95).printed
    assert "at most 0.25 points worse than fp32" in typed and "of the search;" not in typed
    other = report(sweep, metric="test_loss").printed
    assert "Nobody typed a margin" in other and "The confidence (90 %) is that of the search; --ci" in other


def test_a_question_of_a_search_that_cannot_be_read_is_passed_over(new_sweep, report, no_pictures):
    sweep = fill_digits(new_sweep())
    question = {"tolerance": "wide", "confidence": 400, "metric": ["a"], "baseline": 3}
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [], "search": question}))
    made = report(sweep)
    assert "at most 0.5 points worse than fp32" in made.printed and "of the search;" not in made.printed


def test_a_missing_seed_is_named(new_sweep, report, no_pictures):
    sweep = fill_digits(new_sweep(), seeds=2)
    sweep.add("e2m1", aps=True, seed=0)
    assert "e2m1 with APS lacks seed 1" in report(sweep).printed


@pytest.mark.parametrize("state", ["empty", "pending"])
def test_nothing_finished_is_one_clear_line(new_sweep, report, state):
    sweep = new_sweep()
    if state == "pending":
        sweep.add(status=None)
    with pytest.raises(ReportError) as error:
        report(sweep)
    assert "digits_bits" in str(error.value) and "\n" not in str(error.value)
    assert not sweep.dir.report.exists()


def test_one_format_leaves_the_files_of_the_others(digits, report):
    report(digits, formats=["md", "csv", "html", "png", "svg"], rows=["format"])
    before = {file: file.read_bytes() for file in digits.dir.report.iterdir()}
    report(digits, formats=["pdf"])
    assert {file: file.read_bytes() for file in before} == before
    report(digits, formats=["md"])
    assert (digits.dir.report / "pivot.md").exists() and (digits.dir.report / "table.csv").exists()


def test_the_output_is_the_verdicts_then_the_table_then_the_page(digits, report, no_pictures):
    lines = report(digits, formats=["md", "html"]).printed.splitlines()
    first = [
        next(i for i, line in enumerate(lines) if line.startswith(start))
        for start in ("OPEN: ", "Margin: ", " fp32 ", "note: ", "Open ", "In ")
    ]
    assert first == sorted(first) and first[0] == 0
    assert len([line for line in lines if line.strip()]) == len({line for line in lines if line.strip()})


def test_an_unknown_metric_is_answered_with_those_there_are(digits, report):
    with pytest.raises(ReportUsageError, match="test_accuracy, test_loss, train_loss"):
        report(digits, metric="test_acuracy")


def test_an_unknown_format_is_refused(digits, report):
    with pytest.raises(ReportUsageError, match="md"):
        report(digits, formats=["docx"])


@pytest.mark.parametrize("accuracy", [None, float("nan"), float("inf"), "high", True])
def test_a_run_without_a_value_is_noted_and_left_out(new_sweep, report, accuracy):
    sweep = fill_digits(new_sweep(), seeds=2)
    sweep.add("e2m1", seed=0, accuracy=accuracy, status="diverged")
    made = report(sweep)
    row = made.table[made.table["format"] == "e2m1"].iloc[0]
    assert (row["n"], row["diverged"]) == (0, 1)
    assert "1 finished run has no valid test_accuracy" in made.printed


def test_no_run_has_a_value(new_sweep, report):
    sweep = new_sweep()
    sweep.add("e4m3", accuracy=None, metrics={"test_accuracy": None})
    made = report(sweep)
    assert made.sentences == ["No finished run has a value of test_accuracy."]
    assert "accuracy_vs_bits" not in made.printed


def test_broken_records_are_named_and_left_out(new_sweep, report):
    sweep = fill_digits(new_sweep(), seeds=2)
    sweep.add(seed=7, name="cut-config").config.write_text("format: [fp32", encoding="utf-8")
    sweep.add(seed=8, name="cut-done").done.write_text('{"status": "fin', encoding="utf-8")
    sweep.add(seed=9, name="no-config").config.unlink()
    made = report(sweep)
    for name in ("cut-config", "cut-done", "no-config"):
        assert f"its record cannot be read: {name}" in made.printed
    assert set(made.table["n"]) == {2}


def test_a_format_of_a_newer_version_is_shown_without_bits(new_sweep, report):
    sweep = fill_digits(new_sweep(), seeds=2)
    for seed in range(2):
        sweep.add("newer8", seed=seed, accuracy=0.9)
    made = report(sweep)
    assert made.table.set_index("format")["bits"].isna()["newer8"]


def test_a_group_whose_runs_all_failed_has_a_row(new_sweep, report, no_pictures):
    sweep = fill_digits(new_sweep(), seeds=2)
    for seed in range(2):
        sweep.add("e2m1", seed=seed, status=None, outcome="failed")
    sweep.add("e2m3", seed=0, status=None, outcome="failed")
    sweep.add("e2m3", seed=1, status=None)  # still to come
    made = report(sweep)
    rows = made.table.set_index("format")
    assert rows.loc["e2m1", "n"] == 0 and "e2m3" not in rows.index
    assert "2 of 2" in made.printed


def test_another_metric_does_not_overwrite_the_first_report(digits, report):
    usual = report(digits, formats=["csv", "png"])
    before = {file: file.read_bytes() for file in usual.files}
    other = report(digits, metric="test_loss", formats=["csv", "png"])
    assert {file: file.read_bytes() for file in usual.files} == before
    assert other.folder == usual.folder / "test_loss" and (other.folder / "table.csv").is_file()
    assert report(digits, metric="test_accuracy", formats=["csv"]).folder == usual.folder


@pytest.mark.parametrize("own", ["test_mean_iou", "test_bits_per_byte", "test_accuracy"])
def test_the_metric_is_by_default_the_datas_own(new_sweep, report, no_pictures, own):
    sweep = new_sweep()
    sweep.add(metrics={"test_accuracy": 0.9, "test_loss": 1.5, own: 0.4})
    assert f"{own}_mean" in report(sweep).table.columns


def test_a_picture_is_written_whole_or_not_at_all(digits, report, monkeypatch):
    before = (report(digits).folder / "accuracy_vs_bits.png").read_bytes()

    def die(self, content, **_):
        content.write(b"\x89PNG half of")
        raise KeyboardInterrupt

    monkeypatch.setattr("matplotlib.backends.backend_agg.FigureCanvasAgg.print_png", die)
    with pytest.raises(KeyboardInterrupt):
        report(digits, formats=["png"])
    assert (digits.dir.report / "accuracy_vs_bits.png").read_bytes() == before


def test_hybrid_runs_are_called_so(new_sweep, report, no_pictures):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.98 + 0.001 * seed)
        parts = {"layers": ["fc.*"], "first_epochs": 2, "last_epochs": 0}
        sweep.add("e3m0", aps=True, seed=seed, accuracy=0.98, full_precision=parts)
    made = report(sweep, formats=["csv", "md"])
    hybrid = "e3m0 (hybrid: 4 bits, layers fc.* and the first 2 epochs in fp32)"
    assert hybrid in made.printed and "(4 bits)" not in made.printed
    assert "| e3m0 | 4 + 32 |" in (made.folder / "table.md").read_text(encoding="utf-8")


def test_of_several_data_sets_the_metric_that_most_runs_have(new_sweep, report, no_pictures):
    images, text = fill_digits(new_sweep("images"), seeds=1), new_sweep("text")
    for seed in range(2):
        text.add(seed=seed, metrics={"test_accuracy": 0.5, "test_bits_per_byte": 2.0})
    assert "test_accuracy_mean" in report(images, text).table.columns
    assert "test_bits_per_byte_mean" in report(text).table.columns


def test_an_iou_counts_no_samples(new_sweep, report, no_pictures):
    sweep = new_sweep()
    for seed in range(3):
        for format in ("fp32", "e4m3"):
            value = {"test_mean_iou": 0.6 + 0.01 * seed, "test_accuracy": 0.9}
            sweep.add(format, seed=seed, metrics=value, done={"test_samples": 100, "num_classes": 19})
    assert "test samples" not in report(sweep).sentences[0]


def test_writing_a_report_imports_neither_hydra_nor_torch():
    code = "import sys, cpdrun.report.write; assert not {'hydra', 'torch'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
