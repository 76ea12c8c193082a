"""Store in the id of an artist which text it shows and to which groups it belongs.

matplotlib writes only the id of an artist to an SVG. A group is identified by its description (`Study.describe`), by
which the page finds the row of the group.
"""

from matplotlib.artist import Artist

MARK, PART, NAME = "hover-", "part-", "name-"
_BETWEEN = "\n"


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
