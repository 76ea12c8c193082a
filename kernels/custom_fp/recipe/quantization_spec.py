"""How a rule rounds a tensor: the format, the rounding mode, shifts and transforms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch.nn.functional as F
from torch import Tensor

from custom_fp import ops
from custom_fp.accumulator import is_name
from custom_fp.formats.names import parse
from custom_fp.recipe.tensor_aps import aps_quantize
from custom_fp.rounding import is_stochastic

NEAREST = "nearest_even"
# The seed of the random signs. All transforms use it, because both operands of a product need the same signs. The
# first 16 signs equal those of TransformerEngine (get_wgrad_sign_vector in pytorch/tensor/nvfp4_tensor.py).
SIGNS = 34000


@dataclass(frozen=True)
class QuantizationSpec:
    """The way in which a rule rounds a tensor, or the accumulator of a product. The gradient passes straight through.

    Special values are treated as in `custom_fp.quantize` and `custom_fp.hadamard`. If a dimension is not a multiple of
    the size of the transform, it is padded with zeros. Both operands are padded with the same number of zeros, so the
    product stays the same except for rounding.

    Attributes:
        format: The name of a format or of an accumulator.
        aps: Whether to shift the tensor so that it fills its format (tensor_aps.py).
        kahan: Whether to use Kahan summation. Only for accumulators.
        rounding_mode: The rounding mode, as in `custom_fp.quantize`. In training, stochastic modes draw from torch's
            default generator. In evaluation, nearest_even replaces them.
        hadamard: The size of the random Hadamard transform along the dimension that a product sums over.
        history: The number of steps whose largest magnitudes determine the scale (delayed_scaling.py).
        cached: The rounding of an input that is stored after the forward product. The weight gradient rounds the stored
            values again. None stores the unrounded input.
        has_axis: Whether an operand is rounded along a dimension, and therefore separately for each product.
        has_tiles: Whether blocks are tiles, so that a matrix is rounded in the same way for all products.
        nearest: The same specification with nearest_even, for evaluation.
    """

    format: str
    aps: bool = False
    kahan: bool = False
    rounding_mode: str = NEAREST
    hadamard: int | None = None
    history: int | None = None
    cached: QuantizationSpec | None = None
    has_axis: bool = field(init=False, repr=False, compare=False)
    has_tiles: bool = field(init=False, repr=False, compare=False)
    nearest: QuantizationSpec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # These attributes are computed once, because torch.compile cannot trace this code. If `format` names an
        # accumulator, there is no number format to parse.
        fmt = None if is_name(self.format) else parse(self.format)
        by_product = self.hadamard is not None or self.cached is not None
        object.__setattr__(self, "has_axis", by_product or (fmt is not None and fmt.has_axis))
        object.__setattr__(self, "has_tiles", not by_product and fmt is not None and fmt.has_tiles)
        nearest = replace(self, rounding_mode=NEAREST) if self.is_stochastic else self
        object.__setattr__(self, "nearest", nearest)

    def __call__(self, x: Tensor) -> Tensor:
        return aps_quantize(x, self.format) if self.aps else self._quantized(x, None)

    def in_place(self, x: Tensor) -> Tensor:
        """Round a contiguous float32 tensor in place, and return it."""
        return self(x) if self.aps else ops.quantize(x, self.format, rounding=self.rounding_mode, out=x)

    def along(self, x: Tensor, axis: int) -> Tensor:
        """Transform and round a tensor along a dimension, after padding it to a multiple of the transform's size."""
        if self.hadamard is not None:
            if missing := -x.shape[axis] % self.hadamard:
                x = F.pad(x.movedim(axis, -1), (0, missing)).movedim(-1, axis)
            x = ops.hadamard(x, self.hadamard, seed=SIGNS, axis=axis)
        return self._quantized(x, axis)

    def _quantized(self, x: Tensor, axis: int | None) -> Tensor:
        if axis is not None and axis < 0:
            axis += x.dim()
        return ops.quantize(x, self.format, rounding=self.rounding_mode, axis=axis)

    @property
    def is_stochastic(self) -> bool:
        """Whether the rounding mode is stochastic."""
        return is_stochastic(self.rounding_mode)

    def __str__(self) -> str:
        details = [self.rounding_mode] if self.rounding_mode != NEAREST else []
        details += [f"hadamard {self.hadamard}"] if self.hadamard is not None else []
        details += [f"cached in {self.cached}"] if self.cached is not None else []
        return f"{self.format} ({', '.join(details)})" if details else self.format
