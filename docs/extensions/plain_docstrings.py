"""Render docstrings, which are plain text here and not reStructuredText.

Docstrings have paragraphs, lists, `names` in backquotes, Google-style sections such as `Args:`, and indented and
aligned blocks.
"""

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


_SECTION = re.compile(r"(Args|Attributes|Keys|Keys of `\w+`|Raises|Returns|Yields):$")
_ENTRY = re.compile(r"(\*{0,2}[\w.]+(?:, [\w.]+)*)( \([\w ,]+\))?: (.*)")


def _section(block: list[str]) -> list[str] | None:
    """Return a Google-style section as a definition list, or None if the block is not such a section.

    An entry is indented by four characters, and its other lines are indented further.
    """
    if not _SECTION.match(block[0]) or len(block) == 1:
        return None
    title = [f"**{block[0].removesuffix(':').replace('`', '')}**", ""]
    if block[0] in ("Returns:", "Yields:"):
        is_text = all(re.match(r" {4}[^ -]", line) for line in block[1:])
        return [*title, f"    {_escaped(' '.join(map(str.strip, block[1:])))}", ""] if is_text else None
    entries: list[tuple[str, str]] = []
    for line in block[1:]:
        if line.startswith(" " * 8) and entries:
            term, about = entries.pop()
            entries.append((term, f"{about} {line.strip()}"))
        elif found := _ENTRY.fullmatch(line.removeprefix(" " * 4)):
            names = ", ".join(f"``{name}``" for name in found[1].split(", "))
            entries.append((names + (found[2] or ""), found[3]))
        else:
            return None
    return [*title, *(line for term, about in entries for line in (term, f"    {_escaped(about)}")), ""]


def _list(block: list[str]) -> list[str] | None:
    """Return a list of items that begin with `- `, or None if the block is not such a list."""
    if not block[0].startswith("- ") or not all(line.startswith(("- ", "  ")) for line in block):
        return None
    items = re.split(r"\n- ", "\n".join(block).removeprefix("- "))
    return [*(f"- {_escaped(' '.join(item.split()))}" for item in items), ""]


def _is_aligned(block: list[str]) -> bool:
    """Return whether a block is a table by spaces or code, whose lines are kept."""
    return any(line.startswith((" ", "- ", "* ")) or re.search(r"\S {3,}\S", line) for line in block)


def to_restructured_text(lines: list[str]) -> list[str]:
    text: list[str] = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        block = paragraph.split("\n")
        if structured := _section(block) or _list(block):
            text += structured
        elif _is_aligned(block):
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
