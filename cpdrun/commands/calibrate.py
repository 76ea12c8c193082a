"""`cpdrun calibrate`: measure this machine; forecast steps with more workers and other networks."""

import argparse
from typing import Any

from cpdrun.arguments import add_json, add_overrides, positive, several
from cpdrun.errors import OK, UserError


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    calibrate = commands.add_parser(
        "calibrate",
        help="measure this machine; forecast steps with more workers and other networks",
        description="Measure what the cost model needs for the model of a run (compute, codec, network) and print "
        "what a step would cost with more workers. Kept beside the sweep, for its report.",
    )
    add_overrides(calibrate, "as for sweep: exp=NAME ...")
    calibrate.add_argument("--nproc", type=positive, default=1, metavar="N", help="ranks to measure between")
    calibrate.add_argument("--formats", type=several, default=[], metavar="F,F", help="default: the sweep's")
    calibrate.add_argument(
        "--network", type=several, default=[], metavar="N,N", help="1gbit, 10gbit, a yaml ..."
    )
    calibrate.add_argument("--algorithm", choices=["direct", "ring", "tree"], default="direct")
    calibrate.add_argument("--overlap", action="store_true", help="as DDP overlaps with the backward pass")
    calibrate.add_argument("--repeats", type=positive, default=9, metavar="R", help="of every measurement")
    add_json(calibrate)
    return calibrate


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.config.script import is_script
    from cpdrun.costmodel import forecast, network, print_forecast, read_calibration
    from cpdrun.launch.machine.calibration import calibrate
    from cpdrun.sweep import plan

    sweep = plan(arguments.overrides, arguments.config_dir)
    if is_script(sweep.runs[0].config):
        raise UserError("calibrate measures the model of cpdrun's own loop; a script's it does not know")
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
    assert calibration is not None  # it was just written
    if not networks:
        measured = calibration.network
        networks = {"as measured": measured} if measured else {"10gbit": network("10gbit")}
    telling, facts = arguments.telling, []
    for name, link in networks.items():
        rows = list(forecast(calibration, link, algorithm=arguments.algorithm, overlap=arguments.overlap))
        print_forecast(telling.console, f"{name}, {arguments.algorithm}", rows)
        facts += [{"network": name, "algorithm": arguments.algorithm, **row.facts()} for row in rows]
    telling.tell({"calibration": str(path), "measured": calibration.as_json(), "forecast": facts})
    return OK


def _methods(configs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The first config that has each compressor, by what a report will call it."""
    from cpdrun.config.keys import flatten
    from cpdrun.study.axes.method import method_of

    found: dict[str, dict[str, Any]] = {}
    for config in configs:
        key = method_of(dict(flatten(config))).compressor
        if key is not None:
            found.setdefault(key, config)
    return found
