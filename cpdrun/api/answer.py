"""What a function of cpdrun hands back: the document of its command, which shows itself as a text and as a table."""

import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpdrun.errors import OK

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ROWS_SHOWN = 20
# by kind of document: where its sentences stand, and where its rows; those within a row come one by one
SAYS = {"report": "sentences", "explain": "sentences"}
ROWS = {
    "sweep": ("runs",),
    "search": ("chains", "candidates"),
    "next": ("runs",),
    "predict": ("chains", "candidates"),
    "judge": ("candidates",),
    "screen": ("effects",),
    "report": ("table",),
    "status": ("sweeps", "runs"),
    "work": ("sweeps",),
    "calibrate": ("forecast",),
    "formats": ("formats",),
    "vectors": ("vectors",),
    "doctor": ("findings",),
}


class Answer(Mapping[str, Any]):
    """A document as docs/json.md says it, read by its keys: `answer["runs"]`. It is plain data: `dict(answer)` may be
    written to a file."""

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
        """`sweep`, `search` ...: the name in its schema."""
        return self["schema"].partition(".")[2].partition("/")[0]

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 if all runs finished, 1 if a run failed."""
        return self["exit_code"]

    @property
    def is_ok(self) -> bool:
        return self.exit_code == OK

    @property
    def says(self) -> list[str]:
        """The answer as sentences. For a sweep, they count the runs by status."""
        if self.kind == "sweep":
            return list(_of_sweep(self))
        return list(self.get(SAYS.get(self.kind, "says")) or [])

    @property
    def path(self) -> Path:
        """The sweep's folder. Raises AttributeError where it is not of one."""
        if not isinstance(self.get("sweep"), str):
            raise AttributeError(f"the answer of cpdrun.{self.kind} is of no one sweep")
        return Path(self["sweep"])

    @property
    def table(self) -> "pd.DataFrame":
        """Its rows: of a sweep its runs, of a search its candidates, of a report the groups of runs ... Empty where it
        has none."""
        import pandas as pd

        return pd.DataFrame(_flat(row) for row in _rows(self._document, ROWS.get(self.kind, ())))

    def load(self) -> "pd.DataFrame":
        """All runs of the sweep, one a row: `cpdrun.load(answer.path)`."""
        from cpdrun.api.read import load

        return load(self.path)

    def plot(self, name: str, **keywords: Any) -> "Figure":
        """`cpdrun.plot(answer.path, name)`."""
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
    """Those at the end of `keys`, each with the single values of what it stands in."""
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
    """`metrics.test_accuracy`; lists stay."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
