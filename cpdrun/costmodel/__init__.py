"""Predict the cost of a training step on other networks.

All times are in seconds. A predicted time depends only on the function's arguments.

    parameters    Defines the network, the codec, and the workload, and reads measured ones.
    collectives   Predicts textbook all-reduces in the alpha-beta model, and cpdrun.comm's direct exchange.
    patterns      Predicts an exchange from its pattern (who sends what to whom) and the bytes that a run recorded.
    step          Predicts the time of a training step with N workers, and their speed-up.
    costs         Computes the bytes, bit operations, and area of each group of runs.
    crossover     Finds the fastest method of a study on each network.
    measure       Measures the parameters (`cpdrun doctor --calibrate`). Needs torch.

scripts/benchmarks/cost_model.py compares the model with measured times. scripts/research/speedup/alexnet_96gpu.py
compares it with a paper's
prediction.
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
