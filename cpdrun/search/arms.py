"""Plan the runs of a search that tunes: every cell of the question with each combination of the tuned values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import belongs_to_identity, cell_name
from cpdrun.config.keys import get_key, has_key
from cpdrun.config.overrides import typed_form
from cpdrun.search.schedule import Chain
from cpdrun.search.settings import Settings
from cpdrun.search.tune import Tuning
from cpdrun.stats.means import FIRST_SEED
from cpdrun.study.collect import SEED
from cpdrun.sweep import Plan, PlannedRun, plan

if TYPE_CHECKING:
    from cpdrun.search.question import Cell, Question

# A search compares these keys. To tune one of them would answer another question.
ASKED = (
    "format",
    "aps",
    "world_size",
    "case",
)


def held(asked: Settings, first: Plan, texts: Sequence[str]) -> list[str]:
    """Return overrides that fix each tuned key at its first value.

    With these, the question can be read without the other values.

    Raises:
        ConfigError: A key cannot be tuned.
    """
    config = first.runs[0].config
    typed = {key_of(text) for text in texts}
    for key in asked.tune:
        if key in ASKED or key == SEED or not belongs_to_identity(key):
            _refuse(key, "cannot be tuned: tune what a run of each format needs set anew, such as optim.lr")
        if key in first.axes:
            _refuse(key, f"is an axis already: leave out {key}=..., or tune another key")
        if key in asked.baseline:
            _refuse(key, "is what names the baseline")
        if key in typed:
            _refuse(key, f"is tuned: leave out {key}=...")
        if has_key(config, key) and isinstance(get_key(config, key), Mapping):
            _refuse(key, f"is a group of keys: tune one of them, such as {key}.{_first_number(config, key)}")
    if asked.tune and asked.most_seeds > FIRST_SEED:
        raise ConfigError(
            f"search.most_seeds={asked.most_seeds}: at most {FIRST_SEED} where search.tune is given, for seeds from "
            f"{FIRST_SEED} on choose"
        )
    return [f"{key}={typed_form(values[0])}" for key, values in asked.tune.items()]


def with_arms(
    question: "Question",
    untuned: Iterable[PlannedRun],
    words: Iterable[tuple[bool, Sequence[str]]],
    config_dir: Path | None,
    *,
    imports: bool,
) -> "Question":
    """Return the question with each cell replaced by its arms.

    Args:
        question: The question without tuning.
        untuned: The runs of seed 0 from which the question was made.
        words: For each plan from which these runs came, whether it is the baseline's plan, and its overrides without
            tuned keys and seeds.
        config_dir: A config directory of the user's own.
        imports: Whether planning may import what the config names.
    """
    asked = question.settings
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + asked.tune_seeds))
    axes = [f"{key}={_axis(values)}" for key, values in asked.tune.items()]
    axes.append(f"{SEED}={','.join(map(str, (*range(asked.most_seeds), *seeds)))}")
    of_point = {_point(run, asked.tune): cell_name(run.config) for run in untuned}
    found: dict[str, dict[tuple[str, ...], Cell]] = {}
    for of_baseline, texts in words:
        for run in plan([*texts, *axes], config_dir, imports=imports, of_baseline=of_baseline).runs:
            cell = found.setdefault(of_point[_point(run, asked.tune)], {})
            cell.setdefault(_values(run, asked.tune), {}).setdefault(run.config[SEED], run)
    cells: dict[str, Cell] = {}
    arms: dict[str, tuple[str, ...]] = {}
    values: dict[str, dict[str, Any]] = {}
    for name in question.cells:
        for of_arm, cell in found[name].items():
            arm = cell_name(cell[0].config)
            cells[arm] = cell
            values[arm] = _read(of_arm, asked.tune)
            arms[tuned(name)] = (*arms.get(tuned(name), ()), arm)
    return replace(
        question,
        chains=[_of_tuned(chain) for chain in question.chains],
        cells=cells,
        axes={**question.axes, **asked.tune, SEED: list(range(asked.most_seeds))},
        tuning=Tuning(asked.tune, seeds, arms, values),
    )


def tuned(name: str) -> str:
    """Return the name of a cell whose arm is still to be chosen. No run has this name."""
    return f"{name}, tuned"


def _of_tuned(chain: Chain) -> Chain:
    widths = tuple(
        tuple(replace(c, name=tuned(c.name), baseline=tuned(c.baseline)) for c in width)
        for width in chain.widths
    )
    return replace(chain, widths=widths)


def _axis(values: Sequence[Any]) -> str:
    return ",".join(map(typed_form, values))


def _point(run: PlannedRun, tune: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(text for text in run.overrides if key_of(text) not in (SEED, *tune)))


def _values(run: PlannedRun, tune: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values of the tuned keys as they were typed, in the order of the keys."""
    typed = {key_of(text): text.partition("=")[2] for text in run.overrides}
    return tuple(typed[key] for key in tune)


def _read(of_arm: Sequence[str], tune: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {
        key: next(value for value in values if typed_form(value) == text)
        for (key, values), text in zip(tune.items(), of_arm, strict=True)
    }


def key_of(text: str) -> str:
    """Return the key of an override. For example, the key of `+data.size=3` is data.size."""
    return text.split("=")[0].lstrip("+~")


def _first_number(config: Mapping[str, Any], key: str) -> str:
    numbers = (name for name, value in get_key(config, key).items() if isinstance(value, float))
    return next(numbers, "lr")


def _refuse(key: str, why: str) -> None:
    raise ConfigError(f"search.tune: {key} {why}")
