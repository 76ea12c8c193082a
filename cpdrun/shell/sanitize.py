"""Escaping of text from unknown sources before it is printed on a terminal."""


def visible(text: str) -> str:
    """Return the text with every unprintable character replaced by an escape sequence, such as `\x1b`.

    Text such as the name of a run may come from other people and may contain control characters, which a terminal
    would execute or hide.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text
    )


def visible_line(line: str) -> str:
    """Return the line with unprintable characters escaped, except for tabs and newlines."""
    return "".join(c if c in "\t\n" else visible(c) for c in line)
