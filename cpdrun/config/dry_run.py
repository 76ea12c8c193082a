"""Describe the runs that a sweep would train, for `cpdrun sweep --dry-run`.

Nothing is started, and no module that a configuration names is imported.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from custom_fp.formats.names import is_own
from custom_fp.formats.synonyms import naming_notes
from rich.table import Table
from rich.text import Text

from cpdrun.config.compose import CONF_MODULE, EXPERIMENT, Composer, installed, resolve
from cpdrun.config.errors import ConfigError
from cpdrun.config.overrides import flatten, get_key, has_key
from cpdrun.config.plan import Plan, PlannedRun
from cpdrun.config.request import CASE
from cpdrun.config.run_states import RunStates
from cpdrun.config.shared_config import OURS, bytes_lines, class_name, recipe_lines, shown
from cpdrun.launch import Job, LaunchError, LaunchOptions
from cpdrun.launch.executors import make_executor, own_class, would_write
from cpdrun.launch.progress.best_result import duration
from cpdrun.launch.progress.status import estimate_seconds
from cpdrun.record import State
from cpdrun.shell.sanitize import visible_line
from cpdrun.shell.terminal import Terminal, widen

# The displayed states of runs that would be trained.
WORDS = {State.PENDING: "new", State.PREEMPTED: "to be resumed", State.DONE: "again"}


def print_dry_run(
    sweep: Plan,
    found: RunStates,
    to_run: Sequence[PlannedRun],
    options: LaunchOptions,
    config_dir: Path | None,
) -> None:
    """Print the description of a sweep and the table of its runs. A pager shows a long table."""
    console = Terminal()
    for line in (
        *_purpose(sweep.runs[0].config["exp"], config_dir),
        *_forecast(sweep, found, to_run, options),
        *recipe_lines(sweep),
        *bytes_lines(sweep),
        *naming_notes(value for run in sweep.runs for _, value in flatten(run.config)),
        *_missing(sweep, config_dir),
        *_unchecked_line(sweep),
    ):
        console.print(Text(visible_line(line)), soft_wrap=True)
    scripts, problem = _scripts(sweep, to_run, options)
    if problem:
        console.print(Text(visible_line(f"would not start: {problem}")), soft_wrap=True)
    for path, script in scripts.items():
        console.print(Text(visible_line(f"\nwould write {path}:\n\n{script}")), soft_wrap=True)
    table = _table(sweep, found, to_run)
    lines = console.height - 3
    widen(console, table)  # so that the names of runs can be copied
    if console.is_terminal and len(sweep.runs) > lines:
        with console.pager(styles=False):
            console.print(table)
    else:
        console.print(table)


def print_config(run: PlannedRun, of: int) -> None:
    """Print a run's config as yaml on stdout, as config.yaml will store it."""
    print(f"# {visible_line(run.name)}, the first of {of}")
    print(yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True), end="")


@dataclass
class SweepRun:
    """A run of a sweep.

    Attributes:
        name: The name of the run.
        state: The state of the run. Null if its record cannot be read.
        to_run: Whether the command trains the run.
        problem: The problem of the run's record. Null if there is none.
        overrides: The command-line overrides that produce the run.
        status: How a run that is done ended: finished, diverged, or did not learn. Null for other runs.
        metrics: The metrics of a run that is done. Empty for other runs.
    """

    name: str
    state: State | None
    to_run: bool
    problem: str | None
    overrides: list[str]
    status: str | None
    metrics: dict[str, float | None]


@dataclass
class SweepDescription:
    """A sweep and the state of its runs.

    Attributes:
        sweep: The folder of the sweep.
        plan: The axes and the number of runs as text.
        done: The number of runs that are done.
        to_run: The number of runs that the command trains.
        seconds: The expected seconds to train them. None if no run has ended.
        missing: The data folders that do not exist.
        scripts: The scripts that the launcher would write, keyed by path.
        problem: The reason if the launcher would refuse the runs, otherwise None.
        runs: The runs of the sweep.
    """

    sweep: str
    plan: str
    done: int
    to_run: int
    seconds: float | None
    missing: list[str]
    scripts: dict[str, str]
    problem: str | None
    runs: list[SweepRun]


def describe_sweep(
    sweep: Plan, found: RunStates, to_run: Sequence[PlannedRun], options: LaunchOptions
) -> SweepDescription:
    """Return the description of a sweep for a JSON document."""
    wanted = {run.name for run in to_run}
    runs = [
        SweepRun(
            run.name,
            found.states.get(run.name),
            run.name in wanted,
            found.odd.get(run.name),
            run.overrides,
            *_result(sweep, run, found),
        )
        for run in sweep.runs
    ]
    slots = _at_once(sweep, to_run, options) or 1
    scripts, problem = _scripts(sweep, to_run, options)
    return SweepDescription(
        sweep=str(sweep.directory.path),
        plan=sweep.describe(),
        done=found.count(State.DONE),
        to_run=len(to_run),
        seconds=estimate_seconds(sweep.directory.runs(), len(to_run), slots) if to_run else 0.0,
        missing=_missing_folders(sweep),
        scripts={str(path): script for path, script in scripts.items()},
        problem=problem,
        runs=runs,
    )


def _result(sweep: Plan, run: PlannedRun, found: RunStates) -> tuple[str | None, dict[str, float | None]]:
    """Return the status and the metrics of a run that is done. For other runs, return None and {}."""
    done = sweep.directory.run(run.name).result() if found.states.get(run.name) is State.DONE else None
    return (None, {}) if done is None else (str(done.status), dict(done.metrics))


def _purpose(exp: str | None, config_dir: Path | None) -> Iterator[str]:
    """Yield the comment at the top of the experiment's yaml, without commands."""
    if exp is None:
        return
    folders: list[Any] = [config_dir] if config_dir is not None else []
    folders += [files(package) for package in (CONF_MODULE, *installed())]
    places = (folder.joinpath(EXPERIMENT, f"{exp}.yaml") for folder in folders)
    source = next(place for place in places if place.is_file())
    for line in source.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            return
        if not line.startswith("# cpdrun "):
            yield line.removeprefix("#").strip()


def _forecast(
    sweep: Plan, found: RunStates, to_run: Sequence[PlannedRun], options: LaunchOptions
) -> Iterator[str]:
    """Yield a line such as `2 new, 1 to be resumed; about 10 s with 2 at once`."""
    if not to_run:
        return
    counts = Counter(WORDS.get(state, str(state)) for state in (found.states[run.name] for run in to_run))
    counted = ", ".join(f"{count} {word}" for word, count in counts.items())
    slots = _at_once(sweep, to_run, options)
    seconds = estimate_seconds(sweep.directory.runs(), len(to_run), slots or 1)
    if seconds is None:
        yield f"{counted}; the time is unknown until a run is done"
    else:
        at_once = f"with {slots} at once" if slots else "of computing in total"
        yield f"{counted}; about {duration(seconds)} {at_once}"


def _at_once(sweep: Plan, to_run: Sequence[PlannedRun], options: LaunchOptions) -> int | None:
    """Return the number of ranks that run at the same time.

    None if nothing would be trained, or if a scheduler or the user's own executor decides.
    """
    if not to_run or own_class(launcher := to_run[0].config["launcher"]) is None:
        return None
    return make_executor(launcher, sweep.directory, options).at_once(_jobs(sweep, to_run))


def _jobs(sweep: Plan, to_run: Sequence[PlannedRun]) -> list[Job]:
    return [Job(sweep.directory.run(run.name), run.config, run.overrides) for run in to_run]


def _missing(sweep: Plan, config_dir: Path | None) -> Iterator[str]:
    missing = _missing_folders(sweep)
    for what in missing:
        yield f"missing: {what} does not exist"
    if missing:
        yield f"instead: {smaller_experiment(sweep.runs[0].config['exp'], config_dir)}"


def _missing_folders(sweep: Plan) -> list[str]:
    return list(dict.fromkeys(what for run in sweep.runs for what in missing_folders(run.config)))


def _unchecked_line(sweep: Plan) -> Iterator[str]:
    """Yield a line that names the user's own classes and formats. A dry run does not import them."""
    targets = {
        f"{key}={value}": None
        for run in sweep.runs
        for key, value in flatten(run.config)
        if key.endswith("_target_") and isinstance(value, str) and not value.startswith((OURS, "torch."))
    }
    formats = {f"format={run.config['format']}": None for run in sweep.runs if is_own(run.config["format"])}
    if names := [*targets, *formats]:
        yield f"a dry run neither imports nor checks your own code: {', '.join(names)}"


def _scripts(
    sweep: Plan, to_run: Sequence[PlannedRun], options: LaunchOptions
) -> tuple[dict[Path, str], str | None]:
    """Return the scripts that the launcher would write, and the reason if it would refuse the runs."""
    if not to_run:
        return {}, None
    launcher = to_run[0].config["launcher"]
    try:
        return would_write(launcher, sweep.directory, _jobs(sweep, to_run), options), None
    except LaunchError as error:
        return {}, str(error)


def _table(sweep: Plan, found: RunStates, to_run: Sequence[PlannedRun]) -> Table:
    """Return a table with the axes, the state, and the name of each run."""
    keys = [key for key in sweep.axes if key != CASE or has_key(sweep.runs[0].config, CASE)]
    if sweep.baselines and "aps" not in keys:
        keys.append("aps")  # the added baselines have another value
    sent = any(state is State.DONE for state in found.states.values())
    wanted = {run.name for run in to_run}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for key in keys:
        table.add_column(key, no_wrap=True, justify="right" if key in ("seed", "world_size") else "left")
    table.add_column("state", no_wrap=True)
    if sent:
        table.add_column("sent per step", no_wrap=True, justify="right")
    table.add_column("run", no_wrap=True, overflow="ignore")
    for run in sweep.runs:
        state = found.states.get(run.name)
        words = (
            "unreadable"
            if state is None
            else str(state)
            if run.name not in wanted
            else WORDS.get(state, state)
        )
        cells = [Text(_cell(run.config, key)) for key in keys]
        more = [Text(_sent(sweep, run))] if sent else []
        table.add_row(*cells, words, *more, Text(run.name))
    return table


def _sent(sweep: Plan, run: PlannedRun) -> str:
    result = sweep.directory.run(run.name).result()
    size = result and result.wire.get("bytes_per_step_real_worker")
    return f"{size:,.0f} bytes" if isinstance(size, int | float) else ""


def _cell(config: Mapping[str, Any], key: str) -> str:
    if not has_key(config, key):
        return ""
    value = get_key(config, key)
    return (
        class_name(value["_target_"]) if isinstance(value, Mapping) and "_target_" in value else shown(value)
    )


SMALLER = (
    "_small"  # the suffix of an experiment that compares the same formats with a smaller model or dataset
)
NEEDS_NOTHING = "exp=digits_bits"
WRITTEN_BY_US = ("cache_dir",)  # cpdrun creates these folders itself


def missing_folders(config: Mapping[str, Any]) -> list[str]:
    """Return an override such as `data.data_dir=data/imagenet` for each missing data folder."""
    data = config.get("data")
    return [
        f"data.{key}={value}"
        for key, value in flatten(data if isinstance(data, Mapping) else {})
        if _names_a_folder(key) and isinstance(value, str) and not Path(value).expanduser().is_dir()
    ]


def smaller_experiment(exp: str | None, config_dir: Path | None) -> str:
    """Return a suggestion such as `exp=resnet50_bits_small needs no data folder`.

    The suggestion is the experiment with the suffix `_small`. If there is none, or if it needs missing folders as well,
    `exp=digits_bits` is suggested.
    """
    name = f"{exp}{SMALLER}"
    try:
        with Composer(config_dir) as composer:
            if name not in composer.groups()["exp"]:
                return f"{NEEDS_NOTHING} needs no data folder"
            config = composer.compose({"exp": name})
            config.pop("sweep", None)
            data = resolve(config)["data"]
    except ConfigError:
        return f"{NEEDS_NOTHING} needs no data folder"
    if missing := missing_folders({"data": data}):
        return f"exp={name} needs only {' and '.join(missing)}, and {NEEDS_NOTHING} needs no data folder"
    ships = not any(_names_a_folder(key) for key, _ in flatten(data))
    return f"exp={name} needs {'no data folder' if ships else 'only data folders that exist'}"


def _names_a_folder(key: str) -> bool:
    return key.endswith("_dir") and key not in WRITTEN_BY_US
