"""`cpdrun report`: tables and plots of accuracy against bits."""

import argparse
from typing import Any

from cpdrun.arguments import add_json, add_names, several
from cpdrun.errors import OK, UserError

FORMATS = "tables and pictures to write: csv, md, tex, parquet, html, png, svg, pdf (default: md,csv,html)"


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    report = commands.add_parser(
        "report",
        help="tables and plots of accuracy against bits",
        description="Tables and plots of accuracy against bits, from the runs of one or more sweeps.",
    )
    add_names(report, "*", "name or folder of a sweep (default: the latest)")
    report.add_argument(
        "--metric", help="what to report (default: what the data is judged by: accuracy, mean IoU ...)"
    )
    report.add_argument("--format", type=several, default=["md", "csv", "html"], metavar="F,F", help=FORMATS)
    level = "confidence level, per cent (default: what a search asked, or 95)"
    report.add_argument("--ci", type=float, help=level)
    margin = (
        "the margin: how much worse than fp32 is still good enough, in the metric's unit (points for shares), or a "
        "percentage of fp32's value or improvement such as 2%% (default: what a search asked, or 0.5 points, or 2%%)"
    )
    report.add_argument("--tol", metavar="T", help=margin)
    against = (
        "compare with these runs: format=bf16, or along another axis of bits: precision.activations=fp32"
    )
    report.add_argument("--baseline", type=several, metavar="KEY=VALUE,...", help=against)
    report.add_argument("--rows", type=several, default=[], metavar="AXES", help="rows of one more table")
    report.add_argument("--cols", type=several, default=[], metavar="AXES", help="and its columns")
    networks = "of the predicted speed-up and step times: 1gbit, 10gbit, a yaml file ... (default: all)"
    report.add_argument(
        "--network", "--networks", type=several, default=[], metavar="N,N", help=networks, dest="networks"
    )
    report.add_argument(
        "--to", type=several, default=[], metavar="TOOL", help="export: tensorboard, mlflow, wandb"
    )
    costs = "costs whose Pareto front is put into words: bytes, kept, bitops, area (default: all that differ)"
    report.add_argument(
        "--cost", "--costs", type=several, default=[], metavar="C,C", help=costs, dest="costs"
    )
    add_json(report)
    return report


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.record import find_sweeps
    from cpdrun.report import write_report

    made = write_report(
        find_sweeps(arguments.names),
        metric=arguments.metric,
        formats=arguments.format,
        ci=arguments.ci,
        tolerance=arguments.tol,
        rows=arguments.rows,
        cols=arguments.cols,
        networks=arguments.networks,
        export_to=arguments.to,
        costs=arguments.costs,
        baseline=None if arguments.baseline is None else _baseline(arguments.baseline),
        console=arguments.telling.console,
    )
    arguments.telling.tell(made.as_json())
    return OK


def _baseline(words: list[str]) -> dict[str, Any]:
    """`format=bf16` as it is in a config. Raises UserError."""
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
