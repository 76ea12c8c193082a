"""Files and output of reports on complete, incomplete and damaged sweeps."""

import io
import os
import subprocess
import sys

import pytest
import yaml
from made_up import fill_digits
from rich.console import Console

from cpdrun.record import Ending, Outcome, claim, write_json, write_text
from cpdrun.report import ReportError, ReportUsageError, write_report


def ask(sweep, **search):
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [], "search": search}))


def test_the_same_runs_give_the_same_files_and_other_formats_stay(digits, report, pictures):
    formats = ["md", "csv", "html", "png", "svg"]
    first = {file: file.read_bytes() for file in report(digits, formats=formats, rows=["format"]).files}
    again = {file: file.read_bytes() for file in report(digits, formats=formats, rows=["format"]).files}
    assert again == first
    report(digits, formats=["pdf"])
    assert {file: file.read_bytes() for file in first} == first
    report(digits, formats=["md"])
    assert (digits.dir.report / "pivot.md").exists() and (digits.dir.report / "table.csv").exists()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_narrow_terminal_cuts_nothing(digits, is_terminal):
    out = io.StringIO()
    console = Console(file=out, width=60, force_terminal=is_terminal, color_system=None)
    write_report([digits.dir], console=console, formats=["csv"])
    assert "…" not in out.getvalue()
    assert "−88 [−9" in out.getvalue() or is_terminal


def test_a_terminal_without_unicode_gets_ascii(digits):
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii"), width=200)
    write_report([digits.dir], console=console, formats=["csv"])
    console.file.flush()
    text = raw.getvalue().decode("ascii")
    assert "fp32: 98.8%." in text and "-88 [-9" in text


def test_a_closed_output_ends_only_the_printing(digits):
    """As `cpdrun report | head -1` does."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "cpdrun.cli", "report", str(digits.dir.path), "--format", "csv,png"]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=600)
    os.close(writer)
    assert result.returncode == 0 and result.stderr == ""
    assert (digits.dir.report / "accuracy_vs_bits.png").is_file()


def test_unfinished_runs_are_counted(new_sweep, report):
    sweep = fill_digits(new_sweep(), seeds=1)
    sweep.add("e2m1", seed=0, status=None)
    sweep.add("e2m1", seed=1, status=None, outcome="failed", name="broken-run")
    running = sweep.add("e2m1", seed=2, status=None)
    names = [run.name for run in sweep.dir.runs()]
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [*names, "another", "third"]}))
    lock = claim(running)
    try:
        made = report(sweep)
    finally:
        os.close(lock)
    assert "13 of 18 runs are finished (1 running, 1 failed, 1 pending, 2 not started)" in made.printed
    assert "broken-run failed: it fell over." in made.printed and len(made.table) == 13


def test_work_that_was_repeated_is_summed_over_finished_runs(new_sweep, report):
    sweep = new_sweep()
    runs = {name: sweep.add(name=name, seed=n) for n, name in enumerate(("once", "twice", "calm"))}
    runs["fell"] = sweep.add(name="fell", seed=3, status=None)
    lost = {"once": [(1.5, 1)], "twice": [(2.0, None), (1.0, 2)], "fell": [(90.0, 5)]}
    for name, attempts in lost.items():
        for seconds, restarts in attempts:
            ending = Ending.FINISHED if restarts == 2 else Ending.KILLED
            outcome = Outcome(ending, restarts=restarts, lost_seconds=seconds)
            write_json(runs[name].new_attempt().exit, outcome.as_json())
    said = (
        "4.5 s of work were lost when ranks and runs died, and were done again, 3 times by ranks that started again "
        "at once. twice lost the most, 3.0 s."
    )
    assert said in " ".join(report(sweep).printed.split())


def test_the_question_of_a_search_is_answered_unless_another_is_typed(new_sweep, report):
    sweep = fill_digits(new_sweep())
    question = {"tolerance": 1.0, "confidence": 90, "metric": "test_accuracy", "baseline": {"format": "fp32"}}
    ask(sweep, **question)
    asked = report(sweep).printed
    assert "at most 1 point worse than fp32" in asked
    assert "The margin (1 point) and the confidence (90%) are those of the search; --tol" in asked
    typed = report(sweep, tolerance=0.25, ci=95).printed
    assert "at most 0.25 points worse than fp32" in typed and "of the search;" not in typed
    other = report(sweep, metric="test_loss").printed
    assert "Nobody typed a margin" in other and "The confidence (90%) is that of the search; --ci" in other
    ask(sweep, tolerance=1.0)
    assert "The margin (1 point) is that of the sweep; --tol" in report(sweep).printed
    ask(sweep, tolerance="wide", confidence=400, metric=["a"], baseline=3)  # none of it is valid
    made = report(sweep)
    assert "at most 0.5 points worse than fp32" in made.printed and "of the search;" not in made.printed


@pytest.mark.parametrize("state", ["empty", "pending"])
def test_a_sweep_without_a_finished_run_is_one_line(new_sweep, report, state):
    sweep = new_sweep()
    if state == "pending":
        sweep.add(status=None)
    with pytest.raises(ReportError) as error:
        report(sweep)
    assert "digits_bits" in str(error.value) and "\n" not in str(error.value)
    assert not sweep.dir.report.exists()


def test_the_output_is_the_verdicts_then_the_table_then_the_page(digits, report):
    lines = report(digits, formats=["md", "html"]).printed.splitlines()
    starts = ("OPEN: ", "Margin: ", " fp32 ", "note: ", "Open ", "In ")
    first = [next(i for i, line in enumerate(lines) if line.startswith(start)) for start in starts]
    assert first == sorted(first) and first[0] == 0
    assert len([line for line in lines if line.strip()]) == len({line for line in lines if line.strip()})


def test_unknown_metrics_and_formats_are_refused(digits, report):
    with pytest.raises(ReportUsageError, match="test_accuracy, test_loss, train_loss"):
        report(digits, metric="test_acuracy")
    with pytest.raises(ReportUsageError, match="md"):
        report(digits, formats=["docx"])


def test_values_that_are_not_numbers_are_omitted(new_sweep, report):
    sweep = fill_digits(new_sweep(), seeds=1)
    values = {"e2m1": None, "e2m2": float("nan"), "e2m3": float("inf"), "e2m4": "high", "e2m5": True}
    for format, accuracy in values.items():
        sweep.add(format, accuracy=accuracy, status="diverged")
    made = report(sweep)
    rows = made.table.set_index("format").loc[list(values)]
    assert set(rows["n"]) == {0} and set(rows["diverged"]) == {1}
    assert "5 finished runs have no valid test_accuracy" in made.printed


def test_a_format_whose_runs_all_failed_has_a_row(new_sweep, report):
    sweep = fill_digits(new_sweep(), seeds=1)
    for seed in range(2):
        sweep.add("e2m1", seed=seed, status=None, outcome="failed")
    sweep.add("e2m3", seed=0, status=None, outcome="failed")
    sweep.add("e2m3", seed=1, status=None)  # still to come
    sweep.add("newer8", seed=0, accuracy=0.9)
    made = report(sweep)
    rows = made.table.set_index("format")
    assert rows.loc["e2m1", "n"] == 0 and "e2m3" not in rows.index and "2 of 2" in made.printed
    assert rows["bits"].isna()["newer8"]  # a format that this version does not know


def test_a_report_on_another_metric_has_its_own_folder(digits, report):
    usual = report(digits, formats=["csv", "md"])
    before = {file: file.read_bytes() for file in usual.files}
    other = report(digits, metric="test_loss", formats=["csv", "md"])
    assert {file: file.read_bytes() for file in usual.files} == before
    assert other.folder == usual.folder / "test_loss" and (other.folder / "table.csv").is_file()
    assert report(digits, metric="test_accuracy", formats=["csv"]).folder == usual.folder


def test_the_default_metric_is_that_of_the_data_and_of_most_runs(new_sweep, report):
    for name in ("test_mean_iou", "test_bits_per_byte", "test_accuracy"):
        sweep = new_sweep(name)
        sweep.add(metrics={"test_accuracy": 0.9, "test_loss": 1.5, name: 0.4}, done={"test_samples": 100})
        made = report(sweep)
        assert f"{name}_mean" in made.table.columns
        assert name == "test_accuracy" or "test samples" not in made.sentences[0]
    images, text = fill_digits(new_sweep("images"), seeds=1), new_sweep("text")
    text.add(metrics={"test_accuracy": 0.5, "test_bits_per_byte": 2.0})
    assert "test_accuracy_mean" in report(images, text).table.columns


def test_a_picture_is_written_whole_or_not_at_all(digits, report, monkeypatch, pictures):
    before = (report(digits, formats=["png"]).folder / "accuracy_vs_bits.png").read_bytes()

    def die(self, content, **_):
        content.write(b"\x89PNG half of")
        raise KeyboardInterrupt

    monkeypatch.setattr("matplotlib.backends.backend_agg.FigureCanvasAgg.print_png", die)
    with pytest.raises(KeyboardInterrupt):
        report(digits, formats=["png"])
    assert (digits.dir.report / "accuracy_vs_bits.png").read_bytes() == before


def test_hybrid_runs_are_named(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.98 + 0.001 * seed)
        parts = {"layers": ["fc.*"], "first_epochs": 2, "last_epochs": 0}
        sweep.add("e3m0", aps=True, seed=seed, accuracy=0.98, full_precision=parts)
    made = report(sweep, formats=["csv", "md"])
    hybrid = "e3m0 (hybrid: 4 bits, layers fc.* and the first 2 epochs in fp32)"
    assert hybrid in made.printed and "(4 bits)" not in made.printed
    assert "| e3m0 | 4 + 32 |" in (made.folder / "table.md").read_text(encoding="utf-8")


def test_writing_a_report_imports_neither_hydra_nor_torch():
    code = "import sys, cpdrun.report.write; assert not {'hydra', 'torch'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
