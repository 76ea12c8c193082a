"""Plan the candidates, baselines, and runs of a search.

A cell is a combination of values of all axes except the seed. The axis of bits is the axis whose values name formats:
`format` if the experiment has it, otherwise another axis such as precision.weights, or a config group such as
precision. Cells that differ only on this axis form a ladder, and so does each case of an experiment with `case`. The
question of a search is the set of its candidates, their baselines, and its settings.

A candidate's baseline is the cell with the values of `search.baseline`, and with the candidate's values on all other
axes. With tuned keys, each cell is replaced by its arms: one cell for each combination of the tuned values.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import belongs_to_identity, cell_name
from cpdrun.config.overrides import INGREDIENTS, get_key, has_key, typed_form
from cpdrun.config.script import SCRIPT, direction_of, is_script
from cpdrun.record import SweepDir
from cpdrun.search.ladders import Candidate, Ladder, Tuning, renamed
from cpdrun.search.settings import Settings, settings
from cpdrun.stats.means import FIRST_SEED
from cpdrun.study import formats
from cpdrun.study.axes import APS, axis_text, axis_title, last_words
from cpdrun.study.collect import CASE, FORMAT, RECIPE, SCALING, SEED
from cpdrun.study.planned_axis import PlannedAxis, read_axis, value_text, values_of
from cpdrun.study.search_results import Cell
from cpdrun.sweep import Plan, PlannedRun, plan

BASELINE = "search.baseline"
# These keys are compared, so they cannot be tuned.
COMPARED_KEYS = ("format", "aps", "world_size", "case")


@dataclass(frozen=True)
class Question:
    """The ladders, settings, and planned runs of a search.

    Attributes:
        directory: The folder of the sweep.
        settings: The settings in the `search:` section.
        axis: The axis of bits.
        baseline_values: The values that define the baseline, keyed as in run records.
        ladders: The ladders of candidates.
        cells: The planned runs of each cell, keyed by name and seed. With tuned keys, the cells are the arms.
        axes: The values of each axis.
        typed: The overrides that the user typed.
        tuning: The tuned keys and the arms of each cell.
    """

    directory: SweepDir
    settings: Settings
    axis: PlannedAxis
    baseline_values: dict[str, Any]
    ladders: list[Ladder]
    cells: dict[str, Cell]
    axes: dict[str, list[Any]]
    typed: list[str]
    tuning: Tuning = field(default_factory=Tuning)

    def config(self, name: str) -> dict[str, Any]:
        """Return the config of a cell's first run."""
        return self.first_run(name).config

    @property
    def baseline_name(self) -> str:
        """The name of the baseline, such as `fp32`, a case, or `fp32 with optim.lr 0.1`."""
        return self.axis.baseline_name

    def as_plan(self, runs: Sequence[PlannedRun]) -> Plan:
        """Return a plan with only these runs, for sweep.yaml."""
        return Plan(self.directory, self.typed, self.axes, list(runs))

    def first_run(self, name: str) -> PlannedRun:
        """Return a cell's run with seed 0. A tuned cell uses the first listed values."""
        return self.cells[self.tuning.arms.get(name, (name,))[0]][0]

    @property
    def baseline_runs(self) -> dict[str, PlannedRun]:
        """The first run of each baseline, keyed by cell."""
        return {ladder.baseline: self.first_run(ladder.baseline) for ladder in self.ladders}

    @property
    def asked(self) -> dict[str, Any]:
        """The settings that sweep.yaml records, so that a report judges the same comparison."""
        about = {key: getattr(self.settings, key) for key in ("tolerance", "confidence", "metric")}
        about |= {"baseline": self.axis.baseline}
        about |= (
            {"baseline_values": self.baseline_values} if self.baseline_values != self.axis.baseline else {}
        )
        about |= {"axis": self.axis.key} if self.axis.key not in (FORMAT, CASE) else {}
        tuned = {
            "values": {key: list(of) for key, of in self.tuning.keys.items()},
            "seeds": list(self.tuning.seeds),
        }
        return about | ({"tune": tuned} if self.tuning else {})


def ask(texts: Sequence[str], config_dir: Path | None = None, *, imports: bool = True) -> Question:
    """Return the question of an experiment's search.

    Args:
        texts: The overrides that the user typed, such as `format=e5m2,e4m3`.
        config_dir: The user's config directory, if any.
        imports: Whether planning may import modules that the config names.

    Raises:
        ConfigError: The overrides are wrong, a seed was typed, the baseline is not a cell of the experiment, or there
            is no candidate.
    """
    keys = list(map(key_of, texts))
    if SEED in keys:
        raise ConfigError(
            "a search chooses its seeds itself: 0, 1, 2 ... Set search.most_seeds=N to limit their number"
        )
    first = plan([*texts, f"{SEED}=0"], config_dir, imports=imports)
    asked = settings(first.search)
    _check_metric(asked.metric, first.runs[0].config)
    words = [*texts, *_fixed_tuned_keys(asked, first, texts)]
    axis = read_axis(first, asked.baseline, is_whole=BASELINE in keys)
    # If keys are tuned, only arms are trained. `_with_arms` plans them, so one run of each cell is enough here.
    count = 1 if asked.tune else asked.most_seeds
    seeds = f"{SEED}={','.join(map(str, range(count)))}"
    candidates = plan([*words, seeds], config_dir, imports=imports)
    fixed = [f"{key}={typed_form(value)}" for key, value in axis.baseline.items()]
    against = plan([*words, *fixed, seeds], config_dir, imports=imports, of_baseline=True)
    found = _candidates(axis, candidates, against, fixed)
    ladders = [Ladder(label, _widths(each)) for label, each in found.items()]
    members = [candidate for each in found.values() for _, candidate in each]
    cells = _cells([*against.runs, *candidates.runs])
    baselines = [cell[0] for cell in _cells(against.runs).values()]
    values = values_of(axis, baselines[0], [cells[member.name][0] for member in members])
    cells = {name: cells[name] for name in dict.fromkeys(n for c in members for n in (c.baseline, c.name))}
    question = Question(
        candidates.directory, asked, axis, values, ladders, cells, candidates.axes, list(texts)
    )
    if not asked.tune:
        return question
    untuned = [*against.runs, *candidates.runs]
    return _with_arms(
        question, untuned, ((True, [*texts, *fixed]), (False, texts)), config_dir, imports=imports
    )


def _candidates(
    axis: PlannedAxis, candidates: Plan, against: Plan, fixed: Sequence[str]
) -> dict[str, list[tuple[str, Candidate]]]:
    """Return the candidates of each ladder, with their values on the axis of bits.

    `fixed` are the overrides that turn a cell into its baseline, for messages.

    Raises:
        ConfigError: A candidate has no baseline, or there is no candidate.
    """
    baselines = {name: cell[0] for name, cell in _cells(against.runs).items()}
    own = [key for key in axis.own if not _is_only_of_candidates(key, against)]
    names = {_point(run, own): name for name, run in baselines.items()}
    found: dict[str, list[tuple[str, Candidate]]] = {}
    for name, cell in _cells(candidates.runs).items():
        run, value = cell[0], axis.of(cell[0])
        baseline = names.get(_point(run, own))
        if baseline is None:
            raise ConfigError(
                f"{BASELINE}: the experiment has no run of {' '.join(fixed)} to compare {value} with"
            )
        if name in baselines or axis.is_baseline(run):
            continue  # the baseline's format is no candidate, with or without gradient scaling
        label = _label(run, axis)
        if axis.key == CASE:
            label = named = ", ".join(filter(None, [str(value), label]))
        else:
            named = " ".join(filter(None, [str(value), label]))
        bits = formats.bits(value)
        assert bits is not None, f"the bits of {value} are unknown"
        found.setdefault(label, []).append((value, Candidate(name, baseline, named, bits)))
    if not found:
        raise ConfigError(
            "no candidate is left besides the baseline: give formats, such as format=e5m2,e4m3,e3m0, or choices of a "
            "config group that sets formats, such as precision=fp32,pure_fp8"
        )
    return found


def _is_only_of_candidates(key: str, against: Plan) -> bool:
    """Return True for a recipe's ingredient that no baseline has. Such a key cannot identify a baseline."""
    return key.split(".")[0] == INGREDIENTS and not any(has_key(run.config, key) for run in against.runs)


def _check_metric(name: str | None, config: Mapping[str, Any]) -> None:
    """Raise ConfigError if a script's metric has no known direction."""
    if name is not None and is_script(config) and direction_of(name, config[SCRIPT]["direction"]) is None:
        raise ConfigError(
            f"search.metric={name}: the direction of this metric is unknown. Type script.direction.{name}=min or "
            f"script.direction.{name}=max"
        )


def _cells(runs: Sequence[PlannedRun]) -> dict[str, Cell]:
    """Group runs into cells, keyed by the cell's name and the seed."""
    found: dict[tuple[str, ...], Cell] = {}
    for run in runs:
        point = tuple(text for text in run.overrides if text.split("=")[0] != SEED)
        found.setdefault(point, {})[run.config[SEED]] = run
    return {cell_name(cell[0].config): cell for cell in found.values()}


def _point(run: PlannedRun, keys: Sequence[str]) -> str:
    return json.dumps({key: value_text(run, key) for key in keys}, sort_keys=True, default=str)


def _label(run: PlannedRun, axis: PlannedAxis) -> str:
    """Return the label of a run's ladder, such as `with APS, workers 8`.

    If the axis of bits is a setting such as `precision.weights`, the label begins with its name, as in `of weights`.
    The names of formats, cases and recipes say what they are.
    """
    scaled = "with APS" if run.config[APS] else "without APS"
    is_of_scaling = axis.key == FORMAT or APS in axis.varies or SCALING in axis.varies
    words = [f"of {last_words(axis.key)}"] if axis.key not in (FORMAT, CASE, RECIPE) else []
    words += [scaled] if is_of_scaling else []
    for key in axis.varies:
        value = value_text(run, key) if key != APS else None
        if value is not None and not (key == SCALING and value in ("none", "aps")):
            words.append(f"{axis_title(key)} {axis_text(value)}")
    return ", ".join(words)


def _widths(found: Sequence[tuple[str, Candidate]]) -> tuple[tuple[Candidate, ...], ...]:
    """Group candidates by bit width, most bits first.

    Without a prediction, the format with the widest range comes first within a width, and the choice of a config group
    that rounds the least.
    """
    widths: dict[float, list[Candidate]] = {}
    for _, candidate in sorted(found, key=lambda pair: formats.widest_first(pair[0])):
        widths.setdefault(candidate.bits, []).append(candidate)
    return tuple(map(tuple, widths.values()))


# ---- Tuned keys


def _fixed_tuned_keys(asked: Settings, first: Plan, texts: Sequence[str]) -> list[str]:
    """Return overrides that set each tuned key to its first value.

    Raises:
        ConfigError: A key cannot be tuned, or `search.most_seeds` exceeds FIRST_SEED.
    """
    config = first.runs[0].config
    typed = {key_of(text) for text in texts}
    for key in asked.tune:
        if key in COMPARED_KEYS or key == SEED or not belongs_to_identity(key):
            _refuse(
                key, "cannot be tuned: tune a key whose best value depends on the format, such as optim.lr"
            )
        if key in first.axes:
            _refuse(key, f"is an axis already: leave out {key}=..., or tune another key")
        if key in asked.baseline:
            _refuse(key, "cannot be tuned, because it defines the baseline")
        if key in typed:
            _refuse(key, f"is tuned: leave out {key}=...")
        if has_key(config, key) and isinstance(get_key(config, key), Mapping):
            _refuse(key, f"is a group of keys: tune one of them, such as {key}.{_first_number(config, key)}")
    if asked.tune and asked.most_seeds > FIRST_SEED:
        raise ConfigError(
            f"search.most_seeds={asked.most_seeds}: must be at most {FIRST_SEED} with search.tune, because seeds "
            f"from {FIRST_SEED} on choose the tuned values"
        )
    return [f"{key}={typed_form(values[0])}" for key, values in asked.tune.items()]


def _with_arms(
    question: Question,
    untuned: Iterable[PlannedRun],
    words: Iterable[tuple[bool, Sequence[str]]],
    config_dir: Path | None,
    *,
    imports: bool,
) -> Question:
    """Return the question with each cell replaced by its arms.

    `untuned` are the runs with seed 0 from which the question was made. `words` has, for each plan of those runs,
    whether it is the baselines' and its overrides without tuned keys and seeds.
    """
    asked, tune = question.settings, question.settings.tune
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + asked.tune_seeds))
    axes = [f"{key}={','.join(map(typed_form, values))}" for key, values in tune.items()]
    axes.append(f"{SEED}={','.join(map(str, (*range(asked.most_seeds), *seeds)))}")
    names = {_untuned_point(run, tune): cell_name(run.config) for run in untuned}
    found: dict[str, dict[str, Cell]] = {}
    for of_baseline, texts in words:
        runs = plan([*texts, *axes], config_dir, imports=imports, of_baseline=of_baseline).runs
        for arm, cell in _cells(runs).items():
            found.setdefault(names[_untuned_point(cell[0], tune)], {}).setdefault(arm, cell)
    cells = {arm: cell for name in question.cells for arm, cell in found[name].items()}
    return replace(
        question,
        ladders=[
            renamed(ladder, {name: tuned(name) for name in question.cells}) for ladder in question.ladders
        ],
        cells=cells,
        axes={**question.axes, **tune, SEED: list(range(asked.most_seeds))},
        tuning=Tuning(
            tune,
            seeds,
            {tuned(name): tuple(found[name]) for name in question.cells},
            {arm: _tuned_values(cell[0], tune) for arm, cell in cells.items()},
        ),
    )


def tuned(name: str) -> str:
    """Return the name of a cell whose arm is not chosen yet. No run has this name."""
    return f"{name}, tuned"


def _untuned_point(run: PlannedRun, tune: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(text for text in run.overrides if key_of(text) not in (SEED, *tune)))


def _tuned_values(run: PlannedRun, tune: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return a run's values of the tuned keys, as `search.tune` lists them."""
    typed = {key_of(text): text.partition("=")[2] for text in run.overrides}
    return {
        key: next(value for value in values if typed_form(value) == typed[key])
        for key, values in tune.items()
    }


def key_of(text: str) -> str:
    """Return the key of an override. Example: data.size for `+data.size=3`."""
    return text.split("=")[0].lstrip("+~")


def _first_number(config: Mapping[str, Any], key: str) -> str:
    numbers = (name for name, value in get_key(config, key).items() if isinstance(value, float))
    return next(numbers, "lr")


def _refuse(key: str, why: str) -> None:
    raise ConfigError(f"search.tune: {key} {why}")
