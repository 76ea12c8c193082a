"""Print predicted step times and speed-ups by the number of workers, with a column for each format."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cpdrun.costmodel.parameters import Calibration, Network
from cpdrun.costmodel.step import Setup, StepCost, speedup, step_cost

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class CostForecast:
    """The predicted cost of one format with one number of workers."""

    format: str
    workers: int
    cost: StepCost
    speedup: float

    def document(self, network: str, algorithm: str) -> "ForecastRow":
        """Return the forecast as a part of a command's document."""
        times = {**vars(self.cost), "total_s": self.cost.total_s}
        return ForecastRow(network, algorithm, self.format, self.workers, **times, speedup=self.speedup)


@dataclass(frozen=True)
class ForecastRow:
    """The predicted cost of a step of one format with one number of workers. Times are in seconds per step.

    Attributes:
        network: The name of the network.
        algorithm: How gradients are added.
        format: The name of the format.
        workers: The number of workers.
        compute_s: The worker's own computation.
        agreement_s: The time to agree on scales, with APS.
        exchange_s: The time to pack, send, add and unpack.
        exposed_s: The part of agreement and exchange that computation does not hide.
        total_s: The time of the step.
        speedup: The speed-up over a single worker.
    """

    network: str
    algorithm: str
    format: str
    workers: int
    compute_s: float
    agreement_s: float
    exchange_s: float
    exposed_s: float
    total_s: float
    speedup: float


@dataclass
class CalibrateDocument:
    """A measurement of this machine, and the predicted time of a step on other networks.

    Attributes:
        calibration: The file with the measurement.
        measured: The measurement.
        forecast: The predictions.
    """

    calibration: Path
    measured: Calibration
    forecast: list[ForecastRow]


def forecast(
    calibration: Calibration,
    network: Network,
    *,
    workers: Sequence[int] = WORKERS,
    algorithm: str = "direct",
    overlap: bool = False,
    aps: bool = True,
    group_size: int = 1,
    inner: Network | None = None,
) -> Iterator[CostForecast]:
    """Yield the cost of every calibrated format with every number of workers, fewest bits last.

    Formats below fp32 use APS if `aps` is true. Numbers of workers that `group_size` does not divide are left out.

    Raises:
        ValueError: As `Setup` does.
    """
    by_bits = sorted(calibration.codecs.items(), key=lambda item: -item[1].bits)
    for name, codec in by_bits:
        for count in workers:
            if count % group_size:
                continue
            setup = Setup(
                count,
                calibration.workload,
                codec,
                network,
                algorithm,
                aps=aps and codec.bits < 32,
                overlap=overlap,
                shared_processor=calibration.about.get("device") == "cpu",
                group_size=group_size,
                inner=inner,
            )
            yield CostForecast(name, count, step_cost(setup), speedup(setup))


def print_forecast(console: Console, title: str, rows: Sequence[CostForecast]) -> None:
    """Print the milliseconds per step and the speed-up by workers and format."""
    names = list(dict.fromkeys(row.format for row in rows))
    found = {(row.workers, row.format): row for row in rows}
    table = Table(title=title, box=None, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column("workers", justify="right")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for workers in dict.fromkeys(row.workers for row in rows):
        cells = [_cell(found[workers, name]) for name in names]
        table.add_row(str(workers), *cells)
    console.print(table)


def _cell(row: CostForecast) -> str:
    return f"{1e3 * row.cost.total_s:.3g} ms\n{row.speedup:.3g}x"
