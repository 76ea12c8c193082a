"""What the commands print on."""

import html
import io
import os
import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live


class Terminal(Console):
    """Plain text, coloured where it is a terminal. A reader who has seen enough (`| head`) ends the printing, not the
    command: its files are written all the same."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Notebook(Console):
    """Words go to the cell's output as plain text."""

    def __init__(self) -> None:
        super().__init__(highlight=False, force_terminal=False, force_jupyter=False, width=100)


class NotebookLive:
    """What is drawn takes the place, in the cell's output, of what was drawn before; at the end it is gone. rich's own
    Live needs ipywidgets there, and leaves nothing in a notebook that is executed without a browser."""

    def __init__(self, console: Console) -> None:
        self._width = console.width
        self._shown: Any = None

    def start(self) -> None:
        from IPython.display import display

        self._shown = display({"text/plain": ""}, raw=True, display_id=True)

    def update(self, renderable: RenderableType, *, refresh: bool = True) -> None:
        drawn = io.StringIO()
        Console(file=drawn, width=self._width, force_jupyter=False, force_terminal=False).print(renderable)
        text = drawn.getvalue()
        page = f'<pre style="line-height:1.2">{html.escape(text)}</pre>'
        self._shown.update({"text/plain": text, "text/html": page}, raw=True)

    def stop(self) -> None:
        self._shown.update({"text/plain": ""}, raw=True)


def live(console: Console) -> Live | NotebookLive | None:
    """To draw the same thing again and again; None where lines must do, a start and an end at a time."""
    if console.quiet:
        return None
    if isinstance(console, Notebook):
        return NotebookLive(console)
    return Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None


def is_notebook() -> bool:
    """Whether a kernel of a notebook runs this process; IPython's shell in a terminal is none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None
