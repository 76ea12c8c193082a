"""How a rule rounds one tensor: to a format, by its scale, its draws and its transform."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

from custom_fp import ops
from custom_fp.accumulator import is_name
from custom_fp.formats.names import parse
from custom_fp.recipe.tensor_aps import aps_quantize
from custom_fp.rounding import is_stochastic

NEAREST = "nearest_even"
SIGNS = 0
"""Seed of the signs of all transforms: two operands of a product must have the same."""


@dataclass(frozen=True)
class Rounding:
    """To a format, or of a sum by an accumulator of this name; the gradient passes straight through.

    aps: shifted to fill its format (`tensor_aps.py`). kahan: of sums, that carry their error along. word: a rounding
    of rounding.py; stochastic and stochastic_N draw from torch's default generator where a layer is trained, and are
    nearest even where it is evaluated. hadamard: size of the random Hadamard transform along the dimension
    that a product sums over. history: steps whose largest values give the scale, which `delayed.py` keeps.

    What is NaN, inf, -0, subnormal or past the largest value becomes what `custom_fp.quantize` and `custom_fp.hadamard`
    make of it. Of a dimension that is no multiple of the transform's size the rest is filled up with zeros, of which
    both operands have the same, so that the product is unchanged but for rounding.
    """

    format: str
    aps: bool = False
    kahan: bool = False
    word: str = NEAREST
    hadamard: int | None = None
    history: int | None = None

    def __post_init__(self) -> None:
        """Sets what torch.compile could not look up: `has_axis`, whether an operand is rounded along a dimension, and
        so for one product alone; `has_tiles`, whether that is so but for matrices; `nearest`, as layers that are
        evaluated round, without draws."""
        fmt = None if is_name(self.format) else parse(self.format)  # an accumulator rounds no operand
        object.__setattr__(self, "has_axis", self.hadamard is not None or (fmt is not None and fmt.has_axis))
        object.__setattr__(self, "has_tiles", self.hadamard is None and fmt is not None and fmt.has_tiles)
        nearest = replace(self, word=NEAREST) if self.is_stochastic else self
        object.__setattr__(self, "nearest", nearest)

    def __call__(self, x: Tensor) -> Tensor:
        return aps_quantize(x, self.format) if self.aps else self._quantized(x, None)

    def along(self, x: Tensor, axis: int) -> Tensor:
        """Transformed, and rounded in blocks along this dimension, which becomes a multiple of the transform's size."""
        if self.hadamard is not None:
            if missing := -x.shape[axis] % self.hadamard:
                x = F.pad(x.movedim(axis, -1), (0, missing)).movedim(-1, axis)
            x = ops.hadamard(x, self.hadamard, seed=SIGNS, axis=axis)
        return self._quantized(x, axis)

    def _quantized(self, x: Tensor, axis: int | None) -> Tensor:
        if axis is not None and axis < 0:
            axis += x.dim()
        return ops.quantize(x, self.format, rounding=self.word, axis=axis)

    @property
    def is_stochastic(self) -> bool:
        return is_stochastic(self.word)

    def __str__(self) -> str:
        how = [self.word] if self.word != NEAREST else []
        how += [f"hadamard {self.hadamard}"] if self.hadamard is not None else []
        return f"{self.format} ({', '.join(how)})" if how else self.format
