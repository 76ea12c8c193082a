"""What a point stands for, carried by the point: matplotlib hands an artist's id, and no more, to an SVG."""

from matplotlib.artist import Artist

MARK = "hover-"


def hover(artist: Artist, text: str) -> None:
    """Show `text` when `artist` is pointed at, in an SVG and on the page."""
    artist.set_gid(MARK + text.encode().hex())


def text_of(mark: str) -> str:
    """The text of an id that `hover` made."""
    return bytes.fromhex(mark.removeprefix(MARK)).decode()
