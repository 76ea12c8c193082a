"""What a paper copies: table.tex, methods.txt and cite.bib."""

import math
import re

import pytest

from cpdrun.report.page import paper
from cpdrun.study.reader import read_study

ENV = {"packages": {"cpdrun": "1.2.3", "torch": "2.9"}, "git_commit": "0123456789abcdef"}


@pytest.fixture
def study(new_sweep):
    sweep = new_sweep("digits_100%")
    for seed in range(6):
        for format, aps, accuracy in (("fp32", False, 0.98), ("e4m3", True, 0.979), ("e3m0", False, 0.4)):
            scattered = accuracy + 0.001 * math.cos(7 * seed + 5 * ord(format[1]))
            sweep.add(format, aps=aps, seed=seed, accuracy=scattered, env=ENV)
    return read_study([sweep.dir], tolerance=1.0)


def cells(table: str) -> list[list[str]]:
    return [line.removesuffix(r" \\").strip().split(" & ") for line in table.splitlines() if " & " in line]


def test_the_table_has_the_form_that_booktabs_needs(study):
    table = paper.table(study)
    for name in ("table", "tabular"):
        assert table.count(rf"\begin{{{name}}}") == table.count(rf"\end{{{name}}}") == 1
    order = [table.index(rf"\{name}") for name in ("caption{", "label{", "toprule", "midrule", "bottomrule")]
    assert order == sorted(order)
    (columns,) = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", table)
    assert {len(row) for row in cells(table)} == {len(columns)}
    text = re.sub(r"\\[\\{}%]", "", table)
    assert text.count("{") == text.count("}") and "%" not in text.split("\n", 1)[1]


def test_verdicts_are_words_and_constant_columns_are_in_the_caption(study):
    table = paper.table(study)
    header, *rows = cells(table)
    verdicts = {row[0]: row[header.index("verdict")] for row in rows}
    assert verdicts == {"fp32": "baseline", "e4m3": "certified", "e3m0": "refuted"}
    assert "workers" not in header and "n" not in header and "workers 8" in table
    for fact in (
        "Test accuracy in",
        "the mean over 6 seeds",
        r"95 \% interval",
        "at most 1 point worse than that of fp32",
        r"95 \% confidence",
        "cpdrun 1.2.3 (commit 0123456789ab)",
        r"digits\_100\%",
    ):
        assert fact in table, fact


def test_the_methods_state_the_numbers_and_cite_what_the_bibliography_has(study):
    methods, references = paper.methods(study), paper.references(study)
    assert (
        "We trained ConvNet for 3 epochs with 8 data-parallel workers and a batch size of 8 per worker"
        in methods
    )
    assert "by the test accuracy of 18 runs" in methods
    assert "Of 2 candidates, 1 was certified and 1 was refuted." in methods
    assert "cpdrun 1.2.3 (commit 0123456789ab), PyTorch 2.9" in methods
    cited = {key for keys in re.findall(r"\\cite\{([^}]*)\}", methods) for key in keys.split(",")}
    assert cited == set(re.findall(r"^@\w+\{(\w+),$", references, flags=re.MULTILINE))
    assert references.count("{") == references.count("}")


def test_without_a_baseline_nothing_is_said_about_verdicts(new_sweep):
    sweep = new_sweep()
    sweep.add("e4m3", accuracy=0.9)
    study = read_study([sweep.dir])
    for text in (paper.table(study), paper.methods(study), paper.references(study)):
        assert "certified" not in text and "anytime" not in text


def test_means_have_enough_digits_to_tell_a_format_from_the_baseline(new_sweep, report, no_pictures):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, metrics={"test_loss": 0.0004512})
        sweep.add("e4m3", seed=seed, metrics={"test_loss": 0.0004513})
    shares = new_sweep("shares")
    for seed in range(2):
        shares.add(seed=seed, accuracy=0.98612, wire_bytes=168_210)
        shares.add("e4m3", seed=seed, accuracy=0.98634, wire_bytes=168_230)
    losses = (report(sweep, metric="test_loss", tolerance=1).folder / "table.md").read_text(encoding="utf-8")
    assert "| 0.0004512 |" in losses and "| 0.0004513 |" in losses
    text = (report(shares).folder / "table.md").read_text(encoding="utf-8")
    assert "| 98.61 |" in text and "| 98.63 |" in text and "168.21 kB" in text and "168.23 kB" in text
