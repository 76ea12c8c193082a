"""The command `cpdrun logs`, which prints the output of runs."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from cpdrun.arguments import add_json, add_names, count
from cpdrun.errors import OK, UserError
from cpdrun.shell.sanitize import visible_line


@dataclass
class RunLog:
    """The output of a run.

    Attributes:
        run: The name of the run.
        log: The path of the log file.
        lines: The lines of the log file.
    """

    run: str
    log: Path
    lines: list[str]


@dataclass
class LogsDocument:
    """The output of the named runs."""

    runs: list[RunLog]


DOCUMENTS = {"logs": LogsDocument}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    logs = commands.add_parser(
        "logs",
        help="print the output of a run",
        description="Print the output of the last attempt of a run: that of the process that failed, or else that of "
        "the first process.",
    )
    add_names(logs, "+", "name of a run, or a part of it that no other has")
    logs.add_argument(
        "--rank", type=count, metavar="K", help="print the output of process K (0, 1, ...) instead"
    )
    logs.add_argument("-f", "--follow", action="store_true", help="keep printing until the run ends")
    add_json(logs)
    return logs


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.progress.logs import lines, log_of
    from cpdrun.record import find_runs

    output, rank = arguments.output, arguments.rank
    if arguments.follow and output.as_json:
        raise UserError("--json prints one document and --follow keeps printing, so type only one of them")
    if output.as_json:
        found = [
            RunLog(run.name, log_of(run, rank), [line.rstrip("\r\n") for line in lines(run, rank)])
            for run in find_runs(arguments.names)
        ]
        output.set_result(LogsDocument(found))
        return OK
    try:
        for run in find_runs(arguments.names):
            for line in lines(run, rank, follow=arguments.follow):
                print(visible_line(line) if sys.stdout.isatty() else line, end="", flush=arguments.follow)
    except BrokenPipeError:  # The reader has closed the pipe, as in `cpdrun logs RUN | head`.
        sys.stderr.close()
    return OK
