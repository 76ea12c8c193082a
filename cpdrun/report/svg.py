"""Conversion of figures to SVG, in which a point shows its text when the mouse points at it.

matplotlib writes only the id of an artist to an SVG. `hover`, `part_of` and `name_of` store in that id which text the
artist shows and to which groups it belongs. A group is identified by its description (`describe_group`), by which the
page finds the row of the group.
"""

import html
import re
from collections.abc import Callable, Mapping

from matplotlib.artist import Artist

MARK, PART, NAME = "hover-", "part-", "name-"
_BETWEEN = "\n"
# The smallest scale, for phones. Letters of 7 pt are then 9 px high, and a wide picture is scrolled.
_LEAST_PX_PER_PT = 1.25
# The largest scale. Without it, a picture made for a column of a paper would be small on a page.
_PX_PER_PT = 2.4


def hover(artist: Artist, text: str, of: str = "") -> None:
    """Show `text` when the mouse points at `artist`, in an SVG and on the page.

    Args:
        artist: The artist.
        text: The text to show.
        of: The description of the artist's group. By default it is `text`.
    """
    artist.set_gid(MARK + _hex(text, of or text))


def part_of(artist: Artist, *texts: str) -> None:
    """Make `artist` part of the groups with the descriptions `texts`. It fades if any group is filtered out."""
    artist.set_gid(PART + _hex(*texts))


def name_of(artist: Artist, *texts: str) -> None:
    """Make `artist` the name of the groups with the descriptions `texts`. It fades if all groups are filtered out."""
    artist.set_gid(NAME + _hex(*texts))


def texts_of(mark: str) -> list[str]:
    """Return the texts in an id. An id of `hover` has the shown text, then the description of the group."""
    return bytes.fromhex(mark.partition("-")[2]).decode().split(_BETWEEN)


def _hex(*texts: str) -> str:
    return _BETWEEN.join(texts).encode().hex()


def standalone(rendered: str) -> str:
    """Return the text of an SVG file from the SVG that matplotlib wrote.

    Browsers show the <title> of a point after a moment.
    """
    return _resolve(
        rendered, lambda tip, of: f"<g><title>{html.escape(tip)}</title>", lambda texts, kind: "<g>"
    )


def inline(rendered: str, prefix: str, description: str, groups: Mapping[str, int]) -> str:
    """Return an SVG element for a page, without an XML head and with ids that no other picture of the page has.

    Points have the class `point` and the attribute `data-tip`. Points and parts of groups have the numbers of their
    groups as `data-group`, and names of groups have the numbers as `data-names`. The tab key stops only at the first
    point of a picture. The page's script moves from point to point with the arrow keys.

    Args:
        rendered: The SVG that matplotlib wrote.
        prefix: The prefix that makes ids unique.
        description: The name of the picture for screen readers.
        groups: The number of each group by its description.
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
    assert width is not None  # matplotlib always writes the width.
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
