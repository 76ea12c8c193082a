"""Check whether the results of your own kernels are ones that the hardware can produce.

    from custom_fp.testing import assert_matmul, assert_quantize

    assert_matmul(my_gemm(a, b), a, b, machine="h100_bf16")
    assert_quantize(my_cast(x), x, "e4m3fn", overflow="saturate")

You do not choose a tolerance. The checks derive it from the arithmetic of the machine and the values of each element.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.formats.protocol import NumberFormat
from custom_fp.testing.causes import failure_message
from custom_fp.testing.check import check
from custom_fp.testing.elementwise import check_quantize
from custom_fp.testing.problem import read_problem

__all__ = ["assert_matmul", "assert_quantize"]


def assert_matmul(
    got: Tensor,
    a: Tensor,
    b: Tensor,
    machine: Accumulator | NumberFormat | str = "h100_bf16",
    k_split: int | Sequence[int] | str = "any",
    *,
    scale_a: Tensor | float | None = None,
    scale_b: Tensor | float | None = None,
    elements: int | None = None,
    seed: int = 0,
) -> str:
    """Assert that the named machine can produce a kernel's matrix product.

    The following results are legal. The K terms of an element are cut into blocks of consecutive terms. A block has as
    many terms as one instruction of the machine adds. Each block either continues a partial sum, with the machine's own
    addition, or begins a new partial sum. Partial sums are added in float32. A kernel may add blocks in any order and
    may choose which blocks share a partial sum. Split-K, stream-K, warps that share K, and atomic additions are
    therefore all legal. The sum is multiplied by the scales, and each product is rounded to float32. Finally, the
    result is rounded once, to nearest even, to the dtype of `got`.

    The check first computes common orders of summation: one chain, and 2, 4, 8, 16 or 32 equal parts. If one of these
    orders reproduces every element, the check passes. Otherwise, the check takes the order that reproduces the most
    elements. Each element that this order does not reproduce must lie in an interval that contains the results of all
    legal orders. The interval is derived from the terms of the element, without any tolerance.

    A legal result never fails the check. If the check passes, every element lies in its interval, which may be slightly
    wider than the range of legal values. A pass does not prove that a single order produces all elements, unless the
    returned text names that order. Errors that are smaller than the effect of the summation order are not detected. The
    signs of zeros are not compared. Elements whose partial sums can overflow in some order are not checked.

    Args:
        got: The kernel's result, of shape (..., M, N), in float32, bfloat16 or float16, on any device.
        a: The first operand, of shape (..., M, K). The machine's input format must represent all of its values.
        b: The second operand, of shape (..., K, N). For a machine with block scales (b200_mxfp8, b200_nvfp4), round the
            operands with `custom_fp.quantize` first, with `axis=-1` for a and `axis=-2` for b.
        machine: The name of a machine in `custom_fp.accumulators.machines`, or any accumulator.
        k_split: How K is split. "any" allows all splits. A number means that many equal parts, each of which is
            summed as one chain in ascending order; 1 requires the bits of a single chain. A list gives the lengths of
            the parts. Parts consist of whole blocks, and they may be added in float32 in any order.
        scale_a: A factor of the result: a number, or a tensor of shape (..., M, 1). A tensor of shape (..., M, G)
            gives each of G groups of K its own scale. The sum of each group is then multiplied by both scales and
            added to a float32 total, as DeepGEMM does.
        scale_b: The same for b, of shape (..., 1, N) or (..., G, N).
        elements: Check only about this many elements. Random rows and columns are sampled, one from each of equally
            wide strips, plus the first and last row and column. If None, all elements are checked.
        seed: The seed for sampling rows and columns.

    Returns:
        The order that reproduces all elements, such as "one chain". If no computed order does, "within the bound".

    Raises:
        AssertionError: No legal order produces some elements of `got`. The message names the worst element, its
            distance in units in the last place, and a likely cause. To find the cause, many hypotheses are recomputed,
            such as a missing block of K, a transposed tile, a wrong scale, another rounding or flushed subnormals. The
            hypothesis that reproduces most of the wrong elements is reported.
        ValueError: An argument is not allowed.
    """
    if elements is not None and (not isinstance(elements, int) or isinstance(elements, bool) or elements < 1):
        raise ValueError(f"elements is {elements!r}; it must be None or a number of elements, at least 1")
    problem = read_problem(got, a, b, machine, k_split, scale_a, scale_b)
    if problem.got.numel() == 0:
        return "no elements"
    total = problem.got.numel()
    if elements is not None:
        problem = problem.submatrix(elements, torch.Generator().manual_seed(seed))
    found = check(problem)
    if found.passed:
        return str(found.order or "within the bound")
    raise AssertionError(failure_message(problem, found, problem.got.numel() < total))


def assert_quantize(
    got: Tensor,
    x: Tensor,
    fmt: NumberFormat | str,
    *,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    axis: int | None = None,
    seed: int | None = None,
) -> None:
    """Assert that a kernel's rounding equals `custom_fp.quantize`, bit for bit.

    Args:
        got: The kernel's result, with the shape of x, in any floating-point dtype that represents the format's values.
        x: The tensor that the kernel rounded.
        fmt: A number format or its name.
        rounding: The rounding mode, as in `custom_fp.quantize`. For stochastic rounding without a seed, each element
            must be one of the two neighbors of x, or x itself if the format represents x. The check does not test
            whether the probabilities are right. Formats with scales require a seed.
        overflow: The overflow mode, as in `custom_fp.quantize`. It decides what values past the largest one become.
        axis: The dimension along which blocks run, as in `custom_fp.quantize`.
        seed: The seed of stochastic rounding, for kernels that use this package's random number generator.

    Raises:
        AssertionError: An element differs. NaN equals NaN, and 0 differs from -0. The message names the worst element
            and a likely cause, such as ties that were rounded away from zero, flushed subnormals, double rounding, or
            saturation instead of infinity.
        ValueError: An argument is not allowed.
    """
    message = check_quantize(got, x, fmt, rounding, overflow, axis, seed)
    if message:
        raise AssertionError(message)
