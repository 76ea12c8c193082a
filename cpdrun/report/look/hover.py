"""What a point stands for, carried by the point: matplotlib hands an artist's id, and no more, to an SVG.

An artist's words are those of a group (Study.describe) where it stands for one: by them the page finds its row.
"""

from matplotlib.artist import Artist

MARK, PART, NAME = "hover-", "part-", "name-"
_BETWEEN = "\n"


def hover(artist: Artist, text: str, of: str = "") -> None:
    """Show `text` when `artist` is pointed at, in an SVG and on the page; its group's words are `of`, or that text."""
    artist.set_gid(MARK + _hex(text, of or text))


def part_of(artist: Artist, *texts: str) -> None:
    """`artist` goes with the points of those words: a page that filters one of them out fades it, too."""
    artist.set_gid(PART + _hex(*texts))


def name_of(artist: Artist, *texts: str) -> None:
    """`artist` names the points of those words: a page that filters all of them out fades it, too."""
    artist.set_gid(NAME + _hex(*texts))


def texts_of(mark: str) -> list[str]:
    """The texts of an id that one of these made; of `hover` what is shown, then the group's words."""
    return bytes.fromhex(mark.partition("-")[2]).decode().split(_BETWEEN)


def _hex(*texts: str) -> str:
    return _BETWEEN.join(texts).encode().hex()
