"""What a step would cost on another network, with more workers, in fewer bits.

A cost is a pure function of frozen parameters: seconds in, seconds out, nothing measured here.

    parameters.py   network, codec, workload: measured by `cpdrun calibrate` or given by name
    collectives.py  ring, tree and hierarchical all-reduce of k-bit values, in the alpha-beta model
    exchange.py     the direct exchange of cpdrun.comm: its three stages over a link, segment by segment
    step.py         a training step of one worker of N, and the speed-up of N
    table.py        both against workers, for every calibrated format
    model_parallel.py   data, model and hybrid parallelism on groups of processors
    alexnet_96gpu.py    the prediction of arXiv:1511.04561 with its assumptions, a program of its own
"""

from cpdrun.report.costmodel.parameters import (
    Calibration,
    CalibrationError,
    Codec,
    Network,
    Workload,
    network,
    network_names,
    read_calibration,
)
from cpdrun.report.costmodel.step import ALGORITHMS, Setup, StepCost, speedup, step_cost
from cpdrun.report.costmodel.table import Forecast, forecast, print_forecast

__all__ = [
    "ALGORITHMS",
    "Calibration",
    "CalibrationError",
    "Codec",
    "Forecast",
    "Network",
    "Setup",
    "StepCost",
    "Workload",
    "forecast",
    "network",
    "network_names",
    "print_forecast",
    "read_calibration",
    "speedup",
    "step_cost",
]
