"""What the commands print on."""

import os
import sys

from rich.console import Console


class Terminal(Console):
    """Plain text, coloured where it is a terminal. A reader who has seen enough (`| head`) ends the printing, not the
    command: its files are written all the same."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
