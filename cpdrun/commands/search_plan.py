"""The command `cpdrun search --plan`.

It lists the runs that a search would start next, and the candidates that they help to decide.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from cpdrun.arguments import add_json, add_overrides
from cpdrun.errors import OK, UserError

# The keys whose values the search chooses itself or takes from the folder of the sweep.
IMPLIED = ("seed", "name", "results_dir")

DOCUMENTS = {"next": "cpdrun.report.search_text:NextDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    following = commands.add_parser(
        "search --plan",
        description="From the finished runs, list the runs that a search would start next, in their order: how long "
        "they take, which candidates they concern, and how certain each candidate's answer is. Nothing is started.",
        epilog="Example: cpdrun search --plan exp=digits_search --budget 2h. For an existing sweep: cpdrun search "
        "--plan NAME",
    )
    add_overrides(
        following,
        "exp=NAME, key=value, search.key=value; or instead of exp=NAME, the name or folder of a sweep",
    )
    budget = "at most N further runs, or a core time T such as 2h or 90min"
    following.add_argument("--budget", metavar="T|N", help=budget)
    add_json(following)
    return following


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.report.search_text import NextDocument, describe_plan, make_plan_table
    from cpdrun.search.plan import plan_runs
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
    plan = plan_runs(results, limit, words)
    output, lines = arguments.output, describe_plan(results, plan)
    output.set_result(NextDocument(**vars(plan), says=lines))
    if plan.runs:
        output.console.print(make_plan_table(plan))
    output.print_lines(lines)
    if plan.command is not None:
        output.print_lines([f"To start these runs: {plan.command}"])
    return OK


def _words(typed: list[str]) -> list[str]:
    """Return the overrides of the search.

    If the first argument is the name of a sweep, these are the overrides that created the sweep, changed by the other
    arguments.

    Raises:
        UserError: The manifest of the sweep does not contain its overrides.
    """
    if "=" in typed[0]:
        return typed
    from cpdrun.record import find_sweeps, read_manifest
    from cpdrun.search.question import key_of

    name, *more = typed
    folders = [word for word in more if key_of(word) == "results_dir"]
    [sweep] = find_sweeps([name, *folders])
    try:
        manifest = read_manifest(sweep)
    except (OSError, ValueError):
        manifest = None
    made_by = manifest.get("overrides") if isinstance(manifest, Mapping) else None
    if not isinstance(made_by, list):
        raise UserError(
            f"{sweep.manifest} does not contain the overrides that created the sweep. Type them, as in: "
            "cpdrun search --plan exp=NAME"
        )
    others = {*IMPLIED, *map(key_of, more)}
    kept = [str(word) for word in made_by if key_of(str(word)) not in others]
    where = [f"name={sweep.name}", f"results_dir={Path(sweep.path).parent}"]
    return [*kept, *where, *(word for word in more if word not in folders)]
