"""Predict what a training step costs on another network, with more workers or with fewer bits.

A time is a pure function of frozen parameters, in seconds.

    parameters    Network, codec and workload: measured by `cpdrun doctor --calibrate` or given by name.
    collectives   The textbook all-reduces in the alpha-beta model, and the direct exchange of cpdrun.comm.
    patterns      The exchange of any method, by who sends what to whom, from the bytes that a run recorded.
    step          A training step of each of N workers, and the speed-up of N workers.
    costs         Bytes, bit operations and area of the groups of a study; Pareto fronts and their knees.
    crossover     The fastest method of a study on each network.
    measure       The measurement itself. It needs torch and runs in processes of its own.

scripts/bench_costmodel.py compares the model with measured times, and scripts/alexnet_96gpu.py compares it with the
prediction of a paper.
"""

from cpdrun.costmodel.collectives import (
    hierarchical_s,
    ring_all_gather_s,
    ring_reduce_scatter_s,
    ring_s,
)
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
from cpdrun.costmodel.step import ALGORITHMS, ForecastRow, Setup, StepCost, forecast, speedup, step_cost

__all__ = [
    "ALGORITHMS",
    "PATTERNS",
    "Calibration",
    "CalibrationError",
    "Codec",
    "Exchange",
    "ForecastRow",
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
    "read_calibration",
    "ring_all_gather_s",
    "ring_reduce_scatter_s",
    "ring_s",
    "speedup",
    "step_cost",
]
