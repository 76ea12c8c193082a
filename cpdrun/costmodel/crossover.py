"""Find the fastest method of a study on each network.

    step = compute + exchange(pattern, bytes)

`cpdrun doctor --calibrate` measures the compute time per step and the codec time per value on one machine. The runs
recorded the bytes. `patterns` predicts the exchange, without overlap with the forward and backward pass. A plain sum in
fp32, bf16, or fp16 needs no codec, and uses a ring or the direct exchange, whichever is faster.

The time to the baseline's loss is the time per step times the number of steps to that loss. A run reaches the loss when
its metric is first within the margin of the baseline's last value with the same seed. The recorded curves limit the
precision; they usually have one value per epoch.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cpdrun.costmodel import (
    Calibration,
    CalibrationError,
    Codec,
    Exchange,
    Network,
    NotCalibratedError,
    exchange_s,
    network,
    network_names,
    read_calibration,
)
from cpdrun.record import SweepDir
from cpdrun.stats.evidence import Verdict
from cpdrun.study.facet_summary import sends_alike
from cpdrun.study.group import Facet, Group
from cpdrun.study.methods import by_setting, has_baseline_per_case, label, method_verdicts, reference
from cpdrun.study.records import rows_of
from cpdrun.study.study import Study

# If two predicted times differ by at most this share, they count as equal. The predictions that were compared with
# measured times have errors of up to 8% (results/reference/costmodel/validation.md).
MARGIN = 0.05
MEASURED = "as measured between the ranks"  # the displayed name of the measured network


@dataclass(frozen=True)
class Cell:
    """The prediction for one method on one network.

    Attributes:
        group: The runs of the method.
        name: The name of the method.
        network: The name of the network.
        pattern: The pattern of the exchange, such as "ring".
        compute_s: The compute time per step in seconds.
        exchange_s: The exchange time per step in seconds.
        steps_to_loss: The steps until the method reaches the baseline's loss; NaN if the recorded curves do not.
        verdict: The method's verdict against the reference, if known.
    """

    group: Group
    name: str
    network: str
    pattern: str
    compute_s: float
    exchange_s: float
    steps_to_loss: float
    verdict: Verdict | None

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exchange_s

    @property
    def to_loss_s(self) -> float:
        """The seconds until the method reaches the baseline's loss, or NaN."""
        return self.steps_to_loss * self.step_s


@dataclass(frozen=True)
class Panel:
    """The predictions for one setting, such as one number of workers.

    `missing` has the reasons why some methods have no prediction.
    """

    facet: Facet
    cells: list[Cell]
    missing: list[str]

    @property
    def networks(self) -> list[str]:
        return list(dict.fromkeys(cell.network for cell in self.cells))

    def on(self, network: str) -> list[Cell]:
        """Return the cells of one network, fastest method first."""
        return sorted((c for c in self.cells if c.network == network), key=lambda cell: cell.step_s)

    def winner(self, network: str) -> Cell | None:
        """Return the fastest certified method, or None if there is none.

        A certified plain sum wins instead if its step takes at most 1 + MARGIN times as long.
        """
        fastest = next((cell for cell in self.on(network) if cell.verdict is Verdict.CERTIFIED), None)
        plain = self.plain(network)
        if fastest and plain and plain.step_s <= (1 + MARGIN) * fastest.step_s:
            return plain
        return fastest

    def plain(self, network: str) -> Cell | None:
        """Return the fastest certified plain sum, or None if there is none."""
        certified = (cell for cell in self.on(network) if cell.verdict is Verdict.CERTIFIED)
        return next((cell for cell in certified if cell.group.method.is_plain), None)

    def faster_but_open(self, network: str) -> list[Cell]:
        """Return the open methods that are faster than the winner. Without a winner, return all open methods."""
        winner = self.winner(network)
        limit = math.inf if winner is None else winner.step_s
        return [c for c in self.on(network) if c.verdict is Verdict.OPEN and c.step_s < limit]


@dataclass(frozen=True)
class Crossover:
    """The predictions for the settings of a study, and the measurements behind them."""

    panels: list[Panel]
    calibration: Calibration


def crossover(study: Study) -> Crossover:
    """Predict the methods of a study.

    Raises:
        CalibrationError: The runs or the calibration lack required data.
    """
    if sends_alike(study):
        key = study.bits_axis.key
        raise CalibrationError(
            f"all runs send the same number of bytes, because {key} does not change what is sent"
        )
    if has_baseline_per_case(study):
        raise CalibrationError("each case has its own baseline, so the methods share no baseline")
    calibration = calibration_of(study)
    networks = study.networks or known_networks(calibration)
    panels = [panel(study, facet, calibration, networks) for facet in by_setting(study)]
    kept = [one for one in panels if one.cells]
    if not kept:
        why = next((line for one in panels for line in one.missing), "no run has a value")
        raise CalibrationError(f"nothing can be predicted: {why}")
    return Crossover(kept, calibration)


def panel(study: Study, facet: Facet, calibration: Calibration, networks: Mapping[str, Network]) -> Panel:
    """Predict all methods of one setting on the given networks."""
    cells, missing, against = [], [], reference(facet)
    verdicts = method_verdicts(study, facet)
    for group in facet.groups:
        if not group.values:
            continue
        name = label(study, group)
        try:
            exchanges = list(exchanges_of(group, calibration))
        except CalibrationError as error:
            missing.append(f"{name}: {error}")
            continue
        steps, verdict = steps_to(study, group, against), verdicts.get(group)
        for network_name, link in networks.items():
            best = min(exchanges, key=lambda what: exchange_s(what, link))
            compute_s, taken_s = calibration.workload.compute_s, exchange_s(best, link)
            cells.append(Cell(group, name, network_name, best.pattern, compute_s, taken_s, steps, verdict))
    return Panel(facet, cells, missing)


def exchanges_of(group: Group, calibration: Calibration) -> Iterator[Exchange]:
    """Yield the exchanges that a group's workers may use.

    The first is that of the group's method. A plain sum may also be a ring.

    Raises:
        CalibrationError: The record lacks a value, or the calibration lacks the codec or is of another model.
    """
    method, workers, values = group.method, group.keys.get("world_size"), group.figures["parameters"]
    if not (isinstance(workers, int) and workers > 0 and values > 0 and group.wire_bytes >= 0):
        raise CalibrationError("its record lacks the bytes per step, the parameters, or the workers")
    if method.pattern is None:
        raise CalibrationError("its config does not specify how its workers exchange data")
    if values != calibration.workload.values:
        raise CalibrationError(
            f"the calibration is for a model with {calibration.workload.values:,} values, not {values:,.0f}"
        )
    neighbours = group.figures["neighbours"]
    what = Exchange(
        method.pattern,
        workers,
        values,
        group.wire_bytes,
        _codec(method.format if method.compressor is None else method.compressor, calibration),
        every=method.every,
        gather=None if method.gather is None else _codec(method.gather, calibration),
        layers=len(calibration.workload.numels) if method.aps else 0,
        neighbours=int(neighbours) if math.isfinite(neighbours) else 0,
    )
    yield what
    if method.is_plain:
        yield replace(what, pattern="ring")


def steps_to(study: Study, group: Group, against: Group | None) -> float:
    """Return the mean number of steps until the runs of a group reach the reference, or NaN.

    A run reaches the reference when it is worse by at most the margin than the reference's last value for the
    same seed, or than the reference's mean if it lacks that seed. The result is NaN if there is no reference,
    or if a run failed, did not learn, has no curve, or does not reach the reference.
    """
    if against is None or not study.may_be_within(group) or group.by_seed.keys() != group.run_by_seed.keys():
        return math.nan
    sign = 1.0 if study.metric.higher_is_better else -1.0
    found = []
    for seed, run in group.run_by_seed.items():
        goal = sign * against.by_seed.get(seed, against.mean) - study.tolerance / study.metric.scale
        reached = (
            row.step
            for row in rows_of(run)
            if row.step and (value := row.metrics.get(study.metric.name)) is not None and sign * value >= goal
        )
        found.append(next(reached, math.nan))
    return sum(found) / len(found) if found else math.nan


def _codec(key: str, calibration: Calibration) -> Codec:
    if (found := calibration.codecs.get(key) or calibration.compressors.get(key)) is None:
        short = key if not key.startswith("{") else "its compressor"
        raise CalibrationError(f"{short} is not calibrated: measure again with `cpdrun doctor --calibrate`")
    return found


def calibration_of(study: Study) -> Calibration:
    """Return the first calibration among the study's sweeps.

    Raises:
        CalibrationError: A calibration cannot be read.
        NotCalibratedError: No sweep has a calibration.
    """
    folders = {run.path.parent.parent for group in study.groups for run in group.runs}
    for folder in sorted(folders):
        if (found := read_calibration(SweepDir(folder).calibration)) is not None:
            return found
    raise NotCalibratedError("the sweep has no calibration; `cpdrun doctor --calibrate` makes one")


def known_networks(calibration: Calibration) -> dict[str, Network]:
    """Return the predefined networks and the measured one, keyed by name, slowest first."""
    known = {name: network(name) for name in network_names()}
    if calibration.network is not None:
        known[MEASURED] = calibration.network
    return dict(sorted(known.items(), key=lambda item: item[1].bandwidth_bytes_per_s))
