"""From an experiment's axes to chains of candidates, and to the runs of every cell.

A cell is a point of the axes without its seed. The axis of bits makes the candidates of a chain: `format`, or else one
whose values all name formats, such as precision.weights, count bits, or are choices of a group that names formats,
such as precision. `case` makes each case a chain of its own; every other axis, such as aps or world_size, makes chains
beside each other. A candidate's baseline is the cell in which the keys of `search.baseline` have the values given there
and all other axes its own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.keys import INGREDIENTS, has_key
from cpdrun.config.overrides import typed_form
from cpdrun.config.script import SCRIPT, direction_of, is_script
from cpdrun.record import SweepDir
from cpdrun.search.arms import held, key_of, with_arms
from cpdrun.search.axes import Axis, read_axis, value_text, values_of
from cpdrun.search.schedule import Candidate, Chain
from cpdrun.search.settings import Settings, settings
from cpdrun.search.tune import Tuning
from cpdrun.study.axes import formats
from cpdrun.study.axes.bits_axis import APS, last_words
from cpdrun.study.axes.titles import axis_text, axis_title
from cpdrun.study.collect import CASE, FORMAT, SCALING, SEED
from cpdrun.sweep import Plan, PlannedRun, plan

BASELINE = "search.baseline"

Cell = dict[int, PlannedRun]  # by seed


@dataclass(frozen=True)
class Question:
    directory: SweepDir
    settings: Settings
    axis: Axis
    baseline_values: dict[str, Any]  # what makes a run a baseline, by keys of its config
    chains: list[Chain]
    cells: dict[str, Cell]  # by name: that of its run of seed 0
    axes: dict[str, list[Any]]
    typed: list[str]
    tuning: Tuning = field(default_factory=Tuning)

    def config(self, name: str) -> dict[str, Any]:
        """Of a run of that cell; of one that is tuned with the values listed first."""
        return self.cells[self.tuning.arms.get(name, (name,))[0]][0].config

    @property
    def baseline_name(self) -> str:
        """`fp32`, `bf16`, the name of a case, `fp32 with optim.lr 0.1`."""
        return self.axis.baseline_name

    @property
    def baseline(self) -> dict[str, Any]:
        """The values that make a candidate's cell its baseline's, as they are typed."""
        return self.axis.baseline

    def as_plan(self, runs: Sequence[PlannedRun]) -> Plan:
        """The sweep of these runs, for its sweep.yaml."""
        return Plan(self.directory, self.typed, self.axes, list(runs))

    @property
    def asked(self) -> dict[str, Any]:
        """For sweep.yaml, so that a report answers the same question."""
        about = {key: getattr(self.settings, key) for key in ("tolerance", "confidence", "metric")}
        about |= {"baseline": self.baseline}
        about |= {"baseline_values": self.baseline_values} if self.baseline_values != self.baseline else {}
        about |= {"axis": self.axis.key} if self.axis.key not in (FORMAT, CASE) else {}
        tuned = {
            "values": {key: list(of) for key, of in self.tuning.keys.items()},
            "seeds": list(self.tuning.seeds),
        }
        return about | ({"tune": tuned} if self.tuning else {})


def ask(texts: Sequence[str], config_dir: Path | None = None, *, imports: bool = True) -> Question:
    """Raises ConfigError for what `sweep.plan` refuses, for a seed that is typed, for a baseline that is no cell of
    the experiment, and where no candidate is left beside it."""
    keys = list(map(key_of, texts))
    if SEED in keys:
        raise ConfigError(
            "a search draws its seeds itself, 0, 1, 2 ...; search.most_seeds=N says how many at most"
        )
    first = plan([*texts, f"{SEED}=0"], config_dir, imports=imports)
    asked = settings(first.search)
    _check_metric(asked.metric, first.runs[0].config)
    words = [*texts, *held(asked, first, texts)]
    axis = read_axis(first, asked.baseline, is_whole=BASELINE in keys)
    count = 1 if asked.tune else asked.most_seeds  # the runs of a search that tunes are those of its arms
    seeds = f"{SEED}={','.join(map(str, range(count)))}"
    candidates = plan([*words, seeds], config_dir, imports=imports)
    fixed = [f"{key}={typed_form(value)}" for key, value in axis.baseline.items()]
    against = plan([*words, *fixed, seeds], config_dir, imports=imports, of_baseline=True)
    cells = _cells([*against.runs, *candidates.runs])
    baselines = {name: cell[0] for name, cell in _cells(against.runs).items()}
    own = [key for key in axis.own if not _is_anothers(key, against)]
    names = {_point(run, own): name for name, run in baselines.items()}
    by_chain: dict[str, list[tuple[str, Candidate]]] = {}
    for name, cell in _cells(candidates.runs).items():
        run = cell[0]
        value = axis.of(run)
        against_name = names.get(_point(run, own))
        if against_name is None:
            raise ConfigError(f"{BASELINE}: no run of {' '.join(fixed)} beside {value}")
        if name in baselines or axis.is_baseline(run):
            continue  # the baseline's own format, scaled or not, is not in question
        label = _label(run, axis)
        if axis.key == CASE:
            label = named = ", ".join(filter(None, [str(value), label]))
        else:
            named = f"{value} {label}"
        candidate = Candidate(name, against_name, named, formats.bits(value))
        by_chain.setdefault(label, []).append((value, candidate))
    if not by_chain:
        raise ConfigError(
            "no candidate beside the baseline: give formats, such as format=e5m2,e4m3,e3m0, or choices of a group "
            "that names formats, such as precision=fp32,pure_fp8"
        )
    chains = [Chain(label, _widths(found)) for label, found in by_chain.items()]
    members = [candidate for found in by_chain.values() for _, candidate in found]
    runs = [cells[member.name][0] for member in members]
    values = values_of(axis, next(iter(baselines.values())), runs)
    cells = {name: cells[name] for name in dict.fromkeys(n for c in members for n in (c.baseline, c.name))}
    question = Question(
        candidates.directory, asked, axis, values, chains, cells, candidates.axes, list(texts)
    )
    if not asked.tune:
        return question
    untuned = [*against.runs, *candidates.runs]
    return with_arms(
        question, untuned, ((True, [*texts, *fixed]), (False, texts)), config_dir, imports=imports
    )


def _is_anothers(key: str, against: Plan) -> bool:
    """Whether it is an ingredient that the baseline's recipe does not have, whose value says nothing of its cell."""
    return key.split(".")[0] == INGREDIENTS and not any(has_key(run.config, key) for run in against.runs)


def _check_metric(name: str | None, config: Mapping[str, Any]) -> None:
    """Of a script cpdrun knows no more than its words say. Raises ConfigError."""
    if name is not None and is_script(config) and direction_of(name, config[SCRIPT]["direction"]) is None:
        raise ConfigError(
            f"search.metric={name}: is less of it better, or more? Type script.direction.{name}=min or "
            f"script.direction.{name}=max"
        )


def _cells(runs: Sequence[PlannedRun]) -> dict[str, Cell]:
    """By the name of the run of seed 0."""
    found: dict[tuple[str, ...], Cell] = {}
    for run in runs:
        point = tuple(text for text in run.overrides if text.split("=")[0] != SEED)
        found.setdefault(point, {})[run.config[SEED]] = run
    return {cell[0].name: cell for cell in found.values()}


def _point(run: PlannedRun, keys: Sequence[str]) -> str:
    return json.dumps({key: value_text(run, key) for key in keys}, sort_keys=True, default=str)


def _label(run: PlannedRun, axis: Axis) -> str:
    """What is the same along a chain: `with APS, workers 8`, `of weights`. Of a case only what differs beside it."""
    scaled = "with APS" if run.config[APS] else "without APS"
    is_of_scaling = axis.key == FORMAT or APS in axis.varies or SCALING in axis.varies
    words = [f"of {last_words(axis.key)}"] if axis.key not in (FORMAT, CASE) else []
    words += [scaled] if is_of_scaling else []
    for key in axis.varies:
        value = value_text(run, key) if key != APS else None
        if value is not None and not (key == SCALING and value in ("none", "aps")):
            words.append(f"{axis_title(key)} {axis_text(value)}")
    return ", ".join(words)


def _widths(found: Sequence[tuple[str, Candidate]]) -> tuple[tuple[Candidate, ...], ...]:
    """Most bits first; of one width the format with most exponent bits, and so most range, first, of choices then the
    one that rounds less: the order if nothing is predicted (`cpdrun.search.observed`)."""

    widths: dict[float, list[Candidate]] = {}
    for _, candidate in sorted(found, key=lambda pair: formats.widest_first(pair[0])):
        widths.setdefault(candidate.bits, []).append(candidate)
    return tuple(map(tuple, widths.values()))
