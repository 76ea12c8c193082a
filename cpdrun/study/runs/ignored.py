"""Find the settings of a user's script that changed no metric, which the script probably does not read."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from cpdrun.config.identity import NOT_IDENTITY_OF_SCRIPTS
from cpdrun.study.collect import SEED, config_keys, finished, identity

PATH, ARGS = "script.path", "script.args."
FEWEST_SEEDS = 2


@dataclass(frozen=True)
class IgnoredSetting:
    """An argument of a script, or the seed, that changed no metric.

    Attributes:
        key: The config key.
        values: The values that gave equal metrics, as text.
    """

    key: str
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the argument."""
        return self.key.removeprefix(ARGS)


def ignored(runs: pd.DataFrame) -> list[IgnoredSetting]:
    """Return the arguments of a script, and the seed, that changed nothing.

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
    return [setting for key in asked if (setting := _ignored_setting(key, rows)) is not None]


def _may_matter(key: str) -> bool:
    return not key.startswith("_") and key.split(".")[0] not in NOT_IDENTITY_OF_SCRIPTS


def _ignored_setting(
    key: str, rows: Sequence[tuple[dict[str, str], tuple[str, ...]]]
) -> IgnoredSetting | None:
    """Return the setting if it changed nothing.

    Returns:
        None if two runs that differ only in `key` have different metrics, or if there are no two such runs.
    """
    cells: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
    for config, measured in rows:
        rest = tuple(value for other, value in config.items() if other != key)
        cells.setdefault(rest, {})[config[key]] = measured
    compared = [found for found in cells.values() if len(found) >= FEWEST_SEEDS]
    if not compared or any(len(set(found.values())) > 1 for found in compared):
        return None
    return IgnoredSetting(key, tuple(sorted({value for found in compared for value in found})))
