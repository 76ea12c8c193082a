"""The class `Answer`, which holds and displays the document of a command."""

import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpdrun.errors import OK

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ROWS_SHOWN = 20
# The key of each kind of document that contains its sentences. The default is "says".
SAYS = {"report": "sentences", "explain": "sentences"}
# The key of each kind of document that contains its rows. A second key leads to nested rows.
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

    docs/json.md describes the documents. They contain only plain data, so `dict(answer)` can be written to a file.
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
        """The answer as sentences. For a sweep, they count its runs by status."""
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
        """The rows of the document as a DataFrame; empty if it has none.

        The rows are the runs of a sweep, the candidates of a search, the groups of a report, and so on.
        """
        import pandas as pd

        return pd.DataFrame(_flat(row) for row in _rows(self._document, ROWS.get(self.kind, ())))

    def load(self) -> "pd.DataFrame":
        """Return a DataFrame with one row per run of the sweep (`cpdrun.load`)."""
        from cpdrun.api.read import load

        return load(self.path)

    def plot(self, name: str, **keywords: Any) -> "Figure":
        """Return a plot of the sweep (`cpdrun.plot`)."""
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
    """Yield the plan of a sweep, its runs by status, and a line for each failed run."""
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
    """Yield the rows to which the keys lead. A nested row also gets the plain values of the rows around it."""
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
    """Replace nested dictionaries of a row by keys such as `metrics.test_accuracy`."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
