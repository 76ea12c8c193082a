"""Tensors that many tests share: every kind of float32 value, and how results are compared."""

import math

import torch
from torch import Tensor


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have one dtype, one shape and the same bits. -0 differs from 0, NaN equals NaN."""
    return (
        a.dtype is b.dtype
        and a.shape == b.shape
        and torch.equal(*(x.reshape(-1).view(torch.uint8) for x in (a, b)))
    )


def bit_patterns(*shape: int, seed: int = 0) -> Tensor:
    """Return float32 values with random bits: all exponents are equally likely, some values are NaN."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, shape, generator=g).to(torch.int32).view(torch.float32)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def spread(*shape: int, seed: int = 0, binades: tuple[int, int] = (-12, 3)) -> Tensor:
    """Return normal values, each multiplied by a random power of two."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g) * torch.exp2(torch.randint(*binades, shape, generator=g).float())


def specials() -> Tensor:
    ends = torch.tensor([0.0, math.inf, math.nan, 2.0**-149, 2.0**-126, 3.4028234663852886e38, 1.5])
    return torch.cat([ends, -ends])


def assorted() -> Tensor:
    """Return random bits, normal values of several magnitudes, and special values."""
    scales = [normal(1 << 12, seed=i) * scale for i, scale in enumerate((1, 1e-3, 1e30, 1e-38))]
    return torch.cat([bit_patterns(1 << 14), *scales, specials()])


def beside(x: Tensor) -> Tensor:
    """Return values and their two neighbors in their dtype."""
    infinity = torch.full_like(x, math.inf)
    return torch.cat([x, x.nextafter(infinity), x.nextafter(-infinity)])
