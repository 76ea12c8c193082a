"""What a point stands for, carried by the point: matplotlib hands an artist's id, and no more, to an SVG.

An artist's words are those of a group (Study.describe) where it stands for one: by them the page finds its row.
"""

from matplotlib.artist import Artist

MARK, PART = "hover-", "part-"
_BETWEEN = "\n"


def hover(artist: Artist, text: str) -> None:
    """Show `text` when `artist` is pointed at, in an SVG and on the page."""
    artist.set_gid(MARK + text.encode().hex())


def text_of(mark: str) -> str:
    """The text of an id that `hover` made."""
    return bytes.fromhex(mark.removeprefix(MARK)).decode()


def part_of(artist: Artist, *texts: str) -> None:
    """`artist` goes with the points of those words: a page that filters them out fades it, too."""
    artist.set_gid(PART + _BETWEEN.join(texts).encode().hex())


def texts_of(mark: str) -> list[str]:
    """The texts of an id that `part_of` made."""
    return bytes.fromhex(mark.removeprefix(PART)).decode().split(_BETWEEN)
