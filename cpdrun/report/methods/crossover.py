"""Which method is fastest on which network: predicted seconds of a step, from what runs recorded and what was measured.

    step = compute + exchange(pattern, bytes)

compute: of one worker, and codec: seconds a value, as `cpdrun doctor --calibrate` measured them on one machine; bytes:
as the runs recorded them; exchange: costmodel/patterns.py, with its assumptions: nothing hides behind forward and
backward. A plain sum in fp32, bf16 or fp16 needs no codec of ours: it costs what a ring or the direct exchange does,
whichever is less. Seconds to the loss: the steps until the metric was first within the tolerance of the baseline's last
of the same seed, by the curves that runs recorded, times seconds of a step; as fine as the curve, an epoch as a rule.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cpdrun.costmodel import Calibration, CalibrationError, Codec, Exchange, Network, exchange_s
from cpdrun.costmodel.calibrated import calibration_of, known_networks
from cpdrun.report.methods.comparison import by_setting, label, method_verdicts, reference
from cpdrun.stats.evidence import Verdict
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.runs.history import rows_of
from cpdrun.study.study import Study

MARGIN = 0.05  # within it two are as fast: the model's own error against the clock is of that size


@dataclass(frozen=True)
class Cell:
    """One method on one network. Seconds; NaN where the curve does not say."""

    group: Group
    name: str
    network: str
    pattern: str
    compute_s: float
    exchange_s: float
    steps_to_loss: float
    verdict: Verdict | None  # against the reference; None if that is not known

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exchange_s

    @property
    def to_loss_s(self) -> float:
        return self.steps_to_loss * self.step_s


@dataclass(frozen=True)
class Panel:
    """The methods of one setting (model, workers ...) on every network."""

    facet: Facet
    cells: list[Cell]
    missing: list[str]  # why methods are not in it

    @property
    def networks(self) -> list[str]:
        return list(dict.fromkeys(cell.network for cell in self.cells))

    def on(self, network: str) -> list[Cell]:
        """Fastest first."""
        return sorted((c for c in self.cells if c.network == network), key=lambda cell: cell.step_s)

    def winner(self, network: str) -> Cell | None:
        """Return the fastest of the certified methods; a plain sum if it is as fast, up to MARGIN."""
        able = [cell for cell in self.on(network) if cell.verdict is Verdict.CERTIFIED]
        plain = [cell for cell in able if cell.group.method.is_plain]
        if plain and plain[0].step_s <= (1 + MARGIN) * able[0].step_s:
            return plain[0]
        return able[0] if able else None

    def plain(self, network: str) -> Cell | None:
        """Return the fastest certified plain sum, which needs no method."""
        certified = (cell for cell in self.on(network) if cell.verdict is Verdict.CERTIFIED)
        return next((cell for cell in certified if cell.group.method.is_plain), None)

    def faster_but_open(self, network: str) -> list[Cell]:
        """Return the open methods that are faster than the winner."""
        winner = self.winner(network)
        limit = math.inf if winner is None else winner.step_s
        return [c for c in self.on(network) if c.verdict is Verdict.OPEN and c.step_s < limit]


@dataclass(frozen=True)
class Crossover:
    panels: list[Panel]
    calibration: Calibration


def crossover(study: Study) -> Crossover:
    """Raises CalibrationError, in words for the user, where the runs or the calibration do not hold what it needs."""
    if why := study.sends_alike:
        raise CalibrationError(why)
    calibration = calibration_of(study)
    networks = study.networks or known_networks(calibration)
    panels = [panel(study, facet, calibration, networks) for facet in by_setting(study)]
    kept = [one for one in panels if one.cells]
    if not kept:
        why = next((line for one in panels for line in one.missing), "no run has a value")
        raise CalibrationError(f"nothing can be predicted: {why}")
    return Crossover(kept, calibration)


def panel(study: Study, facet: Facet, calibration: Calibration, networks: Mapping[str, Network]) -> Panel:
    """The cells of one setting, method by method."""
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
        for network, link in networks.items():
            best = min(exchanges, key=lambda what: exchange_s(what, link))
            compute_s, taken_s = calibration.workload.compute_s, exchange_s(best, link)
            cells.append(Cell(group, name, network, best.pattern, compute_s, taken_s, steps, verdict))
    return Panel(facet, cells, missing)


def exchanges_of(group: Group, calibration: Calibration) -> Iterator[Exchange]:
    """What its workers exchange, and for a plain sum the same as the platform does it. Raises CalibrationError for a
    group whose record, or whose codec in the calibration, is missing."""
    method, workers, values = group.method, group.keys.get("world_size"), group.figures["parameters"]
    if not (isinstance(workers, int) and workers > 0 and values > 0 and group.wire_bytes >= 0):
        raise CalibrationError("its record lacks bytes a step, parameters or workers")
    if method.pattern is None:
        raise CalibrationError("its config does not say how its workers exchange")
    if values != calibration.workload.values:
        raise CalibrationError(
            f"the calibration is of a model of {calibration.workload.values:,} values, not {values:,.0f}"
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
    """Steps until the metric is first within the tolerance of the reference's last of the same seed (of its mean, where
    that seed is missing), averaged over runs; NaN where one of them does not get there, or has no curve."""
    if against is None or not study.may_be_within(group) or len(group.by_seed) != len(group.runs):
        return math.nan
    sign = 1.0 if study.metric.higher_is_better else -1.0
    found = []
    for seed, run in zip(group.by_seed, group.runs, strict=True):
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
