"""Hybrid precision: the layers and epochs whose gradients are exchanged in fp32.

Wang et al. (arXiv:1911.08907, section 4.2) keep the last layer in higher precision; others keep the first
epochs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class FullPrecision:
    """layers: glob patterns of parameter names; first_epochs, last_epochs: how many, at either end of a run.

    Raises ValueError for a pattern that matches no parameter, and for epochs that are not known.
    """

    names: tuple[str, ...]
    layers: tuple[str, ...] = ()
    first_epochs: int = 0
    last_epochs: int = 0
    epochs: int | None = None

    def __post_init__(self) -> None:
        for pattern in self.layers:
            if not any(fnmatchcase(name, pattern) for name in self.names):
                some = ", ".join(self.names[:4])
                raise ValueError(
                    f"full_precision.layers: {pattern!r} matches no parameter; the first ones are {some}"
                )
        if self.last_epochs and self.epochs is None:
            raise ValueError("full_precision.last_epochs needs the number of epochs")

    def split(self, epoch: int) -> tuple[Sequence[int], Sequence[int]]:
        """Indices of the layers in the run's own format, and of those in fp32, in epoch `epoch` (from 0)."""
        everything = range(len(self.names))
        if epoch < self.first_epochs or (self.last_epochs and epoch >= self.epochs - self.last_epochs):
            return [], everything
        full = [p for p in everything if any(fnmatchcase(self.names[p], glob) for glob in self.layers)]
        return [p for p in everything if p not in set(full)], full
