"""Predict what a training step costs on another network, with more workers or with fewer bits.

A cost is a pure function of frozen parameters. It takes and returns seconds, and nothing is measured here.

    parameters.py   network, codec, workload: measured by `cpdrun doctor --calibrate` or given by name
    rings_and_trees.py  ring, tree and hierarchical all-reduce of k-bit values, in the alpha-beta model
    direct.py       the direct exchange of cpdrun.comm: its three stages over a link, segment by segment
    patterns.py     the exchange of any method, by who sends what to whom, from the bytes that a run recorded
    step.py         a training step of each of N workers, and the speed-up of N workers
    table.py        step time and speed-up by the number of workers, for every calibrated format

scripts/bench_costmodel.py compares the model with measured times, and scripts/alexnet_96gpu.py compares it with the
prediction of a paper.
"""

from cpdrun.costmodel.parameters import (
    Calibration,
    CalibrationError,
    Codec,
    Network,
    NotCalibratedError,
    Workload,
    compressor_key,
    network,
    network_names,
    read_calibration,
)
from cpdrun.costmodel.patterns import PATTERNS, Exchange, exchange_s
from cpdrun.costmodel.rings_and_trees import (
    hierarchical_s,
    ring_all_gather_s,
    ring_reduce_scatter_s,
    ring_s,
)
from cpdrun.costmodel.step import ALGORITHMS, Setup, StepCost, speedup, step_cost
from cpdrun.costmodel.table import CostForecast, forecast, print_forecast

__all__ = [
    "ALGORITHMS",
    "PATTERNS",
    "Calibration",
    "CalibrationError",
    "Codec",
    "CostForecast",
    "Exchange",
    "Network",
    "NotCalibratedError",
    "Setup",
    "StepCost",
    "Workload",
    "compressor_key",
    "exchange_s",
    "forecast",
    "hierarchical_s",
    "network",
    "network_names",
    "print_forecast",
    "read_calibration",
    "ring_all_gather_s",
    "ring_reduce_scatter_s",
    "ring_s",
    "speedup",
    "step_cost",
]
