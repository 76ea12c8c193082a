"""The command `cpdrun report`.

For sweeps, it prints the verdict and writes tables and plots. For one run, it explains why the run is worse than its
baseline.
"""

import argparse
from typing import TYPE_CHECKING, Any

from cpdrun.arguments import add_json, add_names, several
from cpdrun.errors import OK, UserError

if TYPE_CHECKING:
    from cpdrun.record import RunDir

DOCUMENTS = {
    "report": "cpdrun.report.document:ReportDocument",
    "plots": "cpdrun.report.document:PlotsDocument",
    "explain": "cpdrun.report.diagnosis:Explanation",
}
# The help text of --format.
FORMATS = "files to write: csv, md, tex, parquet, html, png, svg, pdf (default: md,csv,html)"


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    report = commands.add_parser(
        "report",
        help="verdict, tables and plots of a sweep; for a run: why it is worse",
        description="For sweeps: print the verdict, and write tables and plots of accuracy against bits. For one run: "
        "say why it is worse than its baseline, which layers lose what, and what would fix it.",
    )
    add_names(report, "*", "name or folder of a sweep (default: the latest), or of one run")
    report.add_argument(
        "--metric", help="the metric to report (default: that of the task, such as accuracy or mean IoU)"
    )
    report.add_argument("--format", type=several, default=["md", "csv", "html"], metavar="F,F", help=FORMATS)
    level = "how certain a verdict must be, in percent (default: as in the search, or 95)"
    report.add_argument("--ci", type=float, help=level)
    margin = (
        "the margin: how much worse than the baseline is still good enough. A number is in the metric's unit "
        "(percentage points for accuracy); a percentage such as 2%% refers to the baseline's value or improvement "
        "(default: the margin of the search, else 0.5 percentage points for accuracies and other metrics between "
        "0 and 1, else 2%%)"
    )
    report.add_argument("--tol", metavar="T", help=margin)
    against = "the settings of the runs to compare with, such as format=bf16 or precision.activations=fp32"
    report.add_argument("--baseline", type=several, metavar="KEY=VALUE,...", help=against)
    rows = "print one more table, with these axes as rows, such as format,aps"
    report.add_argument("--rows", type=several, default=[], metavar="AXES", help=rows)
    report.add_argument(
        "--cols", type=several, default=[], metavar="AXES", help="the axes that are its columns"
    )
    networks = "networks for which speed-up and step times are predicted: 1gbit, 10gbit, a yaml file ... (default: all)"
    report.add_argument(
        "--network", "--networks", type=several, default=[], metavar="N,N", help=networks, dest="networks"
    )
    report.add_argument(
        "--to",
        type=several,
        default=[],
        metavar="TOOL",
        help="export the runs to tensorboard, mlflow or wandb",
    )
    costs = (
        "costs for which the Pareto front is described: bytes (sent), kept (bytes stored), bitops, area (default: "
        "all that differ)"
    )
    report.add_argument(
        "--cost", "--costs", type=several, default=[], metavar="C,C", help=costs, dest="costs"
    )
    serve = "show the page in a browser on this machine and follow a running sweep, until Ctrl-C; nothing is written"
    report.add_argument("--serve", action="store_true", help=serve)
    report.add_argument("--plots", action="store_true", help="list all plots and what each needs")
    add_json(report)
    return report


def run(arguments: argparse.Namespace) -> int:
    if arguments.serve and arguments.output.as_json:
        raise UserError("--serve runs until Ctrl-C, so it cannot print JSON and cannot be called from Python")
    if arguments.serve and arguments.to:
        raise UserError("--serve writes nothing, so type it without --to")
    if arguments.plots:
        return _list_plots(arguments)
    from cpdrun.record import find_sweeps, find_sweeps_or_runs
    from cpdrun.record.find import split_results_dir

    has_names = bool(split_results_dir(arguments.names)[1])
    sweeps, runs = find_sweeps_or_runs(arguments.names) if has_names else (find_sweeps(arguments.names), [])
    if runs and (sweeps or arguments.serve):
        what = f"{sweeps[0].name} is a sweep and" if sweeps else "--serve shows sweeps, and"
        raise UserError(f"{what} {runs[0].name} is a run. Name either one run, or one or more sweeps")
    if runs:
        return _explain(arguments, runs)
    from cpdrun.report.content import ReportOptions

    options = ReportOptions(
        metric=arguments.metric,
        ci=arguments.ci,
        tolerance=arguments.tol,
        baseline=None if arguments.baseline is None else _baseline(arguments.baseline),
        rows=arguments.rows,
        cols=arguments.cols,
        networks=arguments.networks,
        costs=arguments.costs,
    )
    if arguments.serve:
        from cpdrun.report.page.server import serve

        serve(sweeps, options, lambda address: arguments.output.print(f"{address} (Ctrl-C ends it)"))
        return OK
    from cpdrun.report import write_report

    formats, console = arguments.format, arguments.output.console
    made = write_report(sweeps, options, formats=formats, export_to=arguments.to, console=console)
    arguments.output.set_result(made.document())
    return OK


def _explain(arguments: argparse.Namespace, runs: "list[RunDir]") -> int:
    """Print why a run is worse than its baseline."""
    from cpdrun.report.diagnosis import explain
    from cpdrun.whatif.diagnosis import diagnose

    if len(runs) != 1:
        raise UserError(f"{len(runs)} runs were named. Name either one run, or one or more sweeps")
    found = explain(diagnose(runs[0]))
    arguments.output.set_result(found, "explain")
    for line in found.sentences:
        arguments.output.print(line)
    return OK


def _list_plots(arguments: argparse.Namespace) -> int:
    from rich.table import Table

    from cpdrun.report.document import PlotRow, PlotsDocument
    from cpdrun.report.plots import available

    plots = [PlotRow(plot.name, plot.title.replace("{metric}", "metric"), plot.needs) for plot in available()]
    table = Table("plot", "needs", box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for plot in plots:
        table.add_row(plot.name, plot.needs)
    arguments.output.console.print(table)
    arguments.output.set_result(PlotsDocument(plots), "plots")
    return OK


def _baseline(words: list[str]) -> dict[str, Any]:
    """Parse the KEY=VALUE items of --baseline.

    Raises:
        UserError: An item does not have this form.
    """
    import yaml

    found = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not (key and sign and text):
            raise UserError(f"--baseline {word}: write KEY=VALUE, such as --baseline format=bf16")
        try:
            found[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            found[key] = text
    return found
