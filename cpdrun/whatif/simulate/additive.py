"""A base class for statistics that can be added over elements, layers and steps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class Additive:
    """A frozen dataclass whose fields are float sums. Instances can be added and weighted."""

    def times(self, weight: float) -> Self:
        """Return the sums multiplied by a weight."""
        return type(self)(*(weight * getattr(self, f.name) for f in fields(self)))

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
