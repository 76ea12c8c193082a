"""Convert matplotlib figures to SVGs with tooltips.

Of the data that is attached to an artist, matplotlib writes only the id to an SVG. `hover`, `part_of`, and `name_of`
therefore encode the tooltip and the groups in this id. A group is identified by its description (`describe_group`),
from which the page finds the group's row.
"""

import html
import re
from collections.abc import Callable, Mapping

from matplotlib.artist import Artist

MARK, PART, NAME = "hover-", "part-", "name-"
_BETWEEN = "\n"
# The smallest scale, for phones. Letters of 7 pt are then 9 px high, and the user scrolls wide pictures.
_LEAST_PX_PER_PT = 1.25
# The largest scale. It enlarges pictures, because they are made for a paper's column and would be small on a page.
_PX_PER_PT = 2.4


def hover(artist: Artist, text: str, of: str = "") -> None:
    """Show `text` as the tooltip of `artist`.

    `of` is the description of the artist's group. By default, the tooltip is the description.
    """
    artist.set_gid(MARK + _hex(text, of or text))


def part_of(artist: Artist, *texts: str) -> None:
    """Mark `artist` as a part of all groups with these descriptions.

    The page fades the artist if any of the groups is filtered out.
    """
    artist.set_gid(PART + _hex(*texts))


def name_of(artist: Artist, *texts: str) -> None:
    """Mark `artist`, a label, as shared by all groups with these descriptions.

    The page fades the label only if all of the groups are filtered out.
    """
    artist.set_gid(NAME + _hex(*texts))


def texts_of(mark: str) -> list[str]:
    """Decode the texts in an id: for `hover`, the tooltip and the description."""
    return bytes.fromhex(mark.partition("-")[2]).decode().split(_BETWEEN)


def _hex(*texts: str) -> str:
    return _BETWEEN.join(texts).encode().hex()


def standalone(rendered: str) -> str:
    """Convert matplotlib's SVG to the content of a file. Tooltips become <title> elements."""
    return _resolve(
        rendered, lambda tip, of: f"<g><title>{html.escape(tip)}</title>", lambda texts, kind: "<g>"
    )


def inline(rendered: str, prefix: str, description: str, groups: Mapping[str, int]) -> str:
    """Convert matplotlib's SVG to an <svg> element for the page.

    A point gets the class `point` and its tooltip as `data-tip`. Points and parts get the row numbers of their groups
    as `data-group`, and names get them as `data-names`. The tab key stops at the first point of a picture. The arrow
    keys move between points.

    Args:
        rendered: The SVG that matplotlib wrote.
        prefix: A prefix that makes the ids unique on the page.
        description: The picture's label for screen readers.
        groups: The row number of each group, keyed by description.
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
