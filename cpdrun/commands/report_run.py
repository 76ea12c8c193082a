"""The command `cpdrun report RUN`, which explains why a run is worse than its baseline and what would fix it."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cpdrun.errors import OK, UserError

if TYPE_CHECKING:
    from cpdrun.record import RunDir

DOCUMENTS = {"explain": "cpdrun.report.diagnosis:Explanation"}


def report_run(arguments: argparse.Namespace, runs: "Sequence[RunDir]") -> int:
    """Print why a run is worse than its baseline, and return the exit code.

    Raises:
        UserError: More than one run was named.
    """
    from cpdrun.report.diagnosis import explain
    from cpdrun.whatif.diagnosis import diagnose

    if len(runs) != 1:
        raise UserError(f"{len(runs)} runs were named. Name either one run, or one or more sweeps")
    found = explain(diagnose(runs[0]))
    arguments.output.set_result(found, "explain")
    for line in found.sentences:
        arguments.output.print(line)
    return OK
