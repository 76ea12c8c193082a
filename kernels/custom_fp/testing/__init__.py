"""Checks for people who write their own kernels: is a result one that the hardware can give?

    from custom_fp.testing import assert_matmul, assert_quantize

    assert_matmul(my_gemm(a, b), a, b, machine="h100_bf16")
    assert_quantize(my_cast(x), x, "e4m3fn", overflow="saturate")

No tolerance has to be chosen. It follows from the arithmetic of the machine and from the values of each element.
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
    """Assert that a kernel's matrix product is one that the named machine can give.

    Legal results are those of the following computation. The K terms of an element are cut into blocks of consecutive
    terms, as many as the machine's instruction adds at once. Each block is added to a partial sum as the machine adds
    it, or begins a new partial sum. Partial sums are added in float32. The order of blocks, and which of them share a
    partial sum, is free, so split-K, stream-K, warps that share K, and atomic additions are all legal. The sum is
    multiplied by the scales, each product rounded to float32, and rounded once, to nearest even, to the dtype of `got`.

    First, common orders are computed: one chain, and 2, 4, 8, 16 or 32 equal parts. If one of them gives every element,
    the check passes. Otherwise each element that the best of them does not give must lie in an interval that contains
    the results of all legal orders. The interval is derived from the element's own terms, without any tolerance.

    If the check passes, every element is between the smallest and the largest value that any legal order can give, or
    a bound beyond them. A legal result never fails. This does not mean that one order gives all elements, unless the
    returned text names one, and errors that are smaller than the freedom of the order are not seen. The signs of
    zeros are not compared. Elements whose partial sums can overflow in some order are not checked.

    Args:
        got: The kernel's result, of shape (..., M, N), in float32, bfloat16 or float16, on any device.
        a: The first operand, of shape (..., M, K). Its values must be those of the machine's input format.
        b: The second operand, of shape (..., K, N). A machine with scales (b200_mxfp8, b200_nvfp4) takes operands that
            `custom_fp.quantize` rounded, with `axis=-1` for a and `axis=-2` for b.
        machine: The name of a machine in `custom_fp.accumulators.machines`, or any accumulator.
        k_split: "any" for all splits of K; a number of equal parts, each a chain in ascending order (1: the bits of the
            chain); or a list of the lengths of the parts. Parts consist of whole blocks. The order in which parts are
            added in float32 is always free.
        scale_a: A factor of the result: a number, or a tensor of shape (..., M, 1). With shape (..., M, G), G groups of
            K have a scale each, and each group's sum is multiplied by both scales and added to a float32 total, as
            DeepGEMM does.
        scale_b: The same for b, of shape (..., 1, N) or (..., G, N).
        elements: Check only about so many elements, in random rows and columns, one from each of equally wide strips,
            and in the first and last row and column. If None, all elements are checked.
        seed: The seed of the random rows and columns.

    Returns:
        The order that gives all elements, such as "one chain", or "within the bound".

    Raises:
        AssertionError: `got` has elements that no legal order gives. The message names the worst one, its distance in
            units in the last place, and a likely cause: each of many hypotheses (a missing block of K, a
            transposed tile, a wrong scale, another rounding, flushed subnormals ...) is recomputed, and the one that
            reproduces most of the wrong elements is reported.
        ValueError: An argument is not allowed.
    """
    if elements is not None and (not isinstance(elements, int) or isinstance(elements, bool) or elements < 1):
        raise ValueError(f"elements is {elements!r}; allowed: None, or a number of elements from 1")
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
        got: The kernel's result, of the shape of x, in any floating-point dtype that has the values of the format.
        x: What the kernel rounded.
        fmt: A number format or its name.
        rounding: The rounding, as in `custom_fp.quantize`. For stochastic rounding without a seed, each element must
            be one of the two neighbors of x, or x itself if the format has it. Whether the probabilities are right is
            not checked. Formats with scales need a seed.
        overflow: What values past the largest one become, as in `custom_fp.quantize`.
        axis: The dimension along which blocks run, as in `custom_fp.quantize`.
        seed: The seed of stochastic rounding by this package's generator.

    Raises:
        AssertionError: An element differs. NaN equals NaN, and 0 differs from -0. The message names the worst element
            and a likely cause, such as ties that were rounded away from zero, flushed subnormals, double rounding, or
            saturation instead of infinity.
        ValueError: An argument is not allowed.
    """
    message = check_quantize(got, x, fmt, rounding, overflow, axis, seed)
    if message:
        raise AssertionError(message)
