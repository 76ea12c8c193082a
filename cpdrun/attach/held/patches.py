"""Functions of torch with something of ours around them, and as they were again."""

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """Undone in the reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """owner.name(*args, **kwargs) becomes call(what it was, *args, **kwargs)."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs)

        def undo() -> None:
            # where the script has put something of its own around it meanwhile, that stays
            if getattr(owner, name) is patched:
                setattr(owner, name, original)

        setattr(owner, name, patched)
        self._undo.append(undo)

    def later(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()
