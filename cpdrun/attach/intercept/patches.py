"""Wrap functions of torch, and restore them."""

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """Wrappers and other changes that `undo` takes back, the latest first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Replace owner.name, so that owner.name(*args, **kwargs) is call(original, *args, **kwargs)."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs)

        def undo() -> None:
            # A wrapper that the script has put around this one meanwhile stays.
            if getattr(owner, name) is patched:
                setattr(owner, name, original)

        setattr(owner, name, patched)
        self._undo.append(undo)

    def add_undo(self, undo: Callable[[], None]) -> None:
        """Register a function that `undo` calls."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Take back all changes."""
        while self._undo:
            self._undo.pop()()
