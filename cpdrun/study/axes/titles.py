"""Axes, values and names in words that are safe to show."""

import math
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cpdrun.stats.tuning import edges
from cpdrun.study.collect import CASE, SCALING

SWEEP = "run:sweep"  # the sweep as an axis, when a report is on several
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+")


def is_scaling(axis: str) -> bool:
    return axis.split(".")[0] == SCALING


def is_strategy(axis: str) -> bool:
    """Whether runs that differ in it are compared in one panel, rather than each in a panel of its own."""
    return is_scaling(axis) or axis == CASE


def plain(text: str) -> str:
    """Without control characters: to a terminal they are commands, and XML forbids them."""
    return "".join(
        c if unicodedata.category(c) not in ("Cc", "Cs") else " " if c.isspace() else "?" for c in text
    )


def short(name: object, most: int = 14) -> str:
    """A name for a picture: what is too long loses its middle, for such names differ at their ends."""
    text = plain(str(name))
    head = most // 2
    return text if len(text) <= most else f"{text[:head]}\N{HORIZONTAL ELLIPSIS}{text[head + 1 - most :]}"


def axis_title(name: str) -> str:
    """An axis in words, for headings: `workers`, `sweep`, `model`."""
    known = {"world_size": "workers", SWEEP: "sweep", "aps": "APS"}
    return known.get(name, plain(name.removesuffix("._target_")))


def short_titles(keys: Collection[str]) -> dict[str, str]:
    """By key its last word, `lr` of optim.lr; the whole of it where another ends alike."""
    last = {key: key.removesuffix("._target_").rpartition(".")[2] for key in keys}
    words = list(last.values())
    return {key: plain(word if words.count(word) == 1 else key) for key, word in last.items()}


def axis_text(value: Any) -> str:
    """A config value in a few characters: a dotted `_target_` by its class, `yes` or `no` for a flag."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    text = plain(str(value))
    return text.rsplit(".", 1)[-1] if _DOTTED.fullmatch(text) else text


def hybrid(config: Mapping[str, Any]) -> str:
    """What a run of a reduced format exchanges in fp32 all the same (`full_precision`), in words; empty for nothing."""
    layers = str(config.get("full_precision.layers") or "")
    first, last = (config.get(f"full_precision.{which}_epochs") for which in ("first", "last"))
    named = plain(layers.strip("[] ")).replace('"', "")
    if (
        named == "*"
    ):  # all of them: the format is of something else, such as what workers exchange that share a model
        return ""
    parts = [f"layers {named}"] if named not in ("", "nan") else []
    for which, count in (("first", first), ("last", last)):
        if isinstance(count, int | float) and count > 0:
            parts.append(f"the {which} {f'{count:.0f} epochs' if count > 1 else 'epoch'}")
    return " and ".join(parts)


def tried_text(tried: Mapping[str, Sequence[Any]]) -> str:
    """What was tuned: `lr (0.05, 0.1, 0.2), momentum (0, 0.9)`."""
    titles = short_titles(tried)
    return ", ".join(f"{titles[key]} ({', '.join(map(axis_text, of))})" for key, of in tried.items())


def at_text(values: Mapping[str, Any], tried: Mapping[str, Sequence[Any]], *, ends: bool = False) -> str:
    """` at lr 0.1, momentum 0`, behind a name; "" for no values."""
    text = values_text(values, tried, ends=ends)
    return f" at {text}" if text else ""


def values_text(values: Mapping[str, Any], tried: Mapping[str, Sequence[Any]], *, ends: bool) -> str:
    """What was chosen: `lr 0.1, momentum 0`, or with `ends` `lr 0.2 (largest tried)`."""
    titles, of = short_titles(tried), dict(edges(values, tried)) if ends else {}
    texts = [f"{titles[key]} {tuned_text(values[key], of.get(key))}" for key in tried if key in values]
    return ", ".join(texts)


def tuned_text(value: Any, end: str | None) -> str:
    """`0.1`, `0.2 (largest tried)`."""
    return axis_text(value) + (f" ({end} tried)" if end else "")


def choice_text(
    tried: Mapping[str, Sequence[Any]], seeds: Sequence[int], each: Sequence[str], aside: str
) -> str:
    """How it was chosen, and for `each` what; `aside`: where the seeds that chose are not."""
    return f"Chosen for each by the mean over {seeds_text(seeds)}, {aside}, of {tried_text(tried)}: {'; '.join(each)}."


def seeds_text(seeds: Sequence[int]) -> str:
    """`seed 1000`, `seeds 1000 and 1001`, `seeds 1000 to 1004`; all of them where they are not in a row."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and list(seeds) != list(range(seeds[0], seeds[0] + len(seeds))):
        return f"seeds {', '.join(map(str, seeds))}"
    return f"seeds {seeds[0]} {'and' if len(seeds) == 2 else 'to'} {seeds[-1]}"
