"""Files for a paper: table.tex, methods.txt and cite.bib."""

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
            value = accuracy + 0.001 * math.cos(7 * seed + 5 * ord(format[1]))
            sweep.add(format, aps=aps, seed=seed, accuracy=value, env=ENV)
    return read_study([sweep.dir], tolerance=1.0)


def test_table_tex_is_a_booktabs_table_with_verdicts_and_a_caption(study):
    table = paper.table(study)
    for name in ("table", "tabular"):
        assert table.count(rf"\begin{{{name}}}") == table.count(rf"\end{{{name}}}") == 1
    order = [table.index(rf"\{name}") for name in ("caption{", "label{", "toprule", "midrule", "bottomrule")]
    assert order == sorted(order)
    (columns,) = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", table)
    header, *rows = (
        line.removesuffix(r" \\").strip().split(" & ") for line in table.splitlines() if " & " in line
    )
    assert {len(row) for row in (header, *rows)} == {len(columns)}
    text = re.sub(r"\\[\\{}%]", "", table)
    assert text.count("{") == text.count("}") and "%" not in text.split("\n", 1)[1]
    verdicts = {row[0]: row[header.index("verdict")] for row in rows}
    assert verdicts == {"fp32": "baseline", "e4m3": "certified", "e3m0": "refuted"}
    assert "workers" not in header and "n" not in header and "workers 8" in table
    facts = [
        "Test accuracy in",
        "the mean over 6 seeds",
        r"95\% interval",
        r"95\% confidence",
        r"digits\_100\%",
    ]
    facts += ["at most 1 point worse than that of fp32", "cpdrun 1.2.3 (commit 0123456789ab)"]
    assert [fact for fact in facts if fact not in table] == []


def test_methods_state_the_numbers_and_cite_the_bibliography(study):
    methods, references = paper.methods(study), paper.references(study)
    for said in (
        "We trained ConvNet for 3 epochs with 8 data-parallel workers and a batch size of 8 per worker",
        "by the test accuracy of 18 runs",
        "Of 2 candidates, 1 was certified and 1 was refuted.",
        "cpdrun 1.2.3 (commit 0123456789ab), PyTorch 2.9",
    ):
        assert said in methods
    cited = {key for keys in re.findall(r"\\cite\{([^}]*)\}", methods) for key in keys.split(",")}
    assert cited == set(re.findall(r"^@\w+\{(\w+),$", references, flags=re.MULTILINE))
    assert references.count("{") == references.count("}")


def test_without_a_baseline_there_is_no_word_about_verdicts(new_sweep):
    sweep = new_sweep()
    sweep.add("e4m3", accuracy=0.9)
    study = read_study([sweep.dir])
    for text in (paper.table(study), paper.methods(study), paper.references(study)):
        assert "certified" not in text and "anytime" not in text


def test_means_have_enough_digits_to_differ_from_the_baseline(new_sweep, report):
    losses, shares = new_sweep("losses"), new_sweep("shares")
    for seed in range(2):
        for format, loss, share, sent in (("fp32", 4512, 0.98612, 168_210), ("e4m3", 4513, 0.98634, 168_230)):
            losses.add(format, seed=seed, metrics={"test_loss": loss / 1e7})
            shares.add(format, seed=seed, accuracy=share, wire_bytes=sent)
    text = (report(losses, metric="test_loss", tolerance=1).folder / "table.md").read_text(encoding="utf-8")
    assert "| 0.0004512 |" in text and "| 0.0004513 |" in text
    text = (report(shares).folder / "table.md").read_text(encoding="utf-8")
    assert "| 98.61 |" in text and "| 98.63 |" in text and "168.21 kB" in text and "168.23 kB" in text
