"""Plan a screen: its factors, its design, and its runs.

A screen trains the rows of a two-level design (`cpdrun.stats.screening`). A row sets each factor that varies to one of
two levels, and all rows use the same seeds.

With several low levels, there are several rounds. The first round varies all factors between the high level and the
first low level. Each later round varies the factors that the allocation put at the lowest level so far, and tries the
next lower level. All other factors keep the level of the allocation.

The rows are planned as an experiment with cases in a folder of its own, so that any command can repeat them with
--config-dir. The experiment's file equals the user's except for `sweep:` and `screen:`. The user's other yaml files are
copied, because a command takes only one config directory.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from cpdrun.config.compose import EXPERIMENT, Composer
from cpdrun.config.errors import ConfigError
from cpdrun.config.overrides import get_key, set_key, typed_form
from cpdrun.config.request import CASE, SCREEN, SEARCH
from cpdrun.config.script import is_script
from cpdrun.record import SweepDir, write_text
from cpdrun.search.allocate.factors import (
    Cases,
    Levels,
    Screen,
    Values,
    ask_layers,
    factors_of,
    groups_of,
)
from cpdrun.search.question import key_of
from cpdrun.search.settings import GRADIENT, PRODUCTS, ScreenSettings, screen_settings
from cpdrun.stats.means import FIRST_SEED
from cpdrun.stats.screening import LOW, Design, design
from cpdrun.sweep import Plan, PlannedRun, plan

SEED, FORMAT, APS, RECIPE, RULES = "seed", "format", "aps", "recipe", "precision.rules"
# The keys that the screen sets itself, and what to set instead.
SET_HERE = {
    FORMAT: "Set the low format with screen.low.gradient=FORMAT",
    "full_precision.layers": "Set the groups of layers with screen.groups",
    RULES: "Set the formats with screen.low and screen.high",
}


@dataclass(frozen=True)
class ScreenQuestion(Screen):
    """The factors that one round of a screen measures, and its runs.

    Attributes:
        experiment: The name of the experiment.
        body: The experiment's file without its `sweep:` and `screen:` sections.
        search: The `search:` section, with overrides.
        config_dir: The user's config directory, if any.
        words: The command-line overrides of all runs.
        cases: The converter from levels to config values.
        imports: Whether planning may import modules that the config names.
        number: The number of the round, starting at 1.
        base: The starting level of each factor in this round. In some rows, a factor that varies is one level lower.
        varied: The indices of the factors that vary, in the order of the design's columns.
        design: The two-level screening design.
        names: The names of all cases so far. A key lists (index of a factor, level) for each factor that is not high.
        rows: The runs of each row of the design, sorted by seed.
        plan: The plan of all runs so far.
    """

    experiment: str
    body: dict[str, Any]
    search: dict[str, Any]
    config_dir: Path | None
    words: list[str]
    cases: Cases
    imports: bool
    number: int
    base: Levels
    varied: tuple[int, ...]
    design: Design
    names: dict[tuple[tuple[int, int], ...], str]
    rows: list[list[PlannedRun]]
    plan: Plan

    @property
    def directory(self) -> SweepDir:
        return self.plan.directory

    @property
    def runs(self) -> list[PlannedRun]:
        """The runs of this round. Rows with the same levels share their runs."""
        return list({run.name: run for row in self.rows for run in row}.values())

    def low(self, row: int) -> list[int]:
        """Return the factors that are lowered in this row."""
        return _low(self.design, self.varied, row)

    def by_case(self) -> dict[str, Values]:
        """Return the config values of all cases, keyed by name."""
        return {name: self.cases.of(dict(levels)) for levels, name in self.names.items()}

    def next_round(self, levels: Levels) -> "ScreenQuestion | None":
        """Return the round after the allocation `levels`, or None if no factor may be lowered further.

        It varies the factors that `levels` puts at this round's lowest level, if they have a lower one.

        Raises:
            ConfigError: The runs cannot be planned.
        """
        lowest = self.settings.low
        further = [i for i, f in enumerate(self.factors) if len(lowest[f.role]) > self.number]
        varied = tuple(i for i in further if levels.get(i, 0) == self.number)
        if not varied:
            return None
        return _with_rows(replace(self, number=self.number + 1, base=dict(levels), varied=varied))

    def later_configs(self) -> list[dict[str, Any]]:
        """Return a config for each later round, to check early if the round can run.

        Raises:
            ConfigError: The runs cannot be planned.
        """
        lowest = {i: len(self.settings.low[f.role]) for i, f in enumerate(self.factors)}
        found = []
        for number in range(self.number + 1, self.settings.rounds + 1):
            levels = tuple((i, min(number, least)) for i, least in lowest.items())
            found.append(_planned(replace(self, names={levels: f"level {number}"})).runs[0].config)
        return found

    def most_runs(self) -> int:
        """Return the maximum total number of runs in this round and all later rounds."""
        depths = [len(self.settings.low[self.factors[i].role]) for i in self.varied]
        counts = [
            sum(depth >= n for depth in depths) for n in range(self.number + 1, self.settings.rounds + 1)
        ]
        rows = self.design.runs + sum(design(n, foldover=self.settings.foldover).runs for n in counts if n)
        return rows * self.settings.seeds


def ask(texts: Sequence[str], config_dir: Path | None = None, *, imports: bool = True) -> ScreenQuestion:
    """Return the first round of a screen.

    Args:
        texts: The overrides that the user typed, with exp=NAME.
        config_dir: The user's config directory, if any.
        imports: Whether planning may import modules that the config names.

    Raises:
        ConfigError: The overrides are wrong, an axis that is not about formats has several values, or an override sets
            a key that the screen sets itself.
        UserError: The layers of the model cannot be determined.
    """
    keys = {key_of(text): text.partition("=")[2] for text in texts}
    experiment = _check_typed(keys)
    first = plan([*texts, f"{SEED}=0"], config_dir, imports=imports)
    config = first.runs[0].config
    if is_script(config):
        raise ConfigError(f"exp={experiment} runs a script, but a screen must know the layers before a run")
    asked = screen_settings(first.screen, first.search)
    base, aps = _held(first, asked, keys)
    kept = config["full_precision"]["layers"]
    rules = config["precision"].get("rules", []) if config[RECIPE] is None else []
    layers = ask_layers(config)
    groups = groups_of(layers, asked)
    factors = factors_of(groups, asked)
    return _with_rows(
        ScreenQuestion(
            settings=asked,
            experiment=experiment,
            body=body_of(experiment, config_dir),
            search=dict(first.search),
            config_dir=config_dir,
            words=[text for text in texts if _is_of_runs(text, aps)],
            groups=groups,
            factors=factors,
            layers=layers,
            cases=Cases(asked, groups, factors, layers, base, aps, kept, rules),
            imports=imports,
            number=1,
            base={},
            varied=tuple(range(len(factors))),
            design=design(len(factors), foldover=asked.foldover),
            names={},
            rows=[],
            plan=first,
        )
    )


def _check_typed(keys: Mapping[str, str]) -> str:
    """Return the name of the experiment.

    Raises:
        ConfigError: No experiment was typed, or an override sets a key that the screen sets itself.
    """
    experiment = keys.get(EXPERIMENT)
    if experiment is None:
        raise ConfigError("name an experiment to screen: cpdrun search --allocate exp=digits_screen_small")
    if SEED in keys:
        raise ConfigError(
            f"a screen chooses its seeds itself, from {FIRST_SEED} on. Set screen.seeds=N to change their number"
        )
    for key, instead in SET_HERE.items():
        if key in keys:
            raise ConfigError(f"{key}={keys[key]}: a screen sets {key} itself. {instead}")
    return experiment


def _low(of: Design, varied: Sequence[int], row: int) -> list[int]:
    return [i for i, level in zip(varied, of.levels[row], strict=True) if level == LOW]


def _with_rows(question: ScreenQuestion) -> ScreenQuestion:
    """Return the round with its design and its planned runs.

    Rows with the same levels are one case, even across rounds.

    Raises:
        ConfigError: An axis other than `case` and `seed` has several values.
    """
    of = design(len(question.varied), foldover=question.settings.foldover)
    names, of_rows, base = dict(question.names), [], question.base
    prefix = f"round {question.number} " if question.number > 1 else ""
    for row in range(of.runs):
        levels = {**base, **{i: base.get(i, 0) + 1 for i in _low(of, question.varied, row)}}
        key = tuple(sorted((i, level) for i, level in levels.items() if level))
        count = sum(name.startswith(f"{prefix}row") for name in names.values())
        of_rows.append(names.setdefault(key, f"{prefix}row {count + 1:02d}"))
    found = replace(question, design=of, names=names)
    planned = _planned(found)
    if more := [key for key in planned.axes if key not in (CASE, SEED)]:
        raise ConfigError(f"{more[0]} has several values, but a screen needs one: type {more[0]}=VALUE")
    runs = {(run.config[CASE], run.config[SEED]): run for run in planned.runs}
    rows = [[runs[case, seed] for seed in question.settings.drawn] for case in of_rows]
    return replace(found, rows=rows, plan=planned)


def _planned(question: ScreenQuestion) -> Plan:
    """Plan the runs of all cases. The config folder is temporary, because a dry run leaves no files."""
    name = question.directory.name
    with tempfile.TemporaryDirectory() as folder:
        copy_yaml(question.config_dir, Path(folder))
        seeds = question.settings.drawn
        write_experiment(Path(folder), question.experiment, "", question.body, question.by_case(), seeds)
        return plan([*question.words, f"name={typed_form(name)}"], Path(folder), imports=question.imports)


def _held(first: Plan, asked: ScreenSettings, keys: Mapping[str, str]) -> tuple[dict[str, Any], bool | None]:
    """Return the config values of all runs, and whether low gradients use APS.

    The shared values are those of axes with a single value. Axes of formats may have several values, which the screen
    replaces. If APS is None, the experiment's setting is kept.

    Raises:
        ConfigError: Another axis has several values, or the experiment has cases or a conflicting recipe.
    """
    of_bits = (FORMAT, APS, RECIPE, "precision")
    of_products = any(role in PRODUCTS for role in asked.roles)
    base: dict[str, Any] = {}
    for key, values in first.axes.items():
        if key == SEED or (key in of_bits and len(values) > 1):
            continue
        if len(values) > 1 or key == CASE:
            raise ConfigError(
                f"exp={keys[EXPERIMENT]} has {len(values)} values of {key}, but a screen needs one: type "
                f"{key}={typed_form(values[0])}"
                if key != CASE
                else f"exp={keys[EXPERIMENT]} has cases, but a screen defines its own: use an experiment without cases"
            )
        base[key] = values[0]
    config = first.runs[0].config
    scaled = config[APS] if APS in keys else base.get(APS)
    aps = True if len(first.axes.get(APS, ())) > 1 else scaled
    recipe = None if len(first.axes.get(RECIPE, ())) > 1 else config[RECIPE]
    if of_products and recipe is not None:
        raise ConfigError(
            f"{RECIPE}={recipe} and the screen both set the formats of products: type {RECIPE}=null"
        )
    if of_products and len(first.axes.get(RECIPE, ())) > 1:
        base[RECIPE] = None
    if GRADIENT not in asked.roles and len(first.axes.get(FORMAT, ())) > 1:
        base |= {FORMAT: "fp32", APS: False}
    return base, aps


def _is_of_runs(text: str, aps: bool | None) -> bool:
    """Return True if an override applies to all runs."""
    key = key_of(text)
    return (
        key.split(".")[0] not in (SCREEN, SEARCH) and not (key == APS and aps is not None) and key != "name"
    )


# ---- Experiments with cases


def body_of(experiment: str, config_dir: Path | None) -> dict[str, Any]:
    """Return the content of an experiment's file without its `sweep:` and `screen:` sections.

    It has the choices of groups and the values that differ from the defaults, including inherited ones.
    """
    with Composer(config_dir) as composer:
        composed = composer.compose({EXPERIMENT: experiment})
        given = composer.set_by(experiment)
        groups = [group for group in composer.groups() if group in given]
        choices = {group: composer.choice(group, {EXPERIMENT: experiment}) for group in groups}
    overrides = [{f"override /{group}": choice} for group, choice in choices.items() if choice is not None]
    body: dict[str, Any] = {"defaults": [*overrides, "_self_"]}
    for key in given:
        if key not in groups and key.split(".")[0] not in ("sweep", SCREEN):
            set_key(body, key, get_key(composed, key))
    return body


def write_experiment(
    folder: Path,
    name: str,
    about: str,
    body: Mapping[str, Any],
    cases: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    search: Mapping[str, Any] | None = None,
) -> None:
    """Write an experiment to `folder`/exp/NAME.yaml, with `about` as the comment at its top.

    `search` replaces the section of the same name in `body`.

    Raises:
        OSError: The file cannot be written.
    """
    said = dict(body) | ({SEARCH: dict(search)} if search is not None else {})
    said["sweep"] = {"cases": {key: dict(values) for key, values in cases.items()}, "seed": list(seeds)}
    text = "".join(f"# {line}\n" for line in about.splitlines())
    path = folder / EXPERIMENT / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text + yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=120))


def copy_yaml(config_dir: Path | None, folder: Path) -> None:
    """Copy the yaml files of the user's config directory to `folder`.

    Raises:
        OSError: A file cannot be copied.
    """
    if config_dir is None:
        return
    for path in sorted(config_dir.rglob("*.yaml")):
        if not path.resolve().is_relative_to(folder.resolve()):
            target = folder / path.relative_to(config_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
