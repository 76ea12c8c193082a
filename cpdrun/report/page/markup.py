"""A table as text in a markup: GitHub markdown, LaTeX with booktabs, or a rich table for the terminal.

Names come from users: what is a letter in a name stays a letter in every markup.
"""

import html
import unicodedata

from rich import box
from rich.table import Table
from rich.text import Text

from cpdrun.report.tables import Shown

_LONGEST_ON_A_TERMINAL = 80
LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": r"{-}",  # two hyphens would become a dash
    "[": r"{[}",  # after the end of a row a bracket or a star would be its option
    "]": r"{]}",
    "*": r"{*}",
    "\N{PLUS-MINUS SIGN}": r"$\pm$",
    "\N{MINUS SIGN}": r"$-$",
}


def without_controls(text: str) -> str:
    """Replace what a terminal would obey, and what changes the direction of text or hides it, by U+FFFD.

    Line ends and tabs stay. These are Unicode's categories Cc (ESC among them) and Cf (right-to-left marks).
    """
    if text.isprintable():
        return text
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cf") and c not in "\t\r\n" else c
        for c in text
    )


def markdown(table: Shown) -> str:
    rule = ["---" if i < 1 else "--:" for i in range(len(table.header))]
    lines = [_markdown_row(table.header), "|" + "|".join(rule) + "|", *map(_markdown_row, table.rows)]
    return "\n".join(lines) + "\n"


def escape_markdown(text: str) -> str:
    """Return text that GitHub shows as typed: no cell ends early, no markup, no HTML, no control characters."""
    text = (
        " ".join(without_controls(text).split())
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    return "".join(f"\\{c}" if c in "\\|`*_[]#~$" else c for c in text)


def escape_html(text: str) -> str:
    """Return text that a browser shows as typed: no tags, no end of an attribute, no control characters."""
    return html.escape(without_controls(text))


def latex(table: Shown) -> str:
    r"""A tabular with booktabs rules; needs \usepackage{booktabs} and \usepackage[T1]{fontenc}."""
    columns = "l" + "r" * (len(table.header) - 1)
    body = [_latex_row(table.header), r"\midrule", *map(_latex_row, table.rows)]
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}", ""]
    )


def escape_latex(text: str) -> str:
    """Text that LaTeX typesets as typed; a letter that T1 fonts lack becomes its Unicode name in brackets."""
    return "".join(LATEX.get(c) or _letter(c) for c in " ".join(text.split()))


def terminal(table: Shown, bold: list[bool], encoding: str = "utf-8") -> Table:
    """For a rich console, without markup of the user's; a long table is cut, and says so."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for i, name in enumerate(table.header):
        made.add_column(
            Text(encodable(name, encoding).replace(", ", ",\n")),
            justify="left" if i == 0 else "right",
            overflow="fold",
        )
    for row, is_bold in zip(table.rows[:_LONGEST_ON_A_TERMINAL], bold, strict=False):
        made.add_row(*(Text(encodable(cell, encoding)) for cell in row), style="bold" if is_bold else "")
    if len(table.rows) > _LONGEST_ON_A_TERMINAL:
        made.caption = f"{len(table.rows) - _LONGEST_ON_A_TERMINAL} more rows: see table.csv"
    return made


def encodable(text: str, encoding: str) -> str:
    """Return `text` as far as a terminal of that encoding can show it, without control characters.

    ± becomes +-, the minus sign a hyphen, and any other character that is missing a question mark.
    """
    text = without_controls(text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("\N{PLUS-MINUS SIGN}", "+-").replace("\N{MINUS SIGN}", "-")
        return text.encode(encoding, "replace").decode(encoding)
    return text


def _letter(c: str) -> str:
    if c.isascii():
        return c if c.isprintable() else "?"
    if "\u00c0" <= c <= "\u017e" and c not in "×÷":  # accented Latin letters, which T1 has
        return c
    return f"[{escape_latex(unicodedata.name(c, 'unnamed').lower())}]"


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(escape_markdown(cell) for cell in cells) + " |"


def _latex_row(cells: list[str]) -> str:
    return " & ".join(escape_latex(cell) for cell in cells) + r" \\"
