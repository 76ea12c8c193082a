"""What a step would cost on another network, with more workers, in fewer bits.

A cost is a pure function of frozen parameters: seconds in, seconds out, nothing measured here.

    parameters.py   network, codec, workload: measured by `cpdrun doctor --calibrate` or given by name
    rings_and_trees.py  ring, tree and hierarchical all-reduce of k-bit values, in the alpha-beta model
    direct.py       the direct exchange of cpdrun.comm: its three stages over a link, segment by segment
    patterns.py     the exchange of any method, by who sends what to whom, from the bytes that a run recorded
    step.py         a training step of one worker of N, and the speed-up of N
    table.py        both against workers, for every calibrated format

Other readers: scripts/bench_costmodel.py holds it against the clock, scripts/alexnet_96gpu.py a paper's prediction.
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
