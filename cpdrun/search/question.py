"""Turn the axes of an experiment into chains of candidates and plan the runs of every cell.

A cell is a point of the axes without its seed. The candidates of a chain differ along the axis of bits. That axis is
`format`, or else an axis whose values all name formats, such as precision.weights, count bits, or are choices of a
group that names formats, such as precision. With `case`, each case is a chain of its own. Every other axis, such as
aps or world_size, multiplies the chains. The baseline of a candidate is the cell in which the keys of
`search.baseline` have the values given there and all other axes have the candidate's values.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import cell_name
from cpdrun.config.keys import INGREDIENTS, has_key
from cpdrun.config.overrides import typed_form
from cpdrun.config.script import SCRIPT, direction_of, is_script
from cpdrun.record import SweepDir
from cpdrun.search.arms import held, key_of, with_arms
from cpdrun.search.axes import Axis, read_axis, value_text, values_of
from cpdrun.search.schedule import Candidate, Chain
from cpdrun.search.settings import Settings, settings
from cpdrun.search.tune import Tuning
from cpdrun.study import formats
from cpdrun.study.axes import APS, axis_text, axis_title, last_words
from cpdrun.study.collect import CASE, FORMAT, SCALING, SEED
from cpdrun.sweep import Plan, PlannedRun, plan

BASELINE = "search.baseline"

# The runs of a cell by seed.
Cell = dict[int, PlannedRun]


@dataclass(frozen=True)
class Question:
    """What a search decides: the chains of candidates and the planned runs of every cell.

    Attributes:
        directory: The folder of the sweep.
        settings: The `search:` block.
        axis: The axis of bits.
        baseline_values: The values that make a run a baseline, by keys of its config.
        chains: The chains of candidates.
        cells: The runs of each cell, by the name of the cell's run of seed 0.
        axes: The values of every axis.
        typed: The overrides that the user typed.
        tuning: The tuned keys and the arms of each cell. It is empty if nothing is tuned.
    """

    directory: SweepDir
    settings: Settings
    axis: Axis
    baseline_values: dict[str, Any]
    chains: list[Chain]
    cells: dict[str, Cell]
    axes: dict[str, list[Any]]
    typed: list[str]
    tuning: Tuning = field(default_factory=Tuning)

    def config(self, name: str) -> dict[str, Any]:
        """Return the config of the given cell. For tuned cells, use the first listed values."""
        return self.cells[self.tuning.arms.get(name, (name,))[0]][0].config

    @property
    def baseline_name(self) -> str:
        """The name of the baseline, such as `fp32`, `bf16`, the name of a case, or `fp32 with optim.lr 0.1`."""
        return self.axis.baseline_name

    @property
    def baseline(self) -> dict[str, Any]:
        """The values that turn a candidate's cell into its baseline's cell, as the user typed them."""
        return self.axis.baseline

    def as_plan(self, runs: Sequence[PlannedRun]) -> Plan:
        """Return a plan of these runs, from which sweep.yaml is written."""
        return Plan(self.directory, self.typed, self.axes, list(runs))

    @property
    def asked(self) -> dict[str, Any]:
        """The question as sweep.yaml records it, so that a report answers the same question."""
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
    """Read the axes of an experiment and return the question of its search.

    Args:
        texts: The overrides that the user typed, such as `format=e5m2,e4m3`.
        config_dir: A config directory of the user's own.
        imports: Whether planning may import what the config names.

    Raises:
        ConfigError: `sweep.plan` refuses the overrides, a seed was typed, the baseline is not a cell of the
            experiment, or no candidate is left to compare with the baseline.
    """
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
    # If keys are tuned, the runs are those of the arms, which `with_arms` plans.
    count = 1 if asked.tune else asked.most_seeds
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
            continue  # The baseline's own format is not a candidate, whether it is scaled or not.
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
    """Return whether `key` is an ingredient that no baseline's recipe has.

    The value of such an ingredient does not distinguish one baseline from another.
    """
    return key.split(".")[0] == INGREDIENTS and not any(has_key(run.config, key) for run in against.runs)


def _check_metric(name: str | None, config: Mapping[str, Any]) -> None:
    """Check that the direction of a script's metric is known.

    cpdrun knows only what the overrides say about a script.

    Raises:
        ConfigError: The metric of a script has no direction.
    """
    if name is not None and is_script(config) and direction_of(name, config[SCRIPT]["direction"]) is None:
        raise ConfigError(
            f"search.metric={name}: is less of it better, or more? Type script.direction.{name}=min or "
            f"script.direction.{name}=max"
        )


def _cells(runs: Sequence[PlannedRun]) -> dict[str, Cell]:
    """Return the cells of the runs, by the name of each cell in the ledger."""
    found: dict[tuple[str, ...], Cell] = {}
    for run in runs:
        point = tuple(text for text in run.overrides if text.split("=")[0] != SEED)
        found.setdefault(point, {})[run.config[SEED]] = run
    return {cell_name(cell[0].config): cell for cell in found.values()}


def _point(run: PlannedRun, keys: Sequence[str]) -> str:
    return json.dumps({key: value_text(run, key) for key in keys}, sort_keys=True, default=str)


def _label(run: PlannedRun, axis: Axis) -> str:
    """Return what all candidates of a chain have in common, such as `with APS, workers 8` or `of weights`.

    For a case, return only the values of the other axes.
    """
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
    """Group candidates by bit width, most bits first.

    Within a width, the format with the most exponent bits, and so the widest range, comes first. Among choices, the
    choice that rounds less comes first. This order is used if nothing is predicted (`cpdrun.search.observed`).
    """
    widths: dict[float, list[Candidate]] = {}
    for _, candidate in sorted(found, key=lambda pair: formats.widest_first(pair[0])):
        widths.setdefault(candidate.bits, []).append(candidate)
    return tuple(map(tuple, widths.values()))
