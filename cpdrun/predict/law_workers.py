"""What a law of sums says of an experiment's runs: how many bits more workers need, by the order of their sum.

Of the runs with APS that round to nearest without Kahan, each against fp32 with the same workers, order and seed, by
the training loss, which differs long before the accuracy does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from custom_fp.formats.scalar import Format

from cpdrun.predict.law_read import Row, Study, number
from cpdrun.stats.chain_law import ChainLaw, HeldOutWorkers, Sums, hold_out_most_workers, tolerated
from cpdrun.stats.scaling_law import NoLawError
from cpdrun.study.axes import formats
from cpdrun.study.collect import identity
from cpdrun.study.margin import DEFAULT_POINTS

LOSS, ACCURACY = "metric:train_loss", "metric:test_accuracy"
GROUPED = "hierarchical"
ORDERS = ("rank", GROUPED, "tree")
FLAT_UP_TO = 8  # as cpdrun.comm's hierarchical order: up to so many workers are one group


@dataclass
class WorkerLaw:
    """The law of all runs, the test on the most workers, and the excess that the tolerance allows."""

    study: Study
    sums: Sums
    cells: list[dict[str, Any]]  # order, workers, chain, format, bits, excess, gap (of the accuracy), within
    law: ChainLaw
    held: HeldOutWorkers | None
    most: float
    tolerance: float  # of the accuracy, in points
    notes: list[str]


def longest_run(order: str, workers: int, group_size: Any = "auto") -> int:
    """Rounded additions into one sum before it is handed on: N - 1 in one chain, of groups the longer of the chain
    inside and of that across, 1 in a tree. Raises ValueError for an order that is none of these."""
    if order in ("rank", "ring") or (order == GROUPED and group_size == "auto" and workers <= FLAT_UP_TO):
        return max(workers - 1, 1)
    if order == "tree":
        return 1
    if order != GROUPED:
        raise ValueError(f"no order {order!r}; there are: rank, ring, {GROUPED}, tree")
    size = _nearest_root(workers) if group_size == "auto" else int(group_size)
    return max(size - 1, math.ceil(workers / size) - 1, 1)


def _nearest_root(workers: int) -> int:
    """The divisor nearest the square root; of a prime number, the root rounded up."""
    root = math.sqrt(workers)
    divisors = [size for size in range(2, workers) if workers % size == 0]
    return min(divisors, key=lambda size: abs(size - root)) if divisors else math.ceil(root)


def fit_workers(study: Study, ci: float = 95, **settings: Any) -> WorkerLaw:
    """Raises NoLawError where the runs hold none."""
    notes: list[str] = []
    rows, cells = _rows(study, notes)
    if not rows:
        raise NoLawError(
            f"a law of workers needs finished runs in fp32 and others with APS: {study.source} has none of use"
        )
    sums = Sums(
        *(np.array(column, dtype=float) for column in list(zip(*rows, strict=True))[:6]),
        group=np.array([str(row[6]) for row in rows]),
    )
    law = ChainLaw(sums, **settings)
    held = None
    try:
        held = hold_out_most_workers(sums, ci=ci, **settings)
    except NoLawError as error:
        notes.append(f"not tested: {error}")
    most = tolerated(np.array([cell["excess"] for cell in cells]), [cell["within"] for cell in cells])
    if math.isnan(most):
        notes.append(
            "all cells are within the tolerance, or none is: an excess of a tenth of the loss is allowed"
        )
        most = math.log(1.1)
    return WorkerLaw(study, sums, cells, law, held, most, DEFAULT_POINTS, notes)


def _rows(study: Study, notes: list[str]) -> tuple[list[tuple], list[dict[str, Any]]]:
    """A row a run, as Sums has them, and the cells: the seeds of one number of workers, order and format."""
    shared = [axis for axis in study.axes if axis not in ("format", "aps")]
    baselines = {
        _key(row, [*shared, "seed"]): row for row in study.rows if formats.is_baseline(row.get("format"))
    }
    rows, cells, remedied, alone, chainless = [], {}, 0, 0, set()
    for row in study.rows:
        fmt = formats.parse(row.get("format"))
        is_reduced = isinstance(fmt, Format) and not fmt.is_fp32 and row.get("aps")
        if not is_reduced or not isinstance(row.get("world_size"), int):
            continue
        if row.get("sync.rounding", "nearest_even") != "nearest_even" or row.get("sync.kahan"):
            remedied += 1
            continue
        try:
            chain = longest_run(
                str(row.get("sync.order")), row["world_size"], row.get("sync.group_size", "auto")
            )
        except ValueError:
            chainless.add(str(row.get("sync.order")))
            continue
        made = _row(row, fmt, chain, baselines.get(_key(row, [*shared, "seed"])))
        if made is None:
            alone += 1
            continue
        sums, gap = made
        rows.append((*sums, _key(row, [*shared, "format"])))
        cell = cells.setdefault(rows[-1][6], {**_cell(row, fmt, sums), "excesses": [], "gaps": []})
        cell["excesses"].append(sums[4])
        cell["gaps"].append(gap)
    notes += [
        f"{remedied} runs left out: stochastic rounding or Kahan, which have capacities of their own"
    ] * bool(remedied)
    if chainless:
        notes.append(
            f"runs left out: of a sum by {', '.join(sorted(chainless))}, which is no chain of rounded additions"
        )
    if alone:
        notes.append(f"{alone} runs left out: no fp32 beside them that learnt")
    least = -DEFAULT_POINTS
    return rows, [
        {
            **cell,
            "excess": float(np.mean(cell["excesses"])),
            "gap": 100 * float(np.mean(cell["gaps"])),
            "within": bool(100 * np.mean(cell["gaps"]) >= least),
        }
        for cell in cells.values()
    ]


def _row(row: Row, fmt: Format, chain: int, baseline: Row | None) -> tuple[tuple, float] | None:
    """chain, workers, E, m, excess, ceiling, and the difference of accuracy."""
    if baseline is None:
        return None
    usual, classes = number(baseline.get(LOSS)), number(row.get("num_classes"))
    ceiling = math.log(math.log(classes) / usual) if classes > 1 and usual > 0 else math.nan
    loss = number(row.get(LOSS))
    excess = ceiling if row.get("diverged") is True or not math.isfinite(loss) else math.log(loss / usual)
    gap = number(row.get(ACCURACY)) - number(baseline.get(ACCURACY))
    if not (ceiling > 0 and math.isfinite(excess)):
        return None
    return (
        chain,
        row["world_size"],
        fmt.exponent_bits,
        fmt.mantissa_bits,
        min(excess, ceiling),
        ceiling,
    ), gap


def _cell(row: Row, fmt: Format, sums: tuple) -> dict[str, Any]:
    return {
        "order": row.get("sync.order"),
        "workers": sums[1],
        "chain": sums[0],
        "format": fmt.name,
        "bits": fmt.bits,
    }


def _key(row: Row, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(identity(row.get(key)) for key in keys)


def measured_fewest(found: WorkerLaw, workers: int) -> dict[tuple[str, int], float]:
    """By order and chain: the bits of the smallest format within the tolerance, inf where none was."""
    fewest: dict[tuple[str, int], float] = {}
    for cell in found.cells:
        if cell["workers"] == workers:
            key = (cell["order"], cell["chain"])
            fewest[key] = min(fewest.get(key, math.inf), cell["bits"] if cell["within"] else math.inf)
    return fewest


def needed_at(found: WorkerLaw, workers: int, ci: float, law: ChainLaw | None = None) -> list[dict[str, Any]]:
    """A row an order: its chain and the fewest bits by the law, of all runs or of `law`."""
    table = []
    for order in ORDERS:
        chain = longest_run(order, workers)
        needed = (law or found.law).fewest(chain, found.most, ci)
        table.append(
            {
                "order": order, "workers": workers, "chain": chain, "bits": float(needed.bits), "low": needed.low,
                "high": needed.high, "format": f"e{needed.by[0]}m{needed.by[1]}" if needed.by else None,
                "beyond": chain / float(found.sums.chain.max()),
            }
        )  # fmt: skip
    return table
