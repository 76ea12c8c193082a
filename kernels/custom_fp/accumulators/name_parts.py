"""Read the parts of an accumulator's name, such as `width_25`. This module does not import torch."""

from __future__ import annotations

import re
from typing import Any

from custom_fp.formats.scalar import Format
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.rounding import Rounding, read_rounding
from custom_fp.suggestions import did_you_mean

EXACT = "exact"
WORDS = (
    "fused or product_FORMAT, of_FORMAT or of_FORMAT_FORMAT, block_TERMS, width_BITS, join_BITS_BITS, split_PARTS, "
    "group_TERMS, flush, pairwise or exact, a rounding (toward_zero, stochastic_8), saturate or propagate, kahan, "
    "chunk_TERMS or chunk_TERMS_FORMAT"
)

_FLAGS: dict[str, dict[str, Any]] = {
    "fused": {"product": EXACT},
    "kahan": {"kahan": True},
    "flush": {"flush": True},
    "saturate": {"overflow": "saturate"},
    "propagate": {"overflow": "propagate"},
    "pairwise": {"order": "pairwise"},
    "exact": {"order": "exact"},
}
_NUMBERS = ("block", "width", "split", "group", "chunk")


def read_part(word: str) -> dict[str, Any]:
    """Return the attributes of an Accumulator that a word sets."""
    key, _, value = word.partition("_")
    if word in _FLAGS:
        return _FLAGS[word]
    if key == "join" and (found := re.fullmatch(r"([0-9]{1,10})_([0-9]{1,10})", value)):
        return {"join": (int(found[1]), int(found[2]))}
    if key in _NUMBERS and (found := re.fullmatch(r"([0-9]{1,10})(?:_(.+))?", value)):
        if key == "chunk" and found[2]:
            return {"chunk": int(found[1]), "total": found[2]}
        if not found[2]:
            return {key: int(found[1])}
    if key == "product" and value:
        return {"product": value}
    if key == "of" and value:
        return {"operands": _one_or_two(value)}
    try:
        read_rounding(word)
    except ValueError:
        known = (*_FLAGS, "product", "of", "join", *_NUMBERS, *Rounding)
        raise ValueError(f"unknown word {word!r}{did_you_mean(word, known)}; allowed: {WORDS}") from None
    return {"rounding": word}


def _one_or_two(value: str) -> tuple[str, ...] | str:
    """Split a value into the names of one or two formats, joined by an underscore. Names may contain underscores."""
    words = value.split("_")
    cuts = [("_".join(words[:i]), "_".join(words[i:])) for i in range(1, len(words))]
    two = [names for names in cuts if all(map(_is_operand, names))]
    return value if _is_operand(value) or not cuts else two[0] if two else tuple(words)


def _is_operand(name: str) -> bool:
    try:
        return Format.named(name) is not None or ScaledFormat.named(name) is not None
    except ValueError:  # the name follows the pattern of a format, but such a format does not exist
        return False
