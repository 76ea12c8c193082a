"""One writer a kind of file: `--format md,csv,tex,parquet,html`. The pictures' kinds are matplotlib's."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from cpdrun.record import write_bytes, write_text
from cpdrun.report.errors import ReportUsageError
from cpdrun.report.page import markup
from cpdrun.report.tables import Shown

# What a writer gets: the file without its suffix, the numbers, and the table as shown.
Writer = Callable[[Path, pd.DataFrame, Shown], Path]


def csv(stem: Path, numbers: pd.DataFrame, shown: Shown) -> Path:
    """Text that a spreadsheet would take for a formula has an apostrophe before it; numbers stay numbers."""
    text = io.StringIO()
    texts = {
        name: numbers[name].map(_no_formula) for name in numbers.columns if numbers[name].dtype == object
    }
    numbers.assign(**texts).rename(columns=_no_formula).to_csv(text, index=False, lineterminator="\n")
    return _text(stem.with_suffix(".csv"), text.getvalue())


def md(stem: Path, numbers: pd.DataFrame, shown: Shown) -> Path:
    return _text(stem.with_suffix(".md"), markup.markdown(shown))


def tex(stem: Path, numbers: pd.DataFrame, shown: Shown) -> Path:
    return _text(stem.with_suffix(".tex"), markup.latex(shown))


def parquet(stem: Path, numbers: pd.DataFrame, shown: Shown) -> Path:
    """Raises ReportUsageError where pyarrow, which pandas needs for it, is not installed."""
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


def _no_formula(value: Any) -> Any:
    """As OWASP's "CSV Injection" has it: a cell that starts with = + - @, a tab or a carriage return."""
    if (
        not isinstance(value, str)
        or not value.startswith(("=", "+", "-", "@", "\t", "\r"))
        or _is_number(value)
    ):
        return value
    return f"'{value}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
