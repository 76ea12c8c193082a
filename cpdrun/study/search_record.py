"""Read from sweep.yaml which question a search or a sweep asked, and which keys it tuned.

A question has a margin, a confidence, a metric, and a baseline. A report answers it unless the user types another one.

When a search tunes a key, such as the learning rate, it chooses the key's value for each cell from runs with separate
seeds. A cell is one combination of values on all other axes. This module makes the same choice again from the
same runs by the same rule (`cpdrun.stats.means.choose`). On all other seeds, a report compares the runs that
have the chosen values. The runs of a cell are not compared until its tuning is complete.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from cpdrun.config.margin import Typed, parse_margin
from cpdrun.record import State, SweepDir, read_search
from cpdrun.stats.failures import GIVE_UP_AFTER
from cpdrun.stats.ledger import Ledger, Start, read_starts
from cpdrun.stats.means import as_float, choose
from cpdrun.study import ReportUsageError, formats
from cpdrun.study.axes import axis_text
from cpdrun.study.collect import CORE_AXES, SEED, as_rows, config_keys, identity, other_axes, sweep_names
from cpdrun.study.group import Group
from cpdrun.study.metric import Metric

CONFIDENCE = 95.0  # This is the default confidence in percent.


@dataclass(frozen=True)
class Asked:
    """The question in a sweep.yaml. Parts that are missing or unreadable are None or empty.

    Attributes:
        tolerance: The margin as shown (points for a share), or a text such as "2%".
        confidence: The confidence in percent.
        metric: The name of the metric.
        baseline: The baseline's values, keyed by config key.
        axis: The axis of bits that was searched.
        starts: The starts of the ladders that do not start at their widest width.
        ledger: The ledger of the tested hypotheses.
        by: The command that asked: "search" or "sweep".
    """

    tolerance: Typed | None = None
    confidence: float | None = None
    metric: str | None = None
    baseline: Mapping[str, Any] = field(default_factory=dict)
    axis: str | None = None
    starts: tuple[Start, ...] = ()
    ledger: Ledger = field(default_factory=Ledger, compare=False)
    by: str = "search"


def baseline_of(runs: pd.DataFrame, typed: Mapping[str, Any] | None, question: Asked) -> Mapping[str, Any]:
    """Return the baseline's values that the user typed, or else those of the search.

    Raises:
        ReportUsageError: No run has one of the typed keys or one of the typed values.
    """
    for key, value in (typed or {}).items():
        known = sorted({axis_text(found) for found in runs[key]}) if key in config_keys(runs) else []
        if not known:
            raise ReportUsageError(f"--baseline {key}={axis_text(value)}: the runs have no key {key!r}")
        if not any(formats.same(value, found) for found in runs[key]):
            there = ", ".join(known)
            raise ReportUsageError(
                f"--baseline {key}={axis_text(value)}: no run has this value; the runs have {there}"
            )
    return question.baseline if typed is None else typed


def asked(sweeps: Sequence[SweepDir]) -> Asked:
    """Return the question that all sweeps share, or an empty one if they differ.

    Several sweeps together are a new question, so its ledger is then empty.
    """
    questions = [_asked(sweep) for sweep in sweeps]
    first = questions[0] if questions else Asked()
    if any(question != first for question in questions):
        return Asked()
    return first if len(questions) < 2 else replace(first, ledger=Ledger())


def _asked(sweep: SweepDir) -> Asked:
    block = read_search(sweep)
    if not block:
        return Asked()
    confidence = as_float(block.get("confidence"))
    metric, baseline = block.get("metric"), block.get("baseline_values", block.get("baseline"))
    return Asked(
        _margin(block.get("tolerance")),
        confidence if 0 < confidence < 100 else None,
        metric if isinstance(metric, str) else None,
        baseline if isinstance(baseline, Mapping) else {},
        axis if isinstance(axis := block.get("axis"), str) else None,
        read_starts(block.get("start")),
        Ledger.read(block.get("ledger"), block.get("family")),
        "search" if "baseline" in block else "sweep",
    )


def _margin(value: object) -> Typed | None:
    try:
        return parse_margin(value)
    except ValueError:
        return None


USE = "run:use"  # This column contains a run's use in a search that tunes: one of the next three values.
PAIRS, CHOOSES, NOT_CHOSEN = "compared", "chooses", "not chosen"
CHOSEN = "chosen"  # This placeholder replaces tuned values, so that tuned keys are not axes.
# More combinations of tuned values than this are ignored, because a sweep.yaml may come from anyone.
MOST_ARMS = 10_000

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Tune:
    """The tuning of a search. An arm is one combination of values of the tuned keys.

    Attributes:
        values: The tried values, keyed by tuned key.
        seeds: The seeds whose runs choose each cell's arm.
        aside: The seeds whose runs chose it in earlier searches on the same sweep.
    """

    values: Mapping[str, Sequence[Any]]
    seeds: tuple[int, ...]
    aside: tuple[int, ...] = ()

    def chooses(self, seed: object) -> bool:
        """Return True if the runs of a seed serve only to choose an arm, and are not compared."""
        return seed in self.aside or (seed in self.seeds and len(self.arms()) > 1)

    def arms(self) -> list[tuple[str, ...]]:
        """Return all combinations of tuned values, each as a tuple of strings (see `identity`), one for each key."""
        return list(itertools.product(*(map(identity, values) for values in self.values.values())))

    def arm(self, row: Row) -> tuple[str, ...]:
        return tuple(identity(row.get(key)) for key in self.values)


@dataclass(frozen=True)
class Tuned:
    """The runs of sweeps, with the tuning of their searches.

    Attributes:
        runs: The runs, as `collect` returns them, with the column USE if a search tuned.
        by_sweep: The tuning of each search that tuned, keyed by the sweep's name.
        chosen: The tuned keys and values of each run that has the chosen values, keyed by its path.
    """

    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    by_sweep: Mapping[str, Tune] = field(default_factory=dict)
    chosen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """The tuned keys of all sweeps."""
        return list(dict.fromkeys(key for tune in self.by_sweep.values() for key in tune.values))

    def compared(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the compared rows, with tuned values masked so that tuned keys are no axes."""
        if not self.by_sweep:
            return rows
        kept = rows[~rows[USE].isin((CHOOSES, NOT_CHOSEN))].copy()
        for name, tune in self.by_sweep.items():
            kept = _masked(kept, tune, kept["run:sweep"] == name)
        return kept

    def with_values(self, groups: Sequence[Group]) -> list[Group]:
        """Return copies of the groups whose keys include the values chosen for them."""
        return [
            replace(group, keys={**dict.fromkeys(self.keys), **self.values_of(group), **group.keys})
            for group in groups
        ]

    def values_of(self, group: Group) -> Mapping[str, Any]:
        """Return the values chosen for a group, keyed by tuned key. May be empty."""
        return next((self.chosen[str(run.path)] for run in group.runs if str(run.path) in self.chosen), {})


def read_tuned(runs: pd.DataFrame, sweeps: Sequence[SweepDir], metric: Metric) -> Tuned:
    """Return the runs with the tuning of their searches, which chose values by `metric`."""
    by_sweep = {name: tune for name, sweep in sweep_names(sweeps).items() if (tune := _tune(sweep))}
    if not by_sweep:
        return Tuned(runs)
    use, chosen = {}, {}
    for name, tune in by_sweep.items():
        for rows in _cells(runs, name, tune):
            best = _choice(rows, tune, metric)
            for row in rows:
                is_best = best is not None and tune.arm(row) == best
                if tune.chooses(row[SEED]):
                    use[row["run:path"]] = CHOOSES
                else:
                    use[row["run:path"]] = PAIRS if is_best else NOT_CHOSEN
                if is_best:
                    chosen[row["run:path"]] = {key: row[key] for key in tune.values}
    return Tuned(runs.assign(**{USE: runs["run:path"].map(use)}), by_sweep, chosen)


def _tune(sweep: SweepDir) -> Tune | None:
    """Read the tuning from a sweep.yaml. None if nothing was tuned or the file is unreadable."""
    block = read_search(sweep)
    aside = _whole(block.get("chose"))
    try:
        values, whole = block["tune"]["values"], _whole(block["tune"]["seeds"])
        lists = {str(key): list(of) for key, of in values.items() if isinstance(of, list) and of}
    except (KeyError, TypeError, AttributeError):
        lists, whole = {}, ()
    if not lists or not whole or math.prod(map(len, lists.values())) > MOST_ARMS:
        return Tune({}, (), aside) if aside else None
    return Tune(lists, whole, aside)


def _whole(seeds: object) -> tuple[int, ...]:
    return tuple(seed for seed in seeds if isinstance(seed, int)) if isinstance(seeds, list) else ()


def _cells(runs: pd.DataFrame, sweep: str, tune: Tune) -> list[list[dict[str, Any]]]:
    """Sort the readable runs of a sweep into cells.

    The runs of a cell differ only in tuned values and seed.
    """
    own = runs[(runs["run:sweep"] == sweep) & runs["run:problem"].isna()]
    own = own.assign(**{key: own.get(key) for key in (*CORE_AXES, SEED, *tune.values)})
    masked = _masked(own, tune, pd.Series(True, index=own.index))
    names = [*CORE_AXES, *other_axes(masked)]
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row, kept in zip(as_rows(own), as_rows(masked[names]), strict=True):
        found.setdefault(tuple(identity(kept[name]) for name in names), []).append(row)
    return list(found.values())


def _masked(rows: pd.DataFrame, tune: Tune, which: "pd.Series[bool]") -> pd.DataFrame:
    """Replace tuned values, and values that always equal them, by a placeholder in the rows `which`."""
    masked = rows.copy()
    for key in tune.values:
        if key in rows.columns:
            values = rows.loc[which, key].map(identity)
            follow = [
                name
                for name in config_keys(rows)
                if values.nunique() > 1 and (rows.loc[which, name].map(identity) == values).all()
            ]
            kept = (key, *CORE_AXES, SEED)
            masked.loc[which, [key, *(name for name in follow if name not in kept)]] = CHOSEN
    return masked


def _choice(rows: Sequence[Row], tune: Tune, metric: Metric) -> tuple[str, ...] | None:
    """Return the arm that the search chooses for a cell. None while runs are missing."""
    arms = tune.arms()
    if len(arms) == 1:
        return arms[0]
    ended = {
        (tune.arm(row), row[SEED]): row for row in rows if row["run:state"] in (State.DONE, State.FAILED)
    }
    given_up = _given_up(rows, tune)
    if any((arm, seed) not in ended for arm in arms if arm not in given_up for seed in tune.seeds):
        return None
    found = [[ended[arm, seed] for seed in tune.seeds if (arm, seed) in ended] for arm in arms]
    measured = [[_value(row, metric) for row in of_arm] for of_arm in found]
    known = [[value for value in values if value is not None] for values in measured]
    return arms[choose(known, higher_is_better=metric.higher_is_better)]


def _given_up(rows: Sequence[Row], tune: Tune) -> set[tuple[str, ...]]:
    """Return the arms that were given up: GIVE_UP_AFTER runs failed, and none finished."""
    states: dict[tuple[str, ...], list[object]] = {}
    for row in rows:
        states.setdefault(tune.arm(row), []).append(row["run:state"])
    return {
        arm
        for arm, of_arm in states.items()
        if of_arm.count(State.FAILED) >= GIVE_UP_AFTER and State.DONE not in of_arm
    }


def _value(row: Row, metric: Metric) -> float | None:
    """Return a run's metric. NaN if the run diverged or failed, None if it lacks the metric."""
    if row["run:state"] != State.DONE or row.get("run:status") == "diverged":
        return math.nan
    value = row.get(f"metric:{metric.name}", math.nan)
    return value if math.isfinite(value) else None
