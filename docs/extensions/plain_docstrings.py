"""Docstrings here are plain text, not reStructuredText: paragraphs, `names`, indented and aligned blocks."""

import re
from typing import Any

from sphinx.application import Sphinx


def _escaped(line: str) -> str:
    """A line of a paragraph: `names` become literals, whatever else means something to reStructuredText is text."""
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(
        f"``{part[1:-1].strip()}``"
        if part.startswith("`") and len(part) > 2
        else re.sub(r"([\\*_|`:])", r"\\\1", part)
        for part in parts
    )


def _is_aligned(block: list[str]) -> bool:
    """A list, a table by spaces, or code: kept as it stands."""
    return any(line.startswith((" ", "- ", "* ")) or re.search(r"\S {3,}\S", line) for line in block)


def to_restructured_text(lines: list[str]) -> list[str]:
    text: list[str] = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        block = paragraph.split("\n")
        if _is_aligned(block):
            text += ["::", "", *(f"    {line}" for line in block), ""]
        else:
            # a name in backquotes may be cut by the end of a line
            text += [_escaped(" ".join(line.strip() for line in block)), ""]
    return text


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_restructured_text(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
