"""Read a table of training results.

Supported files are CSV (commas, semicolons, or tabs), JSON lines, and a JSON list. An arm is a set of runs that are
compared as a whole, such as the baseline or a candidate. In a long table, each row contains an arm, a seed, and a
value. In a wide table, every column but the seeds is an arm. Texts in a column of values:

- An empty cell, null, "failed", "crashed", and similar texts mark a failed run.
- "inf" and "diverged" mark a diverged run.
- "-" marks a run that was not made.
- "nan" is refused, because it may mean any of these.
"""

import csv
import hashlib
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from custom_fp.suggestions import did_you_mean

from cpdrun.errors import UserError
from cpdrun.stats.failures import Failure, Runs

ARM, SEED, VALUE = "arm", "seed", "value"
MAX_BYTES = 64 << 20
ONLY_ARM = "runs"  # The arm has this name if the table has no column of arms.
FAILED = ("", "failed", "crashed", "error", "killed", "oom", "none", "null")
DIVERGED = ("diverged", "inf", "-inf", "infinity", "-infinity")
NOT_MADE = "-"
# In a column of states, ENDED marks finished runs, and NOT_ENDED marks runs that have not ended yet. All other states
# mark failed runs.
ENDED = ("finished", "done", "completed", "complete", "success", "succeeded", "ok")
NOT_ENDED = ("running", "pending", "queued")

Seed = int | float | str


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns, as the user typed them.

    Attributes:
        arm: The column of arms. None for "arm".
        seed: The column of seeds. None for "seed".
        value: The column of values. None for "value".
        state: The column of states. None if there is none.
    """

    arm: str | None = None
    seed: str | None = None
    value: str | None = None
    state: str | None = None


@dataclass(frozen=True)
class Table:
    """The runs of a table.

    Attributes:
        name: The path of the file, or "stdin".
        arms: The runs of each arm, keyed by name, in the order of the file.
        is_shuffled: Whether the runs were shuffled because the table has no seeds.
        step: One unit in the last digit of the value with the most decimals.
    """

    name: str
    arms: Mapping[str, Runs]
    is_shuffled: bool = False
    step: float = 0.0

    @property
    def values(self) -> list[float]:
        """The finite values of all runs."""
        found = (value for runs in self.arms.values() for value in runs.values.values())
        return [value for value in found if math.isfinite(value)]

    def find(self, arm: str, what: str) -> Runs:
        """Return the runs of an arm, or raise a UserError that names its role, such as "baseline"."""
        if arm not in self.arms:
            there = ", ".join(self.arms)
            raise UserError(
                f"{self.name} has no {what} {arm!r}{did_you_mean(arm, self.arms)}. Its arms: {there}."
            )
        return self.arms[arm]


Row = tuple[int, Mapping[str, Any]]  # A row consists of its line number and its cells, keyed by column.
# A run consists of its seed, its value, and its line number.
Run = tuple[Seed | None, float | Failure, int]


def read_table(path: str, columns: Columns, *, needs_arms: bool = True) -> Table:
    """Read a table of results from a file.

    Args:
        path: The path of the file, or "-" for stdin.
        columns: The names of the columns. A table with a column of neither arms nor values is wide.
        needs_arms: Whether a long table must have a column of arms. If not, its runs may all belong to one arm.

    Raises:
        UserError: The file cannot be read, is empty, lacks a column, contains text instead of a number, or repeats a
            seed.
    """
    name = "stdin" if path == "-" else path
    header, rows = _rows(_text(path), name)
    if not rows:
        raise UserError(f"{name} is empty: it has no row of results.")
    is_long = (
        (columns.arm or ARM) in header or (columns.value or VALUE) in header or columns.value or columns.arm
    )
    runs = _long(header, rows, columns, name, needs_arms) if is_long else _wide(header, rows, columns, name)
    has_seeds = not is_long or (columns.seed or SEED) in header
    arms = {arm: _runs(arm, found, name, has_seeds) for arm, found in runs.items()}
    step = _step(rows, [columns.value or VALUE] if is_long else list(runs))
    return Table(name, arms, not has_seeds, step)


def _step(rows: Sequence[Row], columns: Sequence[str]) -> float:
    """Return one unit in the last digit of the value with the most decimals."""
    exponents = []
    for _, row in rows:
        for column in columns:
            try:
                exponent = Decimal(_label(row.get(column))).as_tuple().exponent
            except InvalidOperation:
                continue  # This run has no result.
            exponents += [exponent] if isinstance(exponent, int) else []
    return float(Decimal(1).scaleb(min(exponents))) if exponents else 0.0


def _text(path: str) -> str:
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UserError(f"{path} is larger than {MAX_BYTES >> 20} MiB: that is not a table of results.")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file in UTF-8: CSV or JSON lines are needed.") from None


def _rows(text: str, name: str) -> tuple[list[str], list[Row]]:
    """Return the names of the columns, and the rows with their line numbers."""
    if text.lstrip()[:1] in ("{", "["):
        rows = list(_json_rows(text, name))
        return list(dict.fromkeys(key for _, row in rows for key in row)), rows
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), "")
    delimiter = next((mark for mark in ("\t", ";") if mark in first and "," not in first), ",")
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
    found: list[Row] = []
    header: list[str] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                continue
            if len(cells) > len(header):
                raise UserError(
                    f"{name}, line {reader.line_num}: {len(cells)} cells under {len(header)} columns. Put quotes "
                    "around text that contains the delimiter."
                )
            cells += [""] * (len(header) - len(cells))
            found.append((reader.line_num, dict(zip(header, map(str.strip, cells), strict=True))))
    except csv.Error as error:
        raise UserError(f"{name}, line {reader.line_num}: {error}.") from None
    if twice := [column for column, count in Counter(header).items() if count > 1]:
        raise UserError(f"{name} has two columns named {twice[0]!r}. Rename one of them.")
    return header, found


def _json_rows(text: str, name: str) -> Iterator[Row]:
    """Yield the numbered objects of JSON lines or of a JSON list."""
    if text.lstrip().startswith("["):
        listed = _json(text, name, 1)
        numbered = list(enumerate(listed if isinstance(listed, list) else [listed], 1))
    else:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        numbered = [(number, _json(line, name, number)) for number, line in lines]
    for number, row in numbered:
        if not isinstance(row, dict):
            raise UserError(f"{name}, line {number}: a JSON object is needed, not {json.dumps(row)[:40]}.")
        yield number, row


def _json(text: str, name: str, line: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}, line {line}: not valid JSON ({error}).") from None


def _long(
    header: list[str], rows: Sequence[Row], columns: Columns, name: str, needs_arms: bool
) -> dict[str, list[Run]]:
    arm, seed, value = columns.arm or ARM, columns.seed or SEED, columns.value or VALUE
    has_arm = arm in header or needs_arms or columns.arm is not None
    needed = [*([(arm, "--arm")] if has_arm else []), (value, "--value")]
    needed += [(seed, "--seed")] if columns.seed else []
    needed += [(columns.state, "--state")] if columns.state else []
    for column, option in needed:
        _check_column(column, option, header, name)
    found: dict[str, list[Run]] = {}
    for line, row in rows:
        read = _value(row.get(value), line, value, name)
        state = str(row.get(columns.state) or "").strip().lower() if columns.state else ENDED[0]
        if read is None or state in NOT_ENDED:
            continue
        read = Failure.ERROR if state not in ENDED else read
        label = _label(row.get(arm)) if has_arm else ONLY_ARM
        if not label:
            raise UserError(f"{name}, line {line}: the column {arm!r} is empty. Every row needs its arm.")
        found.setdefault(label, []).append(
            (_seed(row.get(seed), line, seed, name, seed in header), read, line)
        )
    return found


def _wide(header: list[str], rows: Sequence[Row], columns: Columns, name: str) -> dict[str, list[Run]]:
    """Return the runs of a wide table by arm. Without a column of seeds, the row's number is the seed."""
    seed = columns.seed or SEED
    if columns.seed:
        _check_column(seed, "--seed", header, name)
    if columns.state:
        raise UserError(
            "--state needs a table with one run per row: name its columns with --arm and --value."
        )
    has_seed = seed in header
    arms = [column for column in header if column and column != seed]
    found: dict[str, list[Run]] = {arm: [] for arm in arms}
    for number, (line, row) in enumerate(rows, 1):
        key = _seed(row.get(seed), line, seed, name, True) if has_seed else number
        for arm in arms:
            read = _value(row.get(arm), line, arm, name)
            if read is not None:
                found[arm].append((key, read, line))
    return found


def _check_column(column: str, option: str, header: list[str], name: str) -> None:
    if column not in header:
        near = did_you_mean(column, header)
        there = ", ".join(header)
        raise UserError(
            f"{name} has no column {column!r}{near}. Its columns: {there}. Choose one with {option}."
        )


def _label(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _seed(cell: Any, line: int, column: str, name: str, has_seeds: bool) -> Seed | None:
    """Return the seed in a cell, or None if the table has no seeds.

    Whole numbers become int, even if a spreadsheet wrote `3.0`. Everything but a finite number stays text.
    """
    if not has_seeds:
        return None
    text = _label(cell)
    if not text:
        raise UserError(f"{name}, line {line}: the column {column!r} is empty. Every row needs its seed.")
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number if math.isfinite(number) else text


def _value(cell: Any, line: int, column: str, name: str) -> float | Failure | None:
    """Return the value in a cell.

    NaN means that the run diverged, a Failure that it failed, and None that it was not made.
    """
    text = _label(cell)
    word = text.lower()
    if word == NOT_MADE:
        return None
    if word in FAILED:
        return Failure.ERROR
    if word in DIVERGED:
        return math.nan
    try:
        number = math.nan if isinstance(cell, bool) else float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        hint = (
            "Remove the percent sign from all values."
            if text.endswith("%")
            else ("Write diverged or failed for a run without a result, and - for a run that was not made.")
        )
        raise UserError(f"{name}, line {line}: {text!r} in the column {column!r} is not a number. {hint}")
    return number if math.isfinite(number) else math.nan


def _runs(arm: str, runs: list[Run], name: str, has_seeds: bool) -> Runs:
    if not has_seeds:
        runs = _shuffled(arm, runs)
    lines: dict[Seed, int] = {}
    for seed, _, line in runs:
        if seed in lines:
            raise UserError(
                f"{name}: arm {arm!r} has seed {seed} twice, in lines {lines[seed]} and {line}. Each run needs a seed "
                "of its own. Judge runs of different models or data in separate files."
            )
        lines[seed] = line  # type: ignore[index]
    values = {seed: read for seed, read, _ in runs if not isinstance(read, Failure)}
    return Runs(values, {seed: read for seed, read, _ in runs if isinstance(read, Failure)})


def _shuffled(arm: str, runs: list[Run]) -> list[Run]:
    """Shuffle the runs of an arm, and number them as seeds.

    A file without seeds may be sorted by value. Pairing in that order would make the spread of differences far too
    small. The new order is that of hashes of the values, so it is the same in every call.
    """
    counts = Counter[str]()
    keyed = []
    for _, read, line in runs:
        text = f"{arm}\0{read!r}"
        counts[text] += 1
        keyed.append((hashlib.sha256(f"{text}\0{counts[text]}".encode()).digest(), read, line))
    return [(number, read, line) for number, (_, read, line) in enumerate(sorted(keyed, key=lambda k: k[0]))]
