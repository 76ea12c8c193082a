"""Wrapping of torch's functions, and their restoration."""

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """A list of wrappers and other changes. `undo` reverts them, the latest first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Replace owner.name with a function that returns call(original, *args, **kwargs)."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs)

        def undo() -> None:
            # If the script has wrapped this wrapper in the meantime, keep both.
            if getattr(owner, name) is patched:
                setattr(owner, name, original)

        setattr(owner, name, patched)
        self._undo.append(undo)

    def add_undo(self, undo: Callable[[], None]) -> None:
        """Register a function that `undo` calls."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Revert all changes, the latest first."""
        while self._undo:
            self._undo.pop()()
