"""Render sentences from the templates in `cpdrun/report/templates`.

A template contains the wording and receives plain values, such as the dataclasses of `cpdrun.study`. An empty line
separates paragraphs. Each paragraph becomes one line of output, so a template can wrap long sentences.
"""

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def render_lines(template: str, **values: Any) -> list[str]:
    """Render a template and return its paragraphs, each as one line.

    Args:
        template: The name of a file in `cpdrun/report/templates`, such as `headline.j2`.
        values: The values that the template uses, keyed by name. If one is missing, jinja2 raises UndefinedError.
    """
    text = _environment().get_template(template).render(**values)
    return [line for paragraph in re.split(r"\n\s*\n", text) if (line := " ".join(paragraph.split()))]


def render(template: str, **values: Any) -> str:
    """Render a template and return its text as one line; "" if the text is empty."""
    return " ".join(render_lines(template, **values))


def render_file(template: str, **values: Any) -> str:
    """Render a template as the content of a file.

    The line breaks of the template are kept, and the text ends with one line break.

    Args:
        template: The name of a file in `cpdrun/report/templates`, such as `table.tex.j2`.
        values: The values that the template uses, keyed by name.
    """
    return _environment().get_template(template).render(**values).strip("\n") + "\n"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 run` or `3 runs`.

    Args:
        number: The number.
        noun: The noun in the singular.
        plural: The noun in the plural, if it is irregular. By default, an "s" is added.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def join_first(items: Sequence[str], separator: str = ", ", most: int = 5) -> str:
    """Join the first `most` items, and add the number of the items that were left out: `a, b, and 3 more`."""
    more = len(items) - most
    return separator.join(items[:most]) + (f"{separator}and {more} more" if more > 0 else "")


def share(value: float) -> str:
    """Return a share in [0, 1] as a percentage, such as `97 %` or `0.3 %`.

    A share of 0 becomes `none`, and a share that is not finite becomes `an unknown share`.
    """
    if not math.isfinite(value):
        return "an unknown share"
    if value == 0:
        return "none"
    text = f"{100 * value:.2g}" if value < 0.0995 else f"{100 * value:.0f}"
    return "more than 99.9 %" if 0.999 < value < 1 else f"{text} %"


def capital(text: str) -> str:
    """Return a text with its first letter in upper case. The other letters keep their case."""
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
