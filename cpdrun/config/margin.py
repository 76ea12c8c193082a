"""How a margin is typed: as a number in the metric's unit, or as a percentage."""

import math
from typing import Any

ALLOWED = "must be a number above 0, such as 0.002, or a percentage, such as 2%"

Typed = float | str  # a number, or text such as "2%"


def parse_margin(given: Any) -> Typed:
    """Return a typed margin as a number or as text such as "2%". Raises ValueError for anything else."""
    text = str(given).replace(" ", "")
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = math.nan
    if isinstance(given, bool) or not 0 < number < math.inf:
        raise ValueError(ALLOWED)
    return f"{number:g}%" if text.endswith("%") else number
