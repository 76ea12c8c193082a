"""What would make a run fail before its first step: looked at before anything is started."""

import json
from typing import Any

import torch
import torch.nn.functional as F
from custom_fp.names import is_scaled

from cpdrun.train.build import BuildError, Parts, build

NOT_PARTS = ("seed", "format", "nproc", "threads")  # cannot keep a part from being made


def check(configs: list[dict[str, Any]]) -> list[str]:
    """One line for each way in which a run of `configs` cannot be built: data missing, a class that does not
    import, arguments it does not take. Configs that differ in nothing that matters here are tried once."""
    problems: dict[str, None] = {}
    for config in _distinct(configs):
        try:
            parts = build(config, torch.device("cpu"))
            _take_a_sample(config, parts)
        except BuildError as error:
            problems[str(error)] = None
    return list(problems)


def _take_a_sample(config: dict[str, Any], parts: Parts) -> None:
    """Raises BuildError where a model of ours does not take what this data gives. What a user's own class does with a
    sample is for its run to show."""
    if not all(config[part]["_target_"].startswith("cpdrun.") for part in ("model", "data")):
        return
    x, y = parts.batches.fetch(torch.tensor([0]), 0, 0)
    parts.model.eval()
    try:
        with torch.no_grad():
            F.cross_entropy(parts.model(x), y)
    except (RuntimeError, ValueError, IndexError) as error:
        model, data = (config[part]["_target_"].rsplit(".", 1)[-1] for part in ("model", "data"))
        reason = str(error).splitlines()[0]
        raise BuildError(f"model: {model} does not take the samples of data {data}: {reason}") from error


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
