"""What a script cannot be held to: looked at before anything is started, without a line of the script being run."""

from typing import Any

from cpdrun.attach.hold import Hold
from cpdrun.train.preflight.check import check_configs


def check(configs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """`problems` and `notes`, as `cpdrun.train.preflight.check` has them of the runs of experiments."""
    return check_configs(configs, _hold)


def _hold(config: dict[str, Any]) -> list[str]:
    Hold(config)
    return []
