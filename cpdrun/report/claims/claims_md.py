"""`cpdrun report --claims`: every claim judged, on the terminal and as claims.md."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cpdrun.record import SweepDir, write_text
from cpdrun.report.claims import render, values
from cpdrun.report.claims.claim import Claim, read_claims
from cpdrun.report.claims.judgement import Judgement, judge
from cpdrun.study.errors import ReportError, ReportUsageError

FILE = "claims.md"


def write_claims(
    results_dir: Path | None,
    *,
    references: Path | None = None,
    ci: float = 95,
    out: Path | None = None,
    console: Console | None = None,
    claims: Sequence[Claim] | None = None,
) -> list[Judgement]:
    """Judge every claim by the runs under `results_dir`, or by the committed values of `references` (default: those
    beside the results, or of the checkout) where a sweep was not run there. Prints them, and writes them to `out`
    (default: claims.md in `results_dir`). With `results_dir` None the committed values alone are asked.

    Raises ReportError where a file cannot be read or written.
    """
    if not 0 < ci < 100:
        raise ReportUsageError(
            f"ci={ci:g} is not a confidence level; give per cent, between 0 and 100, e.g. 95"
        )
    console = console or Console()
    found = _Sources(results_dir, references or _references(results_dir))
    judgements = [judge(claim, found, ci) for claim in (read_claims() if claims is None else claims)]
    render.on_terminal(console, judgements, ci)
    path = out or ((results_dir or Path()) / FILE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, render.as_markdown(judgements, ci))
    except OSError as error:
        raise ReportError(f"cannot write {error.filename or path}: {error.strerror}") from None
    console.print(f"in {path}: every figure", markup=False, highlight=False, soft_wrap=True)
    return judgements


class _Sources:
    """The values of a sweep by its name, read once."""

    def __init__(self, results_dir: Path | None, references: Path | None):
        self.results_dir, self.references = results_dir, references
        self._read: dict[str, list[values.Values]] = {}

    def __call__(self, sweep: str) -> Sequence[values.Values]:
        if sweep not in self._read:
            self._read[sweep] = [found for found in self._look(sweep) if found is not None]
        return self._read[sweep]

    def _look(self, sweep: str) -> list[values.Values | None]:
        here = self.results_dir / sweep if self.results_dir else None
        return [
            values.of_runs(SweepDir(here)) if here and SweepDir(here).runs_folder.is_dir() else None,
            values.of_reference(self.references / sweep) if self.references else None,
        ]


def _references(results_dir: Path | None) -> Path | None:
    beside = results_dir / "reference" if results_dir else None
    return beside if beside and beside.is_dir() else values.references()
