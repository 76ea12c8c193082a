"""`cpdrun doctor`: what this machine has, what it lacks, and what mends it."""

import argparse
from dataclasses import asdict
from pathlib import Path

from cpdrun.arguments import add_json
from cpdrun.errors import UserError


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    doctor = commands.add_parser("doctor", help="what this machine has, what it lacks, and what mends it")
    doctor.add_argument(
        "names", nargs="*", metavar="results_dir=PATH", help="where results are to be written"
    )
    doctor.add_argument("--results-dir", type=Path, metavar="DIR", help="the same")
    add_json(doctor)
    return doctor


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.machine.doctor import examine, print_findings
    from cpdrun.record import split_results_dir

    results_dir, unknown = split_results_dir(arguments.names)
    if unknown:
        raise UserError(f"cannot read {unknown[0]!r}; doctor takes results_dir=PATH alone")
    findings = examine(arguments.results_dir or results_dir)
    arguments.telling.tell({"findings": [asdict(finding) for finding in findings]})
    return print_findings(arguments.telling.console, findings)
