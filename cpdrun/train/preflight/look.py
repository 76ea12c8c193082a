"""What would make a run fail before its first step: looked at before anything is started."""

import json
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import custom_fp
import torch
from custom_fp.formats.names import parse

import cpdrun
from cpdrun.errors import UserError
from cpdrun.train.build import build
from cpdrun.train.memory import in_short, shortage
from cpdrun.train.preflight.products import emulated_products
from cpdrun.train.preflight.sample import check_sample

NOT_PARTS = ("seed", "format", "nproc", "threads")  # cannot keep a part from being made
NOT_THE_USERS = (
    str(Path(cpdrun.__file__).parent),
    str(Path(custom_fp.__file__).parent),
    "<",
    *sysconfig.get_paths().values(),
)  # where its code begins
INSTALLED = {"site-packages", "dist-packages"}


def check(configs: list[dict[str, Any]]) -> list[str]:
    """The problems of `look`."""
    return look(configs)["problems"]


def look(configs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """`problems`: one line for each way in which a run of `configs` cannot be built (data missing, a class that does
    not import, arguments it does not take). `notes`: what a run will not do though its settings sound like it."""
    return tried(configs, _build)


def tried(
    configs: list[dict[str, Any]], attempt: Callable[[dict[str, Any]], Iterable[str]]
) -> dict[str, list[str]]:
    """What `attempt` raises and gives back, as `problems` and `notes`. Configs that differ in nothing that matters here
    are tried once. Whatever classes of the user's own do, an exit of the process included, becomes a line."""
    problems: dict[str, None] = {}
    notes: dict[str, None] = {}
    for config in _distinct(configs):
        try:
            notes |= dict.fromkeys(attempt(config))
        except UserError as error:
            problems[_told(error)] = None
        except (Exception, SystemExit) as error:
            problems[_unforeseen(error)] = None
    return {"problems": list(problems), "notes": list(notes)}


def _build(config: dict[str, Any]) -> list[str]:
    parts = build(config, torch.device("cpu"))
    check_sample(config, parts)
    products = emulated_products(parts)
    return _left_in_float32(parts.precision.rounds_products, products) if products else []


def _left_in_float32(rules: str, products: dict[str, list[str]]) -> list[str]:
    left = products["in float32"]
    layers = sum(len(reached) for where, reached in products.items() if where != "in float32")
    if not left:
        return []
    listed = "; ".join(left[:4]) + (f"; and {len(left) - 4} more" if len(left) > 4 else "")
    stay = "product stays" if len(left) == 1 else "products stay"
    reach = "reach" if " and " in rules else "reaches"
    return [f"{rules} {reach} {layers} layers; {len(left)} {stay} in float32: {listed}"]


def _told(error: UserError) -> str:
    """What it says; where memory was short, that and not what was being tried."""
    if (cause := shortage(error)) is not None:
        return f"{str(error).partition(':')[0]}: out of memory: {in_short(cause)}"
    return f"{error}{_place(error)}"


def _unforeseen(error: BaseException) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    if (cause := shortage(error)) is not None:
        return f"out of memory while one run is built and given a sample: {in_short(cause)}"
    if isinstance(error, SystemExit):
        return f"the code of the run ends the process (sys.exit({text})){_place(error)}"
    return f"{type(error).__name__}: {text}".rstrip(": ") + _place(error)


def _place(error: BaseException) -> str:
    """` (mine.py, line 7)`: the last line of the user's own files on the way to `error`; "" where there is none."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith(NOT_THE_USERS) and not INSTALLED & set(Path(frame.filename).parts)
    ]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _distinct(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seen = {}
    for config in configs:
        parts = {key: value for key, value in config.items() if key not in NOT_PARTS}
        parts["kind of format"] = (
            config["format"] == "fp32",
            _has_scales(config["format"]),
        )  # some take one only
        seen.setdefault(json.dumps(parts, sort_keys=True, default=str), config)
    return list(seen.values())


def _has_scales(number_format: str) -> bool | None:
    try:
        return parse(number_format).has_scales
    except ValueError:  # told where it is used
        return None
