"""Write the parts of a report for a paper: table.tex, methods.txt and cite.bib."""

import re
from pathlib import Path
from typing import Any

import cpdrun
from cpdrun.record import write_text
from cpdrun.report.page.markup import escape_latex
from cpdrun.report.render import render, render_file
from cpdrun.report.tables import OWN_SPREAD, Shown, full
from cpdrun.study.axes import axis_text, plain
from cpdrun.study.collect import finished
from cpdrun.study.study import Study
from cpdrun.study.verdicts import MARKS, Kind

_COMMIT_LETTERS = 12
# The config keys whose values the methods paragraph gives, keyed by the names that the template uses.
_SETTINGS = {
    "model": "model._target_",
    "data": "data._target_",
    "optimizer": "optim._target_",
    "epochs": "epochs",
    "batch_size": "batch_size",
    "workers": "world_size",
}


def write(folder: Path, study: Study) -> list[Path]:
    """Write table.tex, methods.txt, and cite.bib, and return the paths."""
    texts = {"table.tex": table(study), "methods.txt": methods(study), "cite.bib": references(study)}
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def table(study: Study) -> str:
    r"""Return a LaTeX table with a caption. It needs \usepackage{booktabs} and \usepackage[T1]{fontenc}.

    Constant columns are moved to the caption. Verdicts are words without marks.
    """
    shown, left_out = _without_constants(full(study))
    marks = tuple(f"{mark} " for mark in MARKS.values())
    rows = [
        [escape_latex(cell[2:] if cell.startswith(marks) else cell) for cell in row] for row in shown.rows
    ]
    caption = render("table_caption.j2", constants=left_out, **_facts(study))
    return render_file(
        "table.tex.j2",
        caption=escape_latex(caption),
        label=re.sub(r"[^A-Za-z0-9]+", "-", "-".join(study.sweeps)),
        columns="".join("l" if name in (shown.header[0], "verdict") else "r" for name in shown.header),
        header=[escape_latex(name) for name in shown.header],
        rows=rows,
    )


def methods(study: Study) -> str:
    """Return a paragraph that describes how the runs were trained and compared."""
    return render("methods.txt.j2", **_facts(study)) + "\n"


def references(study: Study) -> str:
    """Return the BibTeX entries that the methods paragraph cites."""
    return render_file("cite.bib.j2", **_facts(study))


def _without_constants(shown: Shown) -> tuple[Shown, dict[str, str]]:
    """Return the table without constant columns, and the values of these columns.

    The first column is always kept, and a single row keeps all columns. Values without information ("-", "0", "0 B")
    and the intervals from a group's own pairs are dropped.
    """
    kept, constants = [], {}
    for i, name in enumerate(shown.header):
        cells = {row[i] for row in shown.rows}
        if name == OWN_SPREAD:
            continue
        if i == 0 or len(cells) > 1 or len(shown.rows) == 1:
            kept.append(i)
        elif not cells & {"-", "0", "0 B"}:
            constants[name] = cells.pop()
    rows = [[row[i] for i in kept] for row in shown.rows]
    return Shown([shown.header[i] for i in kept], rows, sum(i < shown.n_labels for i in kept)), constants


def _facts(study: Study) -> dict[str, Any]:
    runs, seeds = finished(study.runs), [len(group.values) for group in study.groups if group.values]
    kinds = [judged.kind for judged in study.judged.values()]
    names = [
        g.full_name if study.bits_axis.is_of_gradients else g.name for g in study.groups if not g.is_baseline
    ]
    environment = {
        key: _values(study, f"env:{key}") for key in ("cpdrun", "git_commit", "torch", "python", "device")
    }
    commits = [commit[:_COMMIT_LETTERS] for commit in environment["git_commit"]]
    return {
        "sweeps": [plain(name) for name in study.sweeps],
        "metric": study.metric.words,
        "unit": "%" if study.metric.is_fraction else "",
        "higher_is_better": study.metric.higher_is_better,
        "baseline": study.baseline_name,
        "margin": study.margin_text if study.tolerance > 0 else "",
        "confidence": f"{study.ci:g}",
        "error": f"{100 - study.ci:g}",
        "n_runs": len(runs),
        "n_failed": sum(judged.failures.failed for judged in study.judged.values()),
        "fewest_seeds": min(seeds, default=0),
        "most_seeds": max(seeds, default=0),
        "candidates": list(dict.fromkeys(names)),
        "is_compared": bool(study.judged),
        "counts": {str(kind): kinds.count(kind) for kind in Kind},
        "uses_aps": any(group.aps for group in study.groups),
        "settings": {name: _values(study, key) for name, key in _SETTINGS.items()},
        "versions": environment["cpdrun"] or [cpdrun.__version__],
        "commits": commits,
        "torch": environment["torch"],
        "python": environment["python"],
        "devices": environment["device"],
    }


def _values(study: Study, column: str) -> list[str]:
    """Return the distinct known values in a column of the table of runs."""
    if column not in study.runs.columns:
        return []
    return list(dict.fromkeys(axis_text(value) for value in study.runs[column].dropna()))
