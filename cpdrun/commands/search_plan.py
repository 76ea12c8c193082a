"""The command `cpdrun search --plan`.

It lists the runs that a search would start next, and the candidates whose verdicts these runs would help to decide.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cpdrun.arguments import add_json, add_overrides
from cpdrun.errors import OK, UserError

if TYPE_CHECKING:
    from rich.table import Table

    from cpdrun.search.next import Next

# Keys that the search chooses itself or that follow from the folder.
IMPLIED = ("seed", "name", "results_dir")

DOCUMENTS = {"next": "cpdrun.search.documents:NextDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    following = commands.add_parser(
        "search --plan",
        description="From the finished runs, list the runs that a search would start next, in their order: how long "
        "they take, which candidates they concern, and how certain each candidate's answer is. Nothing is started.",
        epilog="Example: cpdrun search --plan exp=digits_search --budget 2h. For an existing sweep: cpdrun search "
        "--plan NAME",
    )
    add_overrides(following, "exp=NAME, key=value, search.key=value; or first the name or folder of a sweep")
    budget = "at most N further runs, or a core time T such as 2h or 90min"
    following.add_argument("--budget", metavar="T|N", help=budget)
    add_json(following)
    return following


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.search import next as following
    from cpdrun.search.question import ask
    from cpdrun.search.results import Results
    from cpdrun.search.settings import budget

    if not arguments.overrides:
        raise UserError(
            "name an experiment or a sweep: cpdrun search --plan exp=digits_search, or cpdrun search --plan SWEEP"
        )
    words = _words(arguments.overrides)
    limit = budget(arguments.budget)
    results = Results(ask(words, arguments.config_dir, imports=False))
    found = following.look(results, limit)
    output = arguments.output
    output.set_result(following.facts(found, words))
    console = output.console
    if found.runs:
        console.print(_table(found))
    for line in following.says(found):
        console.print(line, soft_wrap=True, markup=False)
    if (typed := following.command(found, words)) is not None:
        console.print(f"To run them: {typed}", soft_wrap=True, markup=False)
    return OK


def _words(typed: list[str]) -> list[str]:
    """Return the overrides of a search.

    If the first word names an existing sweep, the overrides are those that created it, changed by the other words.

    Raises:
        UserError: The manifest of the sweep does not contain its overrides.
    """
    if "=" in typed[0]:
        return typed
    from cpdrun.record import find_sweeps, read_manifest

    name, *more = typed
    folders = [word for word in more if word.startswith("results_dir=")]
    [sweep] = find_sweeps([name, *folders])
    try:
        manifest = read_manifest(sweep)
    except (OSError, ValueError):
        manifest = None
    made_by = manifest.get("overrides") if isinstance(manifest, Mapping) else None
    if not isinstance(made_by, list):
        raise UserError(
            f"{sweep.manifest} does not say which words made its runs. Type them: cpdrun search --plan exp=NAME"
        )
    others = {*IMPLIED, *(word.split("=")[0] for word in more)}
    kept = [str(word) for word in made_by if str(word).lstrip("+").split("=")[0] not in others]
    where = [f"name={sweep.name}", f"results_dir={Path(sweep.path).parent}"]
    return [*kept, *where, *(word for word in more if word not in folders)]


def _table(found: "Next") -> "Table":
    from rich.table import Table
    from rich.text import Text

    from cpdrun.launch.progress.display import duration

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for heading in ("", "run", "seed", "takes", "says something of", "within the budget"):
        if heading != "within the budget" or found.budget is not None:
            table.add_column(heading, no_wrap=heading != "says something of")
    for number, run in enumerate(found.runs, 1):
        time = "not known" if run.seconds is None else duration(run.seconds)
        of = ", ".join(run.candidates) + (" (ahead)" if run.is_ahead else "")
        cells = [str(number), run.label, str(run.ask[1]), time, of]
        fits = {True: "yes", False: "no", None: "not known"}[run.fits]
        table.add_row(*map(Text, cells if found.budget is None else [*cells, fits]))
    return table
