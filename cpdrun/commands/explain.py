"""`cpdrun explain`: why a run is worse than its baseline, and what would fix it."""

import argparse

from cpdrun.arguments import add_json, add_names
from cpdrun.errors import OK, UserError


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    explain = commands.add_parser(
        "explain",
        help="why a run is worse, and what would fix it",
        description="Explain why a run is worse than its baseline: which layers lose what, when, and what would help.",
    )
    add_names(explain, "+", "name of a run, or a part of it that no other has")
    add_json(explain)
    return explain


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.record import find_sweeps_or_runs
    from cpdrun.report.diagnosis.explanation import explain
    from cpdrun.whatif.diagnose.diagnose import diagnose, worst_run

    sweeps, runs = find_sweeps_or_runs(arguments.names)
    if sweeps:
        worst = worst_run(sweeps[0])
        advice = (
            f"name one of its runs, such as the worst: {worst.path}"
            if worst
            else "none of its runs has ended"
        )
        raise UserError(f"{sweeps[0].name} is a sweep: {advice}")
    if len(runs) != 1:
        raise UserError(f"explain takes the name of one run, not of {len(runs)}")
    found = explain(diagnose(runs[0]))
    arguments.telling.tell(found.as_json())
    for line in found.sentences:
        arguments.telling.say(line)
    return OK
