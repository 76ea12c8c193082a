"""The class `Answer`, which cpdrun's functions return.

An answer holds the document of a command, and displays it as text and as a table.
"""

import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpdrun.errors import OK

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# The maximum number of a table's rows that are displayed.
ROWS_SHOWN = 20
# For each kind of document, the key under which it has its sentences. Kinds that are not listed use "says".
SAYS = {"report": "sentences", "explain": "sentences"}
# For each kind of document, the keys that lead to its rows. The first key leads to a list of rows. A second key leads
# to a list of inner rows in each of these rows.
ROWS = {
    "sweep": ("runs",),
    "search": ("chains", "candidates"),
    "next": ("runs",),
    "predict": ("chains", "candidates"),
    "judge": ("candidates",),
    "screen": ("effects",),
    "report": ("table",),
    "plots": ("plots",),
    "status": ("sweeps", "runs"),
    "work": ("sweeps",),
    "calibrate": ("forecast",),
    "formats": ("formats",),
    "vectors": ("vectors",),
    "doctor": ("findings",),
}


class Answer(Mapping[str, Any]):
    """The document of a command, as a mapping: `answer["runs"]`.

    docs/json.md describes the documents. An answer contains only plain data, so `dict(answer)` can be written to a
    file.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = dict(document)

    def __getitem__(self, key: str) -> Any:
        return self._document[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._document)

    def __len__(self) -> int:
        return len(self._document)

    @property
    def kind(self) -> str:
        """The kind of the document, such as `sweep` or `search`."""
        return self["schema"].partition(".")[2].partition("/")[0]

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 if all runs finished, 1 if a run failed."""
        return self["exit_code"]

    @property
    def is_ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == OK

    @property
    def says(self) -> list[str]:
        """The answer as sentences. For a sweep, the sentences count its runs by status."""
        if self.kind == "sweep":
            return list(_of_sweep(self))
        return list(self.get(SAYS.get(self.kind, "says")) or [])

    @property
    def path(self) -> Path:
        """The sweep's folder.

        Raises:
            AttributeError: The answer does not belong to exactly one sweep.
        """
        if not isinstance(self.get("sweep"), str):
            raise AttributeError(f"the answer of cpdrun.{self.kind} does not belong to exactly one sweep")
        return Path(self["sweep"])

    @property
    def table(self) -> "pd.DataFrame":
        """The rows of the document as a DataFrame.

        The rows are the runs of a sweep, the candidates of a search, the groups of runs of a report, and so on. The
        DataFrame is empty if the document has no rows.
        """
        import pandas as pd

        return pd.DataFrame(_flat(row) for row in _rows(self._document, ROWS.get(self.kind, ())))

    def load(self) -> "pd.DataFrame":
        """Return a DataFrame with one row per run of the sweep, as `cpdrun.load(answer.path)` does."""
        from cpdrun.api.read import load

        return load(self.path)

    def plot(self, name: str, **keywords: Any) -> "Figure":
        """Return a plot of the sweep, as `cpdrun.plot(answer.path, name)` does."""
        from cpdrun.api.read import plot

        return plot(self.path, name, **keywords)

    def __repr__(self) -> str:
        table = self.table
        rows = "" if table.empty else table.to_string(max_rows=ROWS_SHOWN, max_cols=8, max_colwidth=60)
        body = "\n".join(filter(None, [*self.says, rows])) or repr(self._document)
        return f"<{self['schema']}, exit code {self.exit_code}>\n{body}"

    def _repr_html_(self) -> str:
        table = self.table
        said = "".join(f"<p>{html.escape(line)}</p>" for line in self.says)
        if not said and table.empty:
            return f"<pre>{html.escape(repr(self))}</pre>"
        return said + ("" if table.empty else table.to_html(max_rows=ROWS_SHOWN, notebook=True))


def _of_sweep(answer: Answer) -> Iterator[str]:
    """Yield the plan of a sweep, the number of its runs by status, and a line for each failed run."""
    yield answer["plan"]
    if answer["dry_run"]:
        seconds = answer["seconds"]
        time = "" if not seconds else f", about {seconds:.0f} s"
        yield f"{answer['done']} done, {answer['to_run']} to run{time}"
        return
    summary = answer["summary"] or {}
    counts = [("diverged", "diverged"), ("did_not_learn", "did not learn"), ("submitted", "submitted")]
    parts = [f"{summary[key]} {words}" for key, words in counts if summary.get(key)]
    yield ", ".join([f"{answer['done']} done", *parts])
    for failed in summary.get("failed", ()):
        yield f"failed: {failed['run']}: {failed['reason']}"


def _rows(value: Any, keys: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows to which the keys lead.

    If rows are nested, each inner row also has the values of the outer rows that contain it. Lists and dictionaries in
    the outer rows are left out.
    """
    if not keys:
        return
    for row in value.get(keys[0]) or ():
        if len(keys) == 1:
            yield row
            continue
        around = {key: item for key, item in row.items() if not isinstance(item, dict | list)}
        for inner in _rows(row, keys[1:]):
            yield {**around, **inner}


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a row with keys such as `metrics.test_accuracy` instead of nested dictionaries. Lists stay unchanged."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
