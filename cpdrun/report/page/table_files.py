"""Write a table as a CSV, Markdown, LaTeX or Parquet file."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from cpdrun.record import write_bytes, write_text
from cpdrun.report.page import markup
from cpdrun.report.tables import Shown
from cpdrun.study import ReportUsageError
from cpdrun.study.verdicts import MARKS

_LEGEND = (
    "% Superscript c: certified. Superscript r: refuted. Question mark: open. Equals sign: not tested, because the "
    "runs equal those of the baseline.\n"
)
# A writer gets the path without its suffix, the table as numbers, and the table as text. It returns the path.
Writer = Callable[[Path, pd.DataFrame, Shown], Path]


def csv(stem: Path, numbers: pd.DataFrame, shown: Shown) -> Path:
    """Write the numbers as CSV.

    Text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    text = io.StringIO()
    texts = {
        name: numbers[name].map(_cell)
        for name in numbers.columns
        if not pd.api.types.is_numeric_dtype(numbers[name])
    }
    numbers.assign(**texts).rename(columns=_cell).to_csv(text, index=False, lineterminator="\n")
    return _text(stem.with_suffix(".csv"), text.getvalue())


def md(stem: Path, numbers: pd.DataFrame, shown: Shown) -> Path:
    return _text(stem.with_suffix(".md"), markup.markdown(shown))


def tex(stem: Path, numbers: pd.DataFrame, shown: Shown) -> Path:
    """Write the text as LaTeX, with a comment that explains the marks of verdicts."""
    has_marks = any(cell.endswith(tuple(MARKS.values())) for row in shown.rows for cell in row)
    legend = _LEGEND if has_marks else ""
    return _text(stem.with_suffix(".tex"), legend + markup.latex(shown))


def parquet(stem: Path, numbers: pd.DataFrame, shown: Shown) -> Path:
    """Write the numbers as Parquet. Columns of mixed types become text.

    Raises:
        ReportUsageError: pyarrow, which pandas needs to write Parquet, is not installed.
    """
    path = stem.with_suffix(".parquet")
    mixed = [name for name in numbers.columns if numbers[name].map(type).nunique() > 1]
    numbers = numbers.astype({name: str for name in mixed if numbers[name].dtype == object})
    content = io.BytesIO()
    try:
        numbers.to_parquet(content, index=False)
    except ImportError:
        raise ReportUsageError("parquet needs pyarrow: pip install 'cpdrun[parquet]'") from None
    write_bytes(path, content.getvalue())
    return path


TABLES: dict[str, Writer] = {"csv": csv, "md": md, "tex": tex, "parquet": parquet}


def _text(path: Path, text: str) -> Path:
    write_text(path, text)
    return path


def _cell(value: Any) -> Any:
    """Escape a CSV cell: control characters become U+FFFD, formulas get an apostrophe.

    A spreadsheet takes text for a formula if it starts with =, +, -, @, a tab or a carriage return (OWASP, "CSV
    Injection"). Text that is a number is not changed.
    """
    if not isinstance(value, str):
        return value
    text = markup.without_controls(value)
    is_formula = text.startswith(("=", "+", "-", "@", "\t", "\r")) and not _is_number(text)
    return f"'{text}" if is_formula else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
