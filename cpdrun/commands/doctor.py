"""The command `cpdrun doctor`, which reports what this machine has and lacks, and the commands that fix it."""

import argparse
from pathlib import Path

from cpdrun.arguments import add_json, add_mode
from cpdrun.errors import UserError

DOCUMENTS = {"doctor": "cpdrun.launch.machine.doctor:DoctorDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    doctor = commands.add_parser(
        "doctor",
        help="say what this machine has and lacks, and how to fix it",
        description="Check what cpdrun uses on this machine: libraries, compiled code, GPUs, schedulers, data. For "
        "each thing that is missing, say how to get it.",
    )
    doctor.add_argument("names", nargs="*", metavar="results_dir=PATH", help="the results directory to check")
    doctor.add_argument("--results-dir", type=Path, metavar="DIR", help="the same as results_dir=DIR")
    add_mode(doctor, "--calibrate", "measure this machine for the cost model")
    add_json(doctor)
    return doctor


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.machine.doctor import DoctorDocument, examine, print_findings
    from cpdrun.record import split_results_dir

    results_dir, unknown = split_results_dir(arguments.names)
    if unknown:
        raise UserError(f"cannot read {unknown[0]!r}: doctor takes only results_dir=PATH")
    findings = examine(arguments.results_dir or results_dir)
    arguments.output.set_result(DoctorDocument(findings))
    return print_findings(arguments.output.console, findings)
