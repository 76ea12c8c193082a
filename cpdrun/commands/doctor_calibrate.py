"""The command `cpdrun doctor --calibrate`.

It measures this machine and predicts step times with more workers and on other networks.
"""

import argparse
from typing import Any

from cpdrun.arguments import add_json, add_overrides, positive, several
from cpdrun.errors import OK, UserError

DOCUMENTS = {"calibrate": "cpdrun.report.cost:CalibrateDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    calibrate = commands.add_parser(
        "doctor --calibrate",
        description="Measure what the cost model needs for the model of a run (compute, codec, network), and print "
        "what a step would cost with more workers. The measurement is stored in the sweep's folder for its report.",
    )
    add_overrides(calibrate, "as for sweep: exp=NAME ...")
    calibrate.add_argument(
        "--nproc",
        type=positive,
        default=1,
        metavar="N",
        help="number of ranks between which the network is measured",
    )
    measured = "formats to measure (default: fp32, bf16 and those of the sweep)"
    calibrate.add_argument("--formats", type=several, default=[], metavar="F,F", help=measured)
    networks = "networks of the prediction: 1gbit, 10gbit, a yaml file ... (default: as measured, or 10gbit)"
    calibrate.add_argument("--network", type=several, default=[], metavar="N,N", help=networks)
    exchange = "how ranks exchange gradients in the prediction (default: direct)"
    calibrate.add_argument("--algorithm", choices=["direct", "ring", "tree"], default="direct", help=exchange)
    calibrate.add_argument(
        "--overlap", action="store_true", help="overlap communication with the backward pass, as DDP does"
    )
    calibrate.add_argument(
        "--repeats",
        type=positive,
        default=9,
        metavar="R",
        help="repetitions of each measurement (default: 9)",
    )
    add_json(calibrate)
    return calibrate


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.config.script import is_script
    from cpdrun.costmodel import forecast, network, read_calibration
    from cpdrun.launch.machine.calibration import calibrate
    from cpdrun.report.cost import CalibrateDocument, forecast_table
    from cpdrun.sweep import plan

    sweep = plan(arguments.overrides, arguments.config_dir)
    if is_script(sweep.runs[0].config):
        raise UserError(
            "doctor --calibrate can only measure models that cpdrun trains itself, not models that a script trains"
        )
    networks = {name: network(name) for name in arguments.network}
    named = [run.config["format"] for run in sweep.runs if run.config["format"]]
    gathered = [run.config["sync"]["gather"] for run in sweep.runs if "gather" in run.config["sync"]]
    formats = list(dict.fromkeys(arguments.formats or ["fp32", "bf16", *named, *gathered]))
    path, config = sweep.directory.calibration, sweep.runs[0].config
    methods = _methods([run.config for run in sweep.runs])
    calibrate(
        config, path, nproc=arguments.nproc, formats=formats, methods=methods, repeats=arguments.repeats
    )
    calibration = read_calibration(path)
    assert calibration is not None  # because `calibrate` has just written the file
    if not networks:
        measured = calibration.network
        networks = {"as measured": measured} if measured else {"10gbit": network("10gbit")}
    output, document = arguments.output, CalibrateDocument(path, calibration, [])
    for name, link in networks.items():
        rows = list(
            forecast(calibration, link, name, algorithm=arguments.algorithm, overlap=arguments.overlap)
        )
        output.console.print(forecast_table(f"{name}, {arguments.algorithm}", rows))
        document.forecast += rows
    output.set_result(document)
    return OK


def _methods(configs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the first config that uses each compressor, keyed by its name in reports."""
    from cpdrun.config.overrides import flatten
    from cpdrun.study.group import method_of

    found: dict[str, dict[str, Any]] = {}
    for config in configs:
        key = method_of(dict(flatten(config))).compressor
        if key is not None:
            found.setdefault(key, config)
    return found
