"""Hybrid precision: the gradients of chosen layers and epochs are exchanged in fp32.

See Han, Demmel and You (arXiv:1911.08907). The paper keeps the last layer in fp32. Here, glob patterns select the
layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property


@dataclass(frozen=True)
class FullPrecision:
    """The layers and epochs that stay in fp32.

    Attributes:
        names: The names of all parameters.
        layers: Glob patterns of the parameters that stay in fp32.
        first_epochs: The number of epochs at the beginning of a run in which all parameters stay in fp32.
        last_epochs: The number of epochs at the end of a run in which all parameters stay in fp32.
        epochs: The number of epochs of the run.

    Raises:
        ValueError: A pattern matches no parameter, or `last_epochs` is set and the number of epochs is unknown.
    """

    names: tuple[str, ...]
    layers: Sequence[str] = ()
    first_epochs: int = 0
    last_epochs: int = 0
    epochs: int | None = None

    def __post_init__(self) -> None:
        for pattern in self.layers:
            if not any(fnmatchcase(name, pattern) for name in self.names):
                some = ", ".join(self.names[:4])
                raise ValueError(
                    f"full_precision.layers: {pattern!r} matches no parameter. The first parameters are {some}"
                )
        if self.last_epochs and self.epochs is None:
            raise ValueError(
                "full_precision.last_epochs needs a run whose number of epochs is known. Set epochs, or leave "
                "full_precision.last_epochs out"
            )

    @cached_property
    def always(self) -> frozenset[str]:
        """The parameters whose gradients are exchanged in fp32 in every epoch."""
        return frozenset(name for name in self.names if any(fnmatchcase(name, glob) for glob in self.layers))

    def covers(self, parameter: int, epoch: int) -> bool:
        """Return whether a parameter's gradient is exchanged in fp32 in an epoch, counted from 0."""
        at_an_end = epoch < self.first_epochs or (
            self.epochs is not None and self.last_epochs > 0 and epoch >= self.epochs - self.last_epochs
        )
        return at_an_end or self.names[parameter] in self.always
