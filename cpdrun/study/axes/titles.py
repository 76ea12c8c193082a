"""Titles and texts of axes, values and names that are safe to print and to draw."""

import math
import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any

from cpdrun.study.collect import CASE, SCALING

SWEEP = "run:sweep"  # the column of the sweep's name, which is an axis if a report covers several sweeps
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+")


def is_scaling(axis: str) -> bool:
    """Return whether an axis is the scaling rule of gradients or one of its settings."""
    return axis.split(".")[0] == SCALING


def is_strategy(axis: str) -> bool:
    """Return whether runs that differ in this axis are compared in one panel, not in a panel each."""
    return is_scaling(axis) or axis == CASE


def plain(text: str) -> str:
    """Return the text without control characters, which are commands to a terminal and forbidden in XML."""
    return "".join(
        c if unicodedata.category(c) not in ("Cc", "Cs") else " " if c.isspace() else "?" for c in text
    )


def short(name: object, most: int = 14) -> str:
    """Return a name for a plot. A long name loses its middle, because such names differ at their ends.

    Args:
        name: The name.
        most: The largest number of characters.
    """
    text = plain(str(name))
    head = most // 2
    return text if len(text) <= most else f"{text[:head]}\N{HORIZONTAL ELLIPSIS}{text[head + 1 - most :]}"


def axis_title(name: str) -> str:
    """Return the title of an axis for headings, such as `workers`, `sweep` or `model`."""
    known = {"world_size": "workers", SWEEP: "sweep", "aps": "APS"}
    return known.get(name, plain(name.removesuffix("._target_")))


def short_titles(keys: Collection[str]) -> dict[str, str]:
    """Return the last word of each key, such as `lr` for optim.lr, or the whole key if two keys end alike."""
    last = {key: key.removesuffix("._target_").rpartition(".")[2] for key in keys}
    words = list(last.values())
    return {key: plain(word if words.count(word) == 1 else key) for key, word in last.items()}


def axis_text(value: Any) -> str:
    """Return a short text for a config value.

    A dotted `_target_` gives the name of its class, a flag gives `yes` or `no`, and a missing value gives `-`.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    text = plain(str(value))
    return text.rsplit(".", 1)[-1] if _DOTTED.fullmatch(text) else text


def hybrid(config: Mapping[str, Any]) -> str:
    """Describe the layers and epochs whose gradients a run exchanges in fp32 (`full_precision`); "" if there are none.

    Args:
        config: The run's settings, by dotted key.
    """
    layers = str(config.get("full_precision.layers") or "")
    first, last = (config.get(f"full_precision.{which}_epochs") for which in ("first", "last"))
    named = plain(layers.strip("[] ")).replace('"', "")
    # With "*", all gradients are fp32. The format applies to something else, such as what the workers that share a
    # model exchange.
    if named == "*":
        return ""
    parts = [f"layers {named}"] if named not in ("", "nan") else []
    for which, count in (("first", first), ("last", last)):
        if isinstance(count, int | float) and count > 0:
            parts.append(f"the {which} {f'{count:.0f} epochs' if count > 1 else 'epoch'}")
    return " and ".join(parts)
