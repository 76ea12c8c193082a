"""Escape text from unknown sources before it is printed on a terminal."""


def visible(text: str) -> str:
    r"""Replace every unprintable character with an escape sequence such as `\x1b`.

    Names of runs may come from other people. Control characters in such names could make a terminal hide text or
    execute commands.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text
    )


def visible_line(line: str) -> str:
    """Escape unprintable characters, except for tabs and newlines."""
    return "".join(c if c in "\t\n" else visible(c) for c in line)
