"""Consoles for terminals and notebooks, and live displays on either."""

import html
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

# The maximum width of a table, in characters.
WIDEST = 10_000


class Terminal(Console):
    """A plain console on stdout, with colors if stdout is a terminal.

    If the reader closes the pipe, as in `cpdrun report | head`, printing stops but the command continues to write its
    files.
    """

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        """Discard all further output."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Notebook(Console):
    """A plain console in the output of a notebook cell."""

    def __init__(self) -> None:
        super().__init__(highlight=False, force_terminal=False, force_jupyter=False, width=100)


def plain_table(left: Sequence[str] = (), right: Sequence[str] = ()) -> Table:
    """Return a table without lines, with columns that are aligned left and right and are never wrapped."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for heading in left:
        table.add_column(heading, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def widen(console: Console, table: Table) -> None:
    """Make a console wide enough for a table, so that no cell is cut or wrapped."""
    options = console.options.update(width=WIDEST)
    console.width = max(console.width, console.measure(table, options=options).maximum)


class NotebookLive:
    """A live display in the output of a notebook cell.

    rich's own Live needs ipywidgets in a notebook, and shows nothing if the notebook is executed without a browser.
    """

    def __init__(self, console: Console) -> None:
        self._width = console.width
        self._shown: Any = None

    def start(self) -> None:
        """Create an empty display in the output of the cell."""
        from IPython.display import display

        self._shown = display({"text/plain": ""}, raw=True, display_id=True)

    def update(self, renderable: RenderableType, *, refresh: bool = True) -> None:
        """Replace the displayed content. `refresh` is ignored. It exists because rich's Live has this argument."""
        drawn = io.StringIO()
        Console(file=drawn, width=self._width, force_jupyter=False, force_terminal=False).print(renderable)
        text = drawn.getvalue()
        page = f'<pre style="line-height:1.2">{html.escape(text)}</pre>'
        self._shown.update({"text/plain": text, "text/html": page}, raw=True)

    def stop(self) -> None:
        """Clear the display."""
        self._shown.update({"text/plain": ""}, raw=True)


def live(console: Console) -> Live | NotebookLive | None:
    """Return a live display, or None if the console cannot show one.

    A quiet console and a file cannot show live displays. The caller then prints lines instead.
    """
    if console.quiet:
        return None
    if isinstance(console, Notebook):
        return NotebookLive(console)
    return Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None


def is_notebook() -> bool:
    """Return True if this process is the kernel of a notebook, not IPython in a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None
