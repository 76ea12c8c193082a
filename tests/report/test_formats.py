"""csv, markdown, LaTeX, parquet and pivots, with names that try to break them."""

import csv
import math
import shutil
import subprocess

import pandas as pd
import pytest
from made_up import fill_digits

from cpdrun.report import ReportUsageError
from cpdrun.report.page import markup, table_files
from cpdrun.report.tables import Shown

HOSTILE = [
    "<script>alert(1)</script>",
    "50%_of_data",
    r"\input{/etc/passwd} $x^2$ {}~#&",
    "naïve Straße 数据 \N{PILE OF POO} α",
    "a|b\nc\td`e`*f*[g](h)",
    "=cmd|'/C calc'!A0",
    "[bold red]rich[/]",
]


@pytest.fixture
def hostile(new_sweep):
    """Make a sweep with hostile formats and a hostile option."""
    sweep = new_sweep("50%_of_data")
    for i, text in enumerate(HOSTILE):
        for seed in range(2):
            sweep.add(seed=seed, accuracy=0.99, tag=text)
            sweep.add(text if i < 2 else "e3m0", aps=True, seed=seed, accuracy=0.9 + 0.001 * seed, tag=text)
    return sweep


def test_hostile_names_are_text_in_every_table(hostile, report):
    made = report(hostile)
    with (made.folder / "table.csv").open(encoding="utf-8", newline="") as file:
        assert {row["tag"].removeprefix("'") for row in csv.DictReader(file)} == set(HOSTILE)
    text = (made.folder / "table.md").read_text(encoding="utf-8")
    columns = [len(line.replace("\\|", "").split("|")) for line in text.splitlines() if line.startswith("| ")]
    assert sorted(set(columns)) == [5, 14] and columns == sorted(
        columns
    )  # the answers' table, then the means
    assert "<script" not in text and "](h)" not in text.replace("\\]", "")
    assert "[bold red]rich[/]" in made.printed and "\x1b" not in made.printed


def test_control_characters_reach_neither_the_terminal_nor_a_file(new_sweep, report):
    """Escape sequences, and marks that turn the direction of text: `cat table.md` would obey them."""
    sweep = new_sweep()
    for seed in range(2):
        sweep.add("fp32", seed=seed, accuracy=0.9, tag="\x1b]0;owned\x07")
        sweep.add("e3m0", seed=seed, accuracy=0.9, tag="\u202egpj.exe\u200b")
    made = report(sweep, formats=["md", "csv", "html", "tex"])
    texts = [
        path.read_text(encoding="utf-8")
        for path in made.files
        if path.suffix in (".md", ".csv", ".html", ".tex")
    ]
    assert len(texts) == 6 and "owned" in texts[0]
    for text in (made.printed, *texts):
        assert not set(text) & set("\x1b\x07\u202e\u200b")


def test_cells_of_csv_files_are_no_formulas(new_sweep, report, tmp_path):
    texts = ["=cmd|' /C calc'!A0", "@SUM(1+1)", "--help", "\t=1+1", "+1", "-0.5"]
    sweep = new_sweep()
    for text in texts:
        for seed in range(2):
            sweep.add(seed=seed, accuracy=0.99, tag=text)
            sweep.add("e3m0", seed=seed, accuracy=0.9, tag=text)
    made = report(sweep, rows=["tag"], cols=["format"])
    for name in ("table", "details", "runs", "pivot"):
        with (made.folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            cells = {cell for row in csv.reader(file) for cell in row}
        assert {f"'{text}" for text in texts[:4]} | set(texts[4:]) <= cells, name
        assert not cells & set(texts[:4])
    column = pd.Series(["+cmd", "plain", -0.5, None], dtype=object)
    path = table_files.csv(tmp_path / "table", pd.DataFrame({"=name": column}), Shown([], []))
    with path.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["'=name"], ["'+cmd"], ["plain"], ["-0.5"], [""]]


def has_booktabs() -> bool:
    finder = shutil.which("kpsewhich")
    return bool(finder) and subprocess.run([finder, "booktabs.sty"], capture_output=True).returncode == 0


@pytest.mark.skipif(
    shutil.which("pdflatex") is None or not has_booktabs(),
    reason="no pdflatex with booktabs (Debian: apt-get install texlive-latex-recommended)",
)
def test_latex_compiles(hostile, report, tmp_path):
    made = report(hostile, formats=["tex"], rows=["tag"], cols=["format"])
    head = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage[utf8]{inputenc}\usepackage{textcomp,booktabs}"
    for name in ("table", "pivot"):
        table = (made.folder / f"{name}.tex").read_text(encoding="utf-8")
        page = f"{head}\\begin{{document}}\\tiny\n{table}\\end{{document}}\n"
        (tmp_path / "page.tex").write_text(page, encoding="utf-8")
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "page.tex"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=600
        )
        assert done.returncode == 0, done.stdout[-2000:]
        assert (tmp_path / "page.pdf").stat().st_size > 1000


def test_latex_is_escaped():
    """The only characters that LaTeX acts on are those of our own escapes."""
    for text in HOSTILE:
        rest = markup.escape_latex(text)
        for escape in sorted(set(markup.LATEX.values()), key=len, reverse=True):
            rest = rest.replace(escape, "")
        assert not set(rest) & set("\\{}$&%#_~^<>|\"'`")
        assert all(c.isascii() or c in "ïß" for c in rest)
    assert markup.latex(Shown(["format", "accuracy"], [["e3m0", "98.9 ± 0.2"]])).splitlines() == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"format & accuracy \\",
        r"\midrule",
        r"e3m0 & 98.9 $\pm$ 0.2 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_parquet_has_the_numbers(hostile, report):
    pytest.importorskip("pyarrow", reason="parquet needs pyarrow (the extra `parquet`)")
    table = pd.read_parquet(report(hostile, formats=["parquet"]).folder / "table.parquet")
    assert set(table["tag"]) == set(HOSTILE)
    assert table.loc[table["format"] == "fp32", "test_accuracy_mean"].tolist() == [0.99] * len(HOSTILE)


def test_details_have_differences_and_bytes(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.99, wire_bytes=4000)
        sweep.add("e4m3", seed=seed, accuracy=0.98 + 0.002 * seed, wire_bytes=1000)
    table = pd.read_csv(report(sweep).folder / "details.csv").set_index("format")
    assert table.loc["e4m3", "vs_baseline"] == pytest.approx(-0.009)
    assert (table.loc["e4m3", "verdict"], table.loc["e4m3", "pairs"]) == ("open", 2)
    assert table["bytes_per_step"].to_dict() == {"fp32": 4000, "e4m3": 1000}


def test_pivot_puts_axes_where_they_are_asked_for(new_sweep, report):
    sweep = new_sweep()
    for world_size in (4, 8):
        fill_digits(sweep, seeds=1, world_size=world_size)
    made = report(sweep, rows=["format"], cols=["aps", "world_size"])
    table = pd.read_csv(made.folder / "pivot.csv")
    columns = [f"APS {aps}, workers {n}" for aps in ("no", "yes") for n in (4, 8)]
    assert list(table.columns) == ["format", *columns]
    assert list(table["format"]) == ["fp32", "e5m2", "e4m3", "e3m4", "e4m1", "e3m2", "e3m0"]
    long = pd.read_csv(made.folder / "table.csv").set_index(["format", "aps", "world_size"])
    table = table.set_index("format")
    assert table.loc["e3m0", columns[3]] == pytest.approx(long.loc[("e3m0", True, 8), "test_accuracy_mean"])
    assert table[columns[2]].isna()["fp32"]
    assert "APS yes," in made.printed and made.document().layout[0]["format"] == "fp32"
    for axis, message in (
        ("seed", "no axis 'seed'"),
        ("colour", r"no axis 'colour'.*format, aps, world_size"),
        ("formt", r"no axis 'formt'.*did you mean 'format'"),
    ):
        with pytest.raises(ReportUsageError, match=message):
            report(sweep, rows=[axis])


def test_pivot_never_mixes_configs(new_sweep, report):
    sweep = new_sweep()
    for lr in (0.1, 0.2):
        for seed in range(2):
            sweep.add("e3m0", seed=seed, accuracy=lr, optim={"lr": lr})
    table = pd.read_csv(report(sweep, rows=["format"]).folder / "pivot.csv")
    assert table["optim.lr"].tolist() == [0.1, 0.2]
    assert table["test_accuracy_mean"].tolist() == pytest.approx([0.1, 0.2])


def test_pivot_of_several_sweeps_has_a_column_for_each_model(new_sweep, report):
    """The sweep is no axis of the table, because the model determines it. In one sweep, the model does not vary."""
    sweeps = [new_sweep("a"), new_sweep("b")]
    for sweep, model in zip(sweeps, ("ConvNet", "MLP"), strict=True):
        for seed in range(5):
            for format, aps, mean in (("fp32", False, 0.98), ("e4m3", True, 0.979), ("e3m0", False, 0.3)):
                value = mean + 0.001 * math.cos(7 * seed + 5 * ord(format[1]))
                config = {"_target_": f"cpdrun.models.{model}"}
                sweep.add(format, aps=aps, seed=seed, accuracy=value, model=config)
    asked = {"rows": ["format", "aps"], "cols": ["model"], "tolerance": 1.0, "formats": ["md", "csv", "tex"]}
    made = report(*sweeps, **asked)
    table = pd.read_csv(made.folder / "pivot.csv")
    assert list(table.columns) == ["format", "aps", "model ConvNet", "model MLP"]
    assert len(table) == 3 and not table.isna().any().any()
    text = (made.folder / "pivot.md").read_text(encoding="utf-8")
    assert "| e4m3 | yes | 97.9 ✓ | 97.9 ✓ |" in text and "| e3m0 | no | 30.0 ✗ | 30.0 ✗ |" in text
    tex = (made.folder / "pivot.tex").read_text(encoding="utf-8")
    assert r"e4m3 & yes & 97.9 \textsuperscript{c} &" in tex and "Superscript c: certified" in tex
    one = pd.read_csv(report(sweeps[0], **asked).folder / "pivot.csv")
    assert list(one.columns) == ["format", "aps", "model ConvNet"] and not one.isna().any().any()
