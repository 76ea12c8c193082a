"""Text of unknown origin, fit for a terminal."""


def visible(text: str) -> str:
    """`text` with what a terminal would obey, or hide, spelled out: the name of a run may come from anyone."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text
    )


def visible_line(line: str) -> str:
    """The same for a line of a log, whose tabs and end stay."""
    return "".join(c if c in "\t\n" else visible(c) for c in line)
