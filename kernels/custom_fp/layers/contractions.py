"""Products of tensors with rounded operands, sums and results: torch.matmul, grouped_mm and torch.einsum.

The first tensor has the role input, and the second tensor has the role weight. If a format has scales, its blocks run
along the summed dimensions.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from custom_fp.layers.products import Arithmetic, Linear, Matrices, Sums


def multiply_matrices(
    arithmetic: Arithmetic, a: Tensor, b: Tensor, added: Tensor | None = None, factor: float = 1
) -> Tensor:
    """Compute factor * torch.matmul(a, b) + added with the given arithmetic, where a is the input and b the weight.

    If b is a matrix, all rows of a are multiplied as one matrix, as in a linear layer. Otherwise, each matrix of the
    batch is a separate product.

    Args:
        arithmetic: The arithmetic.
        a: A tensor of shape (..., L, K), or a vector.
        b: A tensor of shape (..., K, M), or a vector. Shapes broadcast as in torch.matmul.
        added: A tensor that can be broadcast to the product.
        factor: A number.
    """
    if b.dim() == 1:
        return multiply_matrices(arithmetic, a, b.unsqueeze(-1), added, factor).squeeze(-1)
    if a.dim() == 1:
        return multiply_matrices(arithmetic, a.unsqueeze(0), b, added, factor).squeeze(-2)
    dtype = a.dtype
    if b.dim() > 2:
        leading = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (x.expand(*leading, *x.shape[-2:]) for x in (a, b))
    if arithmetic.accumulators:
        added = added if added is None else added.expand(*a.shape[:-1], b.shape[-1])
        if b.dim() == 2:
            rows = arithmetic.multiply(
                Sums(arithmetic), a, b, rows_of, bias=None if added is None else rows_of(added), factor=factor
            )
            return rows.view(*a.shape[:-1], b.shape[-1]).to(dtype)
        return arithmetic.multiply(Sums(arithmetic), a, b, bias=added, factor=factor).to(dtype)
    kernel = Linear() if b.dim() == 2 else Matrices()
    return arithmetic.multiply(kernel, a, b.mT, bias=added, factor=factor).to(dtype)


def rows_of(x: Tensor) -> Tensor:
    """Return a tensor of shape (..., K) as a matrix with K columns."""
    return x.reshape(-1, x.shape[-1])


def multiply_groups(arithmetic: Arithmetic, a: Tensor, b: Tensor, ends: Tensor | None) -> Tensor:
    """Compute torch.nn.functional.grouped_mm with the given arithmetic.

    Each group is a separate product, as if each expert had its own Linear layer. Blocks and scales never span two
    groups. If a format has one scale for the whole tensor, each group has its own scale. Rows and columns of the result
    that belong to no group are zero, whereas PyTorch leaves them uninitialized.

    Args:
        arithmetic: The arithmetic.
        a: A tensor of shape (groups, L, K), or a matrix. If b is also a matrix, the columns of a are divided into
            groups. Otherwise, the rows of a are divided.
        b: A tensor of shape (groups, K, M), or a matrix. If a is also a matrix, the rows of b are divided into groups.
            Otherwise, the columns of b are divided.
        ends: The index after the last row or column of each group, int32 of shape (groups,), or None if both a and b
            have three dimensions.
    """
    ends_list: list[int] = [] if ends is None else ends.tolist()
    sizes = [end - start for start, end in zip([0, *ends_list], ends_list, strict=False)]

    def split(x: Tensor, dim: int) -> tuple[Tensor, ...]:
        return x.unbind(0) if x.dim() == 3 else x.split([*sizes, x.shape[dim] - sum(sizes)], dim)[:-1]

    is_a_3d, is_b_3d = a.dim() == 3, b.dim() == 3
    pairs = zip(split(a, 0 if is_b_3d else 1), split(b, 1 if is_a_3d else 0), strict=True)
    # If b is a matrix, PyTorch multiplies the empty groups. If b is 3-D, an expert without rows needs no special case.
    products = [
        multiply_matrices(arithmetic, x, y) if is_b_3d or (x.numel() and y.numel()) else x @ y
        for x, y in pairs
    ]
    if is_a_3d == is_b_3d:
        return torch.stack(products)
    dim = 1 if is_a_3d else 0
    missing = (b if is_a_3d else a).shape[dim] - sum(sizes)
    return F.pad(torch.cat(products, dim), (0, missing) if is_a_3d else (0, 0, 0, missing))


class Contraction:
    """An equation of torch.einsum for two operands, such as "bij,bjk->bik".

    Each attribute is a string with one letter per dimension, or a pair of such strings.

    Attributes:
        batch: The dimensions that both operands and the result have.
        summed: The dimensions that both operands have, but that the result does not have.
        free: For each operand, the dimensions that the other operand does not have.
        operands: The dimensions of each operand.
        result: The dimensions of the result.
    """

    def __init__(self, operands: tuple[str, str], result: str) -> None:
        self.operands, self.result = operands, result
        a, b = operands
        self.batch = "".join(d for d in a if d in b and d in result)
        self.summed = "".join(d for d in a if d in b and d not in result)
        self.free = "".join(d for d in a if d not in b), "".join(d for d in b if d not in a)

    @classmethod
    def parse(cls, equation: str, dims: list[int]) -> Contraction | None:
        """Parse an equation. Return None if a single batched matrix product cannot compute it.

        A batched matrix product requires that the equation has exactly two operands, that no operand repeats
        a dimension, and that each dimension that is summed over belongs to both operands.

        Args:
            equation: An equation of torch.einsum.
            dims: The number of dimensions of each operand.
        """
        left, arrow, result = equation.replace(" ", "").partition("->")
        operands = left.split(",")
        if len(operands) != 2 or len(dims) != 2:
            return None
        hidden = [
            n - len(x.replace("...", "")) if "..." in x else 0 for n, x in zip(dims, operands, strict=True)
        ]
        ellipses = [_ELLIPSIS[len(_ELLIPSIS) - n :] for n in hidden]
        operands = [x.replace("...", ellipsis) for x, ellipsis in zip(operands, ellipses, strict=True)]
        longest = max(ellipses, key=len)
        if arrow:
            result = result.replace("...", longest)
        else:
            counts = "".join(operands)
            result = longest + "".join(sorted(d for d in set(counts) - set(longest) if counts.count(d) == 1))
        dimensions = (*operands, result)
        if any(len(set(x)) < len(x) for x in dimensions) or [len(x) for x in operands] != dims:
            return None
        if not set(operands[0]) ^ set(operands[1]) <= set(result) <= set("".join(operands)):
            return None
        return cls((operands[0], operands[1]), result)

    def sizes(self, a: Tensor, b: Tensor) -> dict[str, int]:
        """Return the size of each dimension after broadcasting."""
        sizes: dict[str, int] = {}
        for dimensions, x in zip(self.operands, (a, b), strict=True):
            for d, size in zip(dimensions, x.shape, strict=True):
                sizes[d] = size if sizes.get(d, 1) == 1 else sizes[d]
        return sizes

    def terms(self, a: Tensor, b: Tensor) -> int:
        """Return the number of terms in the sum that computes one element of the result."""
        sizes = self.sizes(a, b)
        return math.prod([sizes[d] for d in self.summed])

    def __call__(self, arithmetic: Arithmetic, a: Tensor, b: Tensor) -> Tensor:
        """Contract two tensors with the given arithmetic."""
        sizes = self.sizes(a, b)
        first = self._arranged(a, 0, (self.batch, self.free[0], self.summed), sizes)
        second = self._arranged(b, 1, (self.batch, self.summed, self.free[1]), sizes)
        result = multiply_matrices(arithmetic, first, second)
        order = self.batch + self.free[0] + self.free[1]
        return result.reshape([sizes[d] for d in order]).permute([order.index(d) for d in self.result])

    def _arranged(self, x: Tensor, which: int, groups: tuple[str, ...], sizes: dict[str, int]) -> Tensor:
        """Return an operand as a batch of matrices, or as a single matrix if there are no batch dimensions.

        Args:
            x: The operand.
            which: 0 for the first operand, 1 for the second one.
            groups: The dimensions that form the batch, the rows and the columns.
            sizes: The size of each dimension.
        """
        dimensions = self.operands[which]
        order = "".join(groups)
        x = x.permute([dimensions.index(d) for d in order]).expand([sizes[d] for d in order])
        shape = [math.prod([sizes[d] for d in group]) for group in groups]
        return x.reshape(shape if self.batch else shape[1:])


# Greek letters name the dimensions of an ellipsis, because equations of torch.einsum cannot contain these letters.
_ELLIPSIS = "".join(chr(0x3B1 + i) for i in range(16))


def equation_of(operands: tuple[Any, ...]) -> tuple[str, list[Any]] | None:
    """Return the equation and the tensors of a call to torch.einsum.

    If the call has lists of dimensions instead of an equation, return None.
    """
    if not operands or not isinstance(operands[0], str):
        return None
    equation, *tensors = operands
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = list(tensors[0])
    return equation, tensors
