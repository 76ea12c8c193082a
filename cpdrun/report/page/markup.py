"""Write tables as Markdown, LaTeX or terminal text.

Names come from users, so every character that has a meaning in the markup is escaped.
"""

import unicodedata
from collections.abc import Sequence

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
    "-": r"{-}",  # Two hyphens would become a dash.
    "[": r"{[}",  # A bracket or a star after the end of a row would be an option of the row break.
    "]": r"{]}",
    "*": r"{*}",
    "\N{PLUS-MINUS SIGN}": r"$\pm$",
    "\N{MINUS SIGN}": r"$-$",
    "\N{CHECK MARK}": r"\textsuperscript{c}",  # The marks of verdicts: certified and refuted.
    "\N{BALLOT X}": r"\textsuperscript{r}",
}


def without_controls(text: str) -> str:
    """Replace control characters by U+FFFD, except for line ends and tabs.

    Characters of the Unicode categories Cc (such as ESC) and Cf (such as right-to-left marks) can control a terminal,
    change the direction of text or be invisible.
    """
    if text.isprintable():
        return text
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cf") and c not in "\t\r\n" else c
        for c in text
    )


def markdown(table: Shown) -> str:
    """Return a GitHub Markdown table. The first column is aligned left, others right."""
    rule = ["---" if i < 1 else "--:" for i in range(len(table.header))]
    lines = [_markdown_row(table.header), "|" + "|".join(rule) + "|", *map(_markdown_row, table.rows)]
    return "\n".join(lines) + "\n"


def escape_markdown(text: str) -> str:
    """Escape text so that GitHub shows it as typed.

    Control characters become U+FFFD, and each run of whitespace becomes one space.
    """
    text = (
        " ".join(without_controls(text).split())
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    return "".join(f"\\{c}" if c in "\\|`*_[]#~$" else c for c in text)


def latex(table: Shown) -> str:
    r"""Return a LaTeX tabular. The document needs \usepackage{booktabs} and \usepackage[T1]{fontenc}."""
    columns = "l" + "r" * (len(table.header) - 1)
    body = [_latex_row(table.header), r"\midrule", *map(_latex_row, table.rows)]
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}", ""]
    )


def escape_latex(text: str) -> str:
    """Escape text so that LaTeX typesets it as typed.

    Letters that T1 fonts lack become their Unicode names in brackets.
    """
    return "".join(LATEX.get(c) or _letter(c) for c in " ".join(text.split()))


def terminal(table: Shown, bold: Sequence[bool] = (), encoding: str = "utf-8") -> Table:
    """Return a rich table of the first 80 rows, without interpreting markup.

    `bold` says for each row whether it is bold. `encoding` is that of the terminal.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for i, name in enumerate(table.header):
        made.add_column(
            Text(encodable(name, encoding).replace(", ", ",\n")),
            justify="left" if i == 0 else "right",
            overflow="fold",
        )
    for i, row in enumerate(table.rows[:_LONGEST_ON_A_TERMINAL]):
        is_bold = i < len(bold) and bold[i]
        made.add_row(*(Text(encodable(cell, encoding)) for cell in row), style="bold" if is_bold else "")
    if len(table.rows) > _LONGEST_ON_A_TERMINAL:
        made.caption = f"{len(table.rows) - _LONGEST_ON_A_TERMINAL} more rows: see table.csv"
    return made


def encodable(text: str, encoding: str) -> str:
    """Replace the characters that `encoding` lacks or that control a terminal.

    ± becomes +-, the minus sign becomes a hyphen, and other missing characters become question marks.
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
    if "\u00c0" <= c <= "\u017e" and c not in "×÷":  # T1 fonts have these accented Latin letters.
        return c
    return f"[{escape_latex(unicodedata.name(c, 'unnamed').lower())}]"


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(escape_markdown(cell) for cell in cells) + " |"


def _latex_row(cells: list[str]) -> str:
    return " & ".join(escape_latex(cell) for cell in cells) + r" \\"
