"""Render sentences from the templates in `cpdrun/report/templates`.

A template holds the wording and receives plain values. An empty line in a template starts a new paragraph. Each
paragraph becomes one line of output, so a template can wrap long sentences.
"""

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def render_lines(template: str, **values: Any) -> list[str]:
    """Render a template such as `headline.j2`, and return each paragraph as one line.

    jinja2 raises UndefinedError if the template uses a variable that is not in `values`.
    """
    text = _environment().get_template(template).render(**values)
    return [line for paragraph in re.split(r"\n\s*\n", text) if (line := " ".join(paragraph.split()))]


def render(template: str, **values: Any) -> str:
    """Render a template as a single line; "" if it produces no text."""
    return " ".join(render_lines(template, **values))


def render_file(template: str, **values: Any) -> str:
    """Render a template as the content of a file, with its line breaks.

    The text ends with exactly one line break.
    """
    return _environment().get_template(template).render(**values).strip("\n") + "\n"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as "1 run" or "3 runs".

    Pass `plural` if the noun does not simply take an "s".
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def join_first(items: Sequence[str], separator: str = ", ", most: int = 5) -> str:
    """Join the first `most` items and count the rest: "a, b, and 3 more"."""
    more = len(items) - most
    return separator.join(items[:most]) + (f"{separator}and {more} more" if more > 0 else "")


def join_last(items: Sequence[str]) -> str:
    """Join items with commas and a last "and": "a, b and c"."""
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def share(value: float) -> str:
    """Format a share in [0, 1] as a percentage, such as "97%" or "0.3%".

    0 becomes "none". NaN and inf become "an unknown share".
    """
    if not math.isfinite(value):
        return "an unknown share"
    if value == 0:
        return "none"
    text = f"{100 * value:.2g}" if value < 0.0995 else f"{100 * value:.0f}"
    return "more than 99.9%" if 0.999 < value < 1 else f"{text}%"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


@cache
def _environment() -> "jinja2.Environment":
    import jinja2

    from cpdrun.stats.means import is_zero

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cpdrun.report"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters |= {"join_first": join_first, "count": count, "capital": capital, "exp": math.exp}
    environment.filters |= {"share": share, "plain": _plain, "is_zero": is_zero, "figure": _figure}
    environment.tests |= {"finite": math.isfinite, "nan": math.isnan}
    return environment


# The following filters import their packages when they are used, because some commands render without pandas.


def _plain(text: str) -> str:
    from cpdrun.study.axes import plain

    return plain(text)


def _figure(*arguments: Any) -> float:
    from cpdrun.whatif.damage import number

    return number(*arguments)
