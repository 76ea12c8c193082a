"""Compare machines with a separate model, on a million dot products each.

    python scripts/checks/check_machines.py [NAME ...] [--cases 1000000] [--seed 0]

The model shares no code with custom_fp's kernels and reference. It sums aligned blocks in numpy's integers and float64,
which represent every sum of these machines exactly. It sums trees in float32, and computes fused multiply-adds with the
C library's fmaf.

Operands are random codes of the machine's formats, values spread over many exponents, and normally distributed values.
For formats with scales, the model receives the codes and scales, while the emulated machine must recover them from the
values. The exit status is 1 if a result differs.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from dataclasses import dataclass
from itertools import pairwise

import custom_fp
import numpy as np
import torch
from custom_fp.accumulators.machines import MACHINES

OPERANDS = {"mi100_fp16": ("fp16", "fp16"), "mi100_bf16": ("bf16", "bf16"), "mi100_fp32": ("fp32", "fp32")}
SMALLEST = np.float32(2.0**-126)  # a normal float32
_libm = ctypes.CDLL("libm.so.6")
_libm.fmaf.argtypes, _libm.fmaf.restype = [ctypes.c_float] * 3, ctypes.c_float


@dataclass
class Scaled:
    """An operand with scales. A scale is repeated for each value of its block, so all arrays have the same shape."""

    values: torch.Tensor
    units: np.ndarray
    """The values without the scale of the whole tensor: codes times the scales of their blocks."""
    exponents: np.ndarray
    """The exponents of codes plus those of their scales."""
    scales: np.ndarray
    """The exponents of the scales."""
    of_tensor: float
    """The scale of the whole tensor."""

    @classmethod
    def of(cls, encoded: tuple[torch.Tensor, ...], fmt: custom_fp.ScaledFormat, axis: int) -> Scaled:
        codes, scales, *of_tensor = encoded
        values = custom_fp.decode(encoded, fmt, axis=axis)
        elements = custom_fp.decode(codes, fmt.element).double().numpy()
        if fmt.scale.format.name == "e8m0":
            exponent = scales.numpy().astype(np.int64) - 127
            scale = np.ldexp(1.0, exponent)
        else:
            scale = custom_fp.decode(scales, fmt.scale.format.name).double().numpy()
            exponent = np.maximum(np.frexp(scale)[1] - 1, -6)
        scale, exponent = (np.repeat(x, fmt.block, axis) for x in (scale, exponent))
        of_codes = np.where(elements == 0, -126, np.maximum(np.frexp(elements)[1] - 1, fmt.element.emin))
        return cls(values, elements * scale, of_codes + exponent, exponent, *of_tensor or [1.0])


def scaled(a: Scaled, b: Scaled, how: custom_fp.Accumulator) -> np.ndarray:
    """Return float32 sums of scaled products, or of groups of them, aligned with the partial sum and truncated."""
    acc = np.zeros((a.units.shape[0], b.units.shape[1]))
    for start in range(0, a.units.shape[1], how.block):
        terms = [(acc, exponents(acc, how.sum.emin))]
        for k in range(start, start + how.block, how.group):
            value = a.units[:, k : k + how.group] @ b.units[k : k + how.group]  # exact in float64
            of_a, of_b = (a.scales, b.scales) if how.group > 1 else (a.exponents, b.exponents)
            terms.append((value, np.add.outer(of_a[:, k], of_b[k])))
        acc = cut_off(terms, how)
    alpha = np.float32(a.of_tensor) * np.float32(b.of_tensor)
    return acc.astype(np.float32) * alpha


def aligned(a_MxK: np.ndarray, b_KxN: np.ndarray, how: custom_fp.Accumulator) -> np.ndarray:
    """Return float32 sums. Exact products of a block are aligned with the partial sum, truncated, and added."""
    emin_a, emin_b = (fmt.emin for fmt in how.operands)
    acc = np.zeros((a_MxK.shape[0], b_KxN.shape[1]))
    total, of_total = np.zeros_like(acc), np.float16 if how.total == custom_fp.parse("fp16") else np.float32
    for start in range(0, a_MxK.shape[1], how.block):
        at = slice(start, start + how.block)
        terms = [
            (np.multiply.outer(a, b), np.add.outer(exponents(a, emin_a), exponents(b, emin_b)))
            for a, b in zip(a_MxK[:, at].T, b_KxN[at], strict=True)
        ]
        terms.append((acc, exponents(acc, how.sum.emin)))
        acc = cut_off(terms, how)
        if how.chunk and (start + how.block) % how.chunk == 0:
            total, acc = (total + acc).astype(of_total).astype(np.float64), np.zeros_like(acc)
    if how.chunk:
        acc = (total + acc).astype(of_total)
    return acc.astype(np.float32)


def cut_off(terms: list[tuple[np.ndarray, np.ndarray]], how: custom_fp.Accumulator) -> np.ndarray:
    """Align terms to their largest exponent, truncate, add and round them. A term is a value and its exponent."""
    common = np.max([exponent for _, exponent in terms], axis=0)
    whole = np.zeros(common.shape, dtype=np.int64)
    for value, _ in terms:
        whole += np.trunc(np.ldexp(value, how.width - common)).astype(np.int64)
    plain = np.sum(
        [value for value, _ in terms], axis=0
    )  # No sum overflows, so the result is only infinite or NaN if a term is.
    exact = np.ldexp(whole.astype(np.float64), common - how.width)
    return to_format(np.where(np.isfinite(plain), exact, plain), how)


def exponents(x: np.ndarray, emin: int) -> np.ndarray:
    return np.where(x == 0, -126, np.maximum(np.frexp(x)[1] - 1, emin))


def to_format(x: np.ndarray, how: custom_fp.Accumulator) -> np.ndarray:
    """Round to the format of sums, toward zero or to nearest even. Values that are too large become infinity."""
    fmt = how.sum
    quantum = np.maximum(np.frexp(x)[1] - 1, fmt.emin) - fmt.mantissa_bits
    digits = np.ldexp(x, -quantum)
    digits = np.trunc(digits) if how.rounding == "toward_zero" else np.rint(digits)
    result = np.ldexp(digits, quantum) + 0.0
    return np.where(np.abs(result) > fmt.max, np.copysign(np.inf, result), result)


def joined(a_MxK: np.ndarray, b_KxN: np.ndarray, how: custom_fp.Accumulator) -> np.ndarray:
    """Return float32 sums of products that are aligned in two stages.

    The products of a block are aligned and added first. Their sum is then aligned with the partial sum. The parts of a
    split block are aligned separately.
    """
    emin_a, emin_b = (fmt.emin for fmt in how.operands)
    acc = np.zeros((a_MxK.shape[0], b_KxN.shape[1]))
    for start in range(0, a_MxK.shape[1], how.block):
        at = slice(start, start + how.block)
        parts = []
        for first in range(how.split):
            a, b = a_MxK[:, at][:, first :: how.split].T, b_KxN[at][first :: how.split]
            products = [np.multiply.outer(x, y) for x, y in zip(a, b, strict=True)]
            common = np.max(
                [np.add.outer(exponents(x, emin_a), exponents(y, emin_b)) for x, y in zip(a, b, strict=True)],
                axis=0,
            )
            digits = np.sum([np.trunc(np.ldexp(p, how.width - common)) for p in products], axis=0)
            parts.append((np.ldexp(digits, common - how.width), common))
        top = np.max([common for _, common in parts], axis=0)
        total = np.sum([down(value, top - how.width) for value, _ in parts], axis=0)
        largest = np.maximum(top, exponents(acc, how.sum.emin))
        seen = exponents(acc, how.sum.emin) >= largest - how.join[1] - 1
        kept = acc if how.split == 1 else np.where(seen, acc, 0.0)
        exact = down(total, largest - how.join[0]) + down(kept, largest - how.join[1])
        overflows = [
            np.where(np.abs(p) >= 2.0**128, np.copysign(np.inf, p), 0.0)
            for p in all_products(a_MxK, b_KxN, at)
        ]
        past = np.sum(overflows, axis=0)
        plain = acc + np.sum(all_products(a_MxK, b_KxN, at), axis=0)
        acc = np.where(np.isfinite(plain), np.where(past == 0, exact + 0.0, past), plain)
        acc = acc.astype(np.float32).astype(np.float64)
    return acc.astype(np.float32)


def all_products(a_MxK: np.ndarray, b_KxN: np.ndarray, at: slice) -> list[np.ndarray]:
    return [np.multiply.outer(x, y) for x, y in zip(a_MxK[:, at].T, b_KxN[at], strict=True)]


def down(x: np.ndarray, unit: np.ndarray) -> np.ndarray:
    return np.ldexp(np.floor(np.ldexp(x, -unit)), unit)


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x)


def in_trees(a_MxK: np.ndarray, b_KxN: np.ndarray, block: int, keep=lambda x: x) -> np.ndarray:
    """Return the sums of blocks that are added in trees. `keep` is applied to each product and each sum."""
    acc = np.zeros((a_MxK.shape[0], b_KxN.shape[1]), dtype=np.float32)
    for start in range(0, a_MxK.shape[1], block):
        level = [keep(np.multiply.outer(a_MxK[:, k], b_KxN[k])) for k in range(start, start + block)]
        while len(level) > 1:
            level = [keep(x + y) for x, y in list(pairwise(level))[::2]]
        acc = keep(acc + level[0])
    return acc


def fused(a_MxK: np.ndarray, b_KxN: np.ndarray) -> np.ndarray:
    def dot(a: np.ndarray, b: np.ndarray) -> float:
        acc = 0.0
        for x, y in zip(a.tolist(), b.tolist(), strict=True):
            acc = _libm.fmaf(x, y, acc)
        return acc

    return np.array([[dot(a, b) for b in b_KxN.T] for a in a_MxK], dtype=np.float32)


def scaled_operand(
    fmt: custom_fp.ScaledFormat, shape: tuple[int, int], axis: int, kind: str, g: torch.Generator
) -> Scaled:
    """Return an operand that rounding to nearest even can produce.

    If the codes are random, the first one of each block is the largest code of the format.
    """
    encoded = custom_fp.encode(operand(custom_fp.Format(8, 23), shape, "spread", g), fmt, axis=axis)
    if kind != "codes":
        spread = 2.0 ** torch.randint(-14, 4, shape, generator=g) if kind == "spread" else 1.0
        return Scaled.of(
            custom_fp.encode(torch.randn(shape, generator=g) * spread, fmt, axis=axis), fmt, axis
        )
    _, scales, *of_tensor = encoded
    codes = custom_fp.encode(operand(fmt.element, shape, kind, g), fmt.element)
    codes[(slice(None),) * axis + (slice(None, None, fmt.block),)] = custom_fp.encode(
        torch.tensor(fmt.element.max), fmt.element
    )
    first, last = (
        (1, 126) if fmt.scale.format.name != "e8m0" else (int(torch.randint(0, 100, (), generator=g)), 150)
    )
    scales = torch.randint(first, last + 1, scales.shape, generator=g).to(torch.uint8)
    scales.view(-1)[0] = last  # the tensor's largest
    return Scaled.of((codes, scales, *of_tensor), fmt, axis)


def model(a: np.ndarray, b: np.ndarray, how: custom_fp.Accumulator) -> np.ndarray:
    with np.errstate(all="ignore"):
        if how.flush:
            a, b = (
                np.where(np.abs(x) < 2.0**fmt.emin, np.float32(0), x)
                for x, fmt in zip((a, b), how.operands, strict=True)
            )
            return in_trees(a, b, how.block, flushed)
        if how.width is not None:
            return (joined if how.join else aligned)(a.astype(np.float64), b.astype(np.float64), how)
        return in_trees(a, b, how.block) if how.order == "pairwise" else fused(a, b)


def operand(fmt: custom_fp.Format, shape: tuple[int, int], kind: str, g: torch.Generator) -> torch.Tensor:
    """Return finite float32 values of a format."""
    if kind == "codes":
        x = custom_fp.decode(torch.randint(0, 1 << fmt.bits, shape, generator=g), fmt)
        return torch.where(x.isfinite(), x, 0.0)
    x = torch.randn(shape, generator=g)
    if kind == "spread":
        x = x * 2.0 ** torch.randint(-14, 4, shape, generator=g)
    return custom_fp.quantize(x, fmt, overflow="saturate")


def differences(name: str, cases: int, seed: int) -> tuple[int, int]:
    """Return the number of dot products that were compared, and the number of them that differ."""
    how = custom_fp.Accumulator.parse(name)
    formats = [custom_fp.parse(f) for f in OPERANDS.get(name) or how.operands]
    depth = how.chunk * 2 + how.block if how.chunk else 3 * how.block if how.width else 4 * how.block
    rows, done, wrong = 128, 0, 0
    g = torch.Generator().manual_seed(seed)
    while done < cases:
        for kind in ("codes", "spread", "normal"):
            shapes = (rows, depth), (depth, rows)
            if how.scales:
                a, b = (scaled_operand(fmt, shapes[i], 1 - i, kind, g) for i, fmt in enumerate(formats))
                got = custom_fp.matmul(a.values, b.values, accumulator=name)
                with np.errstate(all="ignore"):
                    want = torch.from_numpy(scaled(a, b, how))
            else:
                a, b = (operand(fmt, shape, kind, g) for fmt, shape in zip(formats, shapes, strict=True))
                got = custom_fp.matmul(a, b, accumulator=name)
                want = torch.from_numpy(model(a.numpy(), b.numpy(), how))
            same = got.view(torch.int32) == want.view(torch.int32)
            wrong += int((~(same | (got.isnan() & want.isnan()))).sum())
            done += rows * rows
    return done, wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(MACHINES), metavar="NAME")
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = 0
    for name in given.names:
        done, wrong = differences(name, given.cases, given.seed)
        found += wrong
        print(f"{name:24} {done:9,} dot products, {wrong} differ", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
