"""A figure as SVG, with what each point stands for (see hover) shown when it is pointed at."""

import html
import io
import re
from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from cpdrun.report.look.hover import MARK, NAME, PART, texts_of

_LEAST_PX_PER_PT = 1.25  # on a phone: letters of 7 pt are then 9 px, and a wide picture is scrolled
_PX_PER_PT = 2.4  # on a page, where a picture made for a paper's column would be small


def render(figure: Figure) -> str:
    """What matplotlib makes of it; for `standalone` and `inline`."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})  # the same runs give the same file
    return text.getvalue()


def standalone(rendered: str) -> str:
    """A file of its own; browsers show a point's <title> after a moment."""
    return _resolve(
        rendered, lambda tip, of: f"<g><title>{html.escape(tip)}</title>", lambda texts, kind: "<g>"
    )


def inline(rendered: str, prefix: str, description: str, groups: Mapping[str, int]) -> str:
    """For a page: no XML head, ids that no other picture has, points as class `point` with `data-tip`; what stands for
    one of `groups`, or goes with some, has their numbers as `data-group`, what names some as `data-names`.

    A picture is one stop of the tabulator; the page's script moves on from point to point with the arrow keys.
    """
    first = iter(("0",))

    def point(tip: str, of: str) -> str:
        text, stop = html.escape(tip), next(first, "-1")
        row = _numbers("data-group", [of], groups)
        return f'<g class="point" tabindex="{stop}" role="img" aria-label="{text}" data-tip="{text}"{row}>'

    text = _resolve(rendered, point, lambda texts, kind: f"<g{_numbers(kind, texts, groups)}>")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    width = re.search(r'width="([0-9.]+)pt"', text)
    assert width is not None  # matplotlib writes it
    width_pt = float(width[1])
    size = f"max-width: {_PX_PER_PT * width_pt:.0f}px; min-width: {_LEAST_PX_PER_PT * width_pt:.0f}px"
    opening = f'<svg role="group" aria-label="{html.escape(description)}" style="{size}"'
    return text.replace("<svg", opening, 1)


def _resolve(text: str, point: Callable[[str, str], str], part: Callable[[list[str], str], str]) -> str:
    text = re.sub(rf'<g id="({MARK}[0-9a-f]+)">', lambda match: point(*texts_of(match[1])), text)
    text = re.sub(rf'<g id="({PART}[0-9a-f]*)">', lambda match: part(texts_of(match[1]), "data-group"), text)
    return re.sub(rf'<g id="({NAME}[0-9a-f]*)">', lambda match: part(texts_of(match[1]), "data-names"), text)


def _numbers(attribute: str, texts: list[str], groups: Mapping[str, int]) -> str:
    numbers = [str(groups[text]) for text in texts if text in groups]
    return f' {attribute}="{" ".join(numbers)}"' if numbers else ""
