"""Find the settings of a user's script that changed no metric, which the script probably does not read."""

from collections.abc import Sequence

import pandas as pd

from cpdrun.config.identity import NOT_IDENTITY_OF_SCRIPTS
from cpdrun.study.collect import SEED, config_keys, finished, identity

PATH, ARGS = "script.path", "script.args."
FEWEST_SEEDS = 2


def ignored(runs: pd.DataFrame) -> list[str]:
    """Return a line for each argument of a script, and for the seed, that changed nothing.

    A setting changed nothing if all runs that differ only in this setting have the same values of all logged metrics.
    """
    done = finished(runs)
    if PATH not in done.columns:
        return []
    done = done[done[PATH].notna()]
    keys = [key for key in config_keys(done) if _may_matter(key)]
    metrics = [column for column in done.columns if column.startswith("metric:")]
    if done.empty or not metrics:
        return []
    rows = [
        ({key: identity(row[key]) for key in keys}, tuple(identity(row[name]) for name in metrics))
        for row in done.to_dict("records")
    ]
    asked = [key for key in keys if key == SEED or key.startswith(ARGS)]
    return [line for key in asked if (line := _line(key, rows))]


def _may_matter(key: str) -> bool:
    return not key.startswith("_") and key.split(".")[0] not in NOT_IDENTITY_OF_SCRIPTS


def _line(key: str, rows: Sequence[tuple[dict[str, str], tuple[str, ...]]]) -> str:
    """Return a line that says that `key` changed nothing.

    The result is "" if two runs that differ only in `key` have different metrics, or if there are no two such runs.
    """
    cells: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
    for config, measured in rows:
        rest = tuple(value for other, value in config.items() if other != key)
        cells.setdefault(rest, {})[config[key]] = measured
    compared = [found for found in cells.values() if len(found) >= FEWEST_SEEDS]
    if not compared or any(len(set(found.values())) > 1 for found in compared):
        return ""
    values = ", ".join(sorted({value for found in compared for value in found}))
    if key == SEED:
        return (
            f"runs of the seeds {values} measured the same to the last digit: the script seeds itself, and no interval "
            "over seeds means anything; hand it the run's: script_args='--seed {seed}'"
        )
    name = key.removeprefix(ARGS)
    return f"runs with {name} = {values} measured the same to the last digit: does the script read --{name}?"
