"""What would make a run fail before its first step: looked at before anything is started."""

import json
from typing import Any

import torch
from custom_fp.names import is_scaled

from cpdrun.train.build import BuildError, build
from cpdrun.train.sample import check_sample

NOT_PARTS = ("seed", "format", "nproc", "threads")  # cannot keep a part from being made


def check(configs: list[dict[str, Any]]) -> list[str]:
    """One line for each way in which a run of `configs` cannot be built: data missing, a class that does not
    import, arguments it does not take. Configs that differ in nothing that matters here are tried once."""
    problems: dict[str, None] = {}
    for config in _distinct(configs):
        try:
            check_sample(config, build(config, torch.device("cpu")))
        except BuildError as error:
            problems[str(error)] = None
    return list(problems)


def _distinct(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seen = {}
    for config in configs:
        parts = {key: value for key, value in config.items() if key not in NOT_PARTS}
        parts["kind of format"] = (
            config["format"] == "fp32",
            is_scaled(config["format"]),
        )  # some parts take one only
        seen.setdefault(json.dumps(parts, sort_keys=True, default=str), config)
    return list(seen.values())
