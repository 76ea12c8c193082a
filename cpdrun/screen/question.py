"""From an experiment and the words typed to a screen: factors, a design, and the runs of its rows."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpdrun.config.compose import EXPERIMENT
from cpdrun.config.errors import ConfigError
from cpdrun.config.overrides import typed_form
from cpdrun.config.script import is_script
from cpdrun.record import SweepDir
from cpdrun.screen.cases import Cases
from cpdrun.screen.experiment import body_of, copy_yaml, write_experiment
from cpdrun.screen.factors import Factor, Group, factors_of, groups_of
from cpdrun.screen.layers import Layer, ask_layers
from cpdrun.screen.settings import GRADIENT, PRODUCTS, Settings, settings
from cpdrun.stats.screening import LOW, Design, design
from cpdrun.sweep import Plan, PlannedRun, plan
from cpdrun.sweep.asked import CASE, SCREEN, SEARCH

SEED, FORMAT, APS, RECIPE, RULES = "seed", "format", "aps", "recipe", "precision.rules"
SET_HERE = {  # what the screen's own values would be lost to
    FORMAT: "screen.low.gradient=FORMAT says what low bits are",
    "full_precision.layers": "screen.groups says what is low or high as one",
    RULES: "screen.low and screen.high say what is rounded to what",
}


@dataclass(frozen=True)
class Question:
    settings: Settings
    experiment: str
    body: dict[str, Any]  # of the experiment's file, but for what it asks
    search: dict[str, Any]  # its block of that name, and what was typed of it
    config_dir: Path | None
    words: list[str]  # typed, that every run has
    groups: list[Group]
    factors: list[Factor]
    layers: list[Layer]
    cases: Cases
    design: Design
    rows: list[list[PlannedRun]]  # by row of the design and seed
    plan: Plan

    @property
    def directory(self) -> SweepDir:
        return self.plan.directory

    @property
    def runs(self) -> list[PlannedRun]:
        """Each once."""
        return self.plan.runs

    def low(self, row: int) -> list[int]:
        """The factors that are low in this row."""
        return [i for i, level in enumerate(self.design.levels[row]) if level == LOW]


def ask(
    texts: Sequence[str],
    config_dir: Path | None = None,
    *,
    imports: bool = True,
) -> Question:
    """Raises ConfigError for what `sweep.plan` refuses, for axes beside those of bits, and for what the screen sets
    itself; UserError where the model cannot be looked at."""
    keys = {_key(text): text.partition("=")[2] for text in texts}
    experiment = keys.get(EXPERIMENT)
    if experiment is None:
        raise ConfigError("say what to screen: cpdrun screen exp=NAME, such as exp=digits_screen_small")
    if SEED in keys:
        raise ConfigError("a screen draws its seeds itself, 0, 1, 2 ...; screen.seeds=N says how many")
    for key, instead in SET_HERE.items():
        if key in keys:
            raise ConfigError(f"{key}={keys[key]}: a screen sets {key} itself; {instead}")
    first = plan([*texts, f"{SEED}=0"], config_dir, imports=imports)
    config = first.runs[0].config
    if is_script(config):
        raise ConfigError(
            f"exp={experiment} runs a script, whose layers are not known before it does: no screen"
        )
    asked = settings(first.screen, first.search)
    base, aps = _held(first, asked, keys)
    body = body_of(experiment, config_dir)
    kept = config["full_precision"]["layers"]
    rules = config["precision"].get("rules", []) if config[RECIPE] is None else []
    layers = ask_layers(config)
    groups = groups_of(layers, asked)
    factors = factors_of(groups, asked)
    cases = Cases(asked, groups, factors, layers, base, aps, kept, rules)
    words = [text for text in texts if _is_of_runs(text, aps)]
    of = design(len(factors), foldover=asked.foldover)
    rows, planned = _planned(of, cases, experiment, body, words, config_dir, first.directory.name, imports)
    return Question(
        *(asked, experiment, body, dict(first.search), config_dir, words),
        *(groups, factors, layers, cases, of, rows, planned),
    )


def row_cases(of: Design, cases: Cases) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The values of each case by its name, and the name of each row's: rows of the same levels are one."""
    found: dict[str, dict[str, Any]] = {}
    names: dict[tuple[int, ...], str] = {}
    for row in of.levels.tolist():
        low = tuple(i for i, level in enumerate(row) if level == LOW)
        name = names.setdefault(low, f"row {len(names) + 1:02d}")
        found.setdefault(name, cases.of(low))
    of_rows = [names[tuple(i for i, level in enumerate(row) if level == LOW)] for row in of.levels.tolist()]
    return found, of_rows


def _planned(
    of: Design,
    cases: Cases,
    experiment: str,
    body: Mapping[str, Any],
    words: Sequence[str],
    config_dir: Path | None,
    name: str,
    imports: bool,
) -> tuple[list[list[PlannedRun]], Plan]:
    """Through a file that is thrown away: a dry run leaves nothing behind."""
    by_case, of_rows = row_cases(of, cases)
    seeds = list(range(cases.asked.seeds))
    with tempfile.TemporaryDirectory() as folder:
        copy_yaml(config_dir, Path(folder))
        write_experiment(Path(folder), experiment, "", body, by_case, seeds)
        planned = plan([*words, f"name={typed_form(name)}"], Path(folder), imports=imports)
    if more := [key for key in planned.axes if key not in (CASE, SEED)]:
        raise ConfigError(f"a screen is of one cell, and {more[0]} is an axis: type {more[0]}=VALUE")
    found = {(run.config[CASE], run.config[SEED]): run for run in planned.runs}
    return [[found[case, seed] for seed in seeds] for case in of_rows], planned


def _held(first: Plan, asked: Settings, keys: Mapping[str, str]) -> tuple[dict[str, Any], bool | None]:
    """What the experiment's axes of one value, and its case, give every run; and whether low gradients are scaled.
    Raises ConfigError for other axes, and for a recipe."""
    of_bits = (FORMAT, APS, RECIPE, "precision")
    of_products = any(role in PRODUCTS for role in asked.roles)
    base: dict[str, Any] = {}
    for key, values in first.axes.items():
        if key == SEED or (key in of_bits and len(values) > 1):
            continue
        if len(values) > 1 or key == CASE:
            raise ConfigError(
                f"exp={keys[EXPERIMENT]} has {len(values)} values of {key}, and a screen is of one cell: type "
                f"{key}={typed_form(values[0])}"
                if key != CASE
                else f"exp={keys[EXPERIMENT]} names cases, and a screen makes its own: write an experiment without"
            )
        base[key] = values[0]
    config = first.runs[0].config
    scaled = config[APS] if APS in keys else base.get(APS)
    aps = True if len(first.axes.get(APS, ())) > 1 else scaled
    recipe = None if len(first.axes.get(RECIPE, ())) > 1 else config[RECIPE]
    if of_products and recipe is not None:
        raise ConfigError(
            f"{RECIPE}={recipe} says what products read, and so does a screen: type {RECIPE}=null"
        )
    if of_products and len(first.axes.get(RECIPE, ())) > 1:
        base[RECIPE] = None
    if GRADIENT not in asked.roles and len(first.axes.get(FORMAT, ())) > 1:
        base |= {FORMAT: "fp32", APS: False}
    return base, aps


def _is_of_runs(text: str, aps: bool | None) -> bool:
    """Whether this word stays one: not what the screen is asked, nor what its cases say."""
    key = _key(text)
    return (
        key.split(".")[0] not in (SCREEN, SEARCH) and not (key == APS and aps is not None) and key != "name"
    )


def _key(text: str) -> str:
    return text.split("=")[0].lstrip("+~")
