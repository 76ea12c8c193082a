"""Noise for simulated pairs, from distributions and from the recorded grids in results/reference/search."""

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

REFERENCE = Path(__file__).parents[3] / "results" / "reference" / "search"
GRIDS = ("digits_convnet", "digits_mlp")

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def gamma(skewness: float) -> Draw:
    """Return a gamma distribution with mean 0, standard deviation 1 and this skewness."""
    shape = 4 / skewness**2
    return lambda rng, size: np.sign(skewness) * (rng.gamma(shape, size=size) - shape) / math.sqrt(shape)


def read_gaps(grid: str) -> dict[str, np.ndarray]:
    """Return the differences between each candidate of a recorded grid and its baseline, one for each seed."""
    values: dict[str, dict[int, float]] = {}
    baselines = {}
    with (REFERENCE / f"{grid}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            values.setdefault(row["candidate"], {})[int(row["seed"])] = float(row["value"])
            baselines[row["candidate"]] = row["baseline"]
    return {
        candidate: np.array([value - values[name][seed] for seed, value in values[candidate].items()])
        for candidate, name in baselines.items()
        if name and name != candidate
    }
