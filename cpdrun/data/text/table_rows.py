"""The rows of a table of texts: a file in CSV, JSON lines or parquet, or a dataset of the Hugging Face hub."""

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from custom_fp.suggestions import did_you_mean

from cpdrun.data.base import DataError
from cpdrun.data.text.tokenizer import INSTALL
from cpdrun.hub import find_hub_problem


@dataclass
class Rows:
    """Texts and their labels.

    Attributes:
        texts: The texts, all nonempty.
        labels: The labels as in the table, or [] if they are not needed.
        sources: The name and the number of rows of each table, in order.
        chosen: The indices of these rows in the tables. None stands for all rows.
    """

    texts: list[str] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    sources: list[tuple[str, int]] = field(default_factory=list)
    chosen: Sequence[int] | None = None

    def place(self, index: int) -> str:
        """Return a description of a row, such as `train.csv, row 7`. The first row below the header is row 1."""
        index = index if self.chosen is None else self.chosen[index]
        for name, rows in self.sources:
            if index < rows:
                return f"{name}, row {index + 1}"
            index -= rows
        raise IndexError(index)

    def subset(self, indices: Sequence[int]) -> "Rows":
        """Return some of all rows."""
        labels = [self.labels[i] for i in indices] if self.labels else []
        return Rows([self.texts[i] for i in indices], labels, self.sources, indices)


def read_files(key: str, paths: str | Sequence[str], text: Sequence[str], label: str | None) -> Rows:
    """Return the rows of one or several files.

    Args:
        key: The setting that names the files, for messages.
        paths: The files: .csv, .tsv, .jsonl, .json or .parquet. All except .parquet may be compressed (.gz).
        text: The columns of the text. Several columns are joined by a newline.
        label: The column of the labels. With None, labels are not read.

    Raises:
        DataError: A file cannot be read, a column is missing, or a text or a label is empty.
    """
    rows = Rows()
    for path in [paths] if isinstance(paths, str) else paths:
        file = Path(path).expanduser()
        _append(rows, file.name, _read(key, file, [*text, *([label] if label else [])]), text, label)
    return rows


def read_dataset(
    name: str,
    config: str | None,
    revision: str | None,
    split: str,
    text: Sequence[str],
    label: str | None,
) -> Rows:
    """Return the rows of one split of a dataset of the Hugging Face hub, or of a folder that `datasets` can read.

    Args:
        name: The name of the dataset, or a folder. A folder is read without any access to the network.
        config: The name of the configuration, if the dataset has several.
        revision: The branch, tag or commit on the hub. With None, it is the newest one.
        split: The name of the split, such as train or train[:1000].
        text: The columns of the text. Several columns are joined by a newline.
        label: The column of the labels. With None, labels are not read.

    Raises:
        DataError: The dataset cannot be loaded, a column is missing, or a text or a label is empty.
    """
    try:
        import datasets
    except ImportError:
        raise DataError(f"data.dataset={name} needs the library datasets: {INSTALL}") from None
    folder = Path(name).expanduser()
    if not folder.is_dir() and (problem := find_hub_problem(name, "dataset")):
        raise DataError(f"data.dataset: {problem}")
    datasets.disable_progress_bars()
    place = str(folder) if folder.is_dir() else name
    try:
        table = datasets.load_dataset(place, config, split=split, revision=revision).to_pandas()
    except Exception as error:  # The library raises many kinds of exceptions.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"data.dataset={name}: the split {split} cannot be loaded: {reason}") from None
    rows = Rows()
    _append(rows, f"{name} ({split})", table, text, label)
    return rows


def _read(key: str, file: Path, columns: list[str]) -> pd.DataFrame:
    def read_csv(path: Path, separator: str = ",") -> pd.DataFrame:
        # A text may be `NA` or `null`, and a label such as 01 is no number. So only empty fields are missing values.
        types = dict.fromkeys(columns, str)
        return pd.read_csv(path, sep=separator, dtype=types, keep_default_na=False, na_values=[""])

    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": read_csv,
        ".tsv": partial(read_csv, separator="\t"),
        ".jsonl": _read_json_lines,
        ".json": _read_json_lines,
        ".parquet": pd.read_parquet,
    }
    suffix = Path(file.name.removesuffix(".gz")).suffix.lower()
    if suffix not in readers:
        raise DataError(
            f"data.{key}={file}: a table must be a file that ends in {', '.join(readers)}, not in {suffix or 'nothing'}"
        )
    try:
        return readers[suffix](file)
    except ImportError:
        raise DataError(f"data.{key}={file} needs the library pyarrow: {INSTALL}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"data.{key}: {file} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    except ValueError as error:  # the errors of the parsers are subclasses
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"data.{key}: {file} is not a table in the format {suffix}: {reason}") from None


def _read_json_lines(file: Path) -> pd.DataFrame:
    """Read a file with one JSON object per line. Unlike pandas.read_json, this converts no dates and numbers."""
    rows = []
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not a JSON object")
            rows.append(row)
    return pd.DataFrame(rows)


def _append(rows: Rows, name: str, table: pd.DataFrame, text: Sequence[str], label: str | None) -> None:
    """Append the rows of a table in place."""
    present = [str(column) for column in table.columns]
    for key, column in [*(("text", column) for column in text), *([("label", label)] if label else [])]:
        if column not in present:
            raise DataError(
                f"data.{key}={column}: {name} has no such column{did_you_mean(column, present)}. It has "
                f"{', '.join(present)}. Name its columns with data.text and data.label"
            )
    rows.sources.append((name, len(table)))
    for column in [*text, *([label] if label else [])]:
        empty = table[column].map(lambda value: value is None or value != value or not str(value).strip())
        if empty.any():
            place = rows.place(len(rows.texts) + int(empty.to_numpy(dtype=bool).argmax()))
            raise DataError(
                f"{place}: the column {column} is empty ({int(empty.sum())} of {len(table)} rows)"
            )
    rows.texts += ["\n".join(map(str, values)) for values in zip(*(table[c] for c in text), strict=True)]
    rows.labels += table[label].tolist() if label else []
