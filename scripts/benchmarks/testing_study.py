"""Measure how many legal results custom_fp.testing rejects, and how many planted bugs it finds.

    python scripts/benchmarks/testing_study.py [--elements 1000000] [--only legal|bugs|time] [--output FILE]

The script takes about ten minutes. The result is results/reference/numerics/testing.md.

Legal results are computed by a model of a kernel that shares no code with custom_fp's error bound. The blocks of the
dimension K are shuffled and divided at random into partial sums. Each partial sum is computed as a chain on the named
machine. The partial sums are added in float32 in a random tree, multiplied by scales and rounded once. The planted bugs
are 30 mistakes that occur in real kernels. All results are also checked with the tolerances of the tests of public
kernels, against a float32 product of torch that is rounded to the output's dtype:

  Triton     torch.allclose(atol=1e-2, rtol=0): python/tutorials/03-matrix-multiplication.py
  torchao    torch.testing.assert_close(atol=rtol=7e-2, for float32 2e-3): test/float8/test_base.py
  DeepGEMM   1 - 2 <x, y> / (<x, x> + <y, y>) < 1e-3, for bf16 operands 1e-5: tests/test_fp8.py, tests/test_bf16.py
  CUTLASS    |x - y| < 0.1 (|x| + |y|): test/unit/gemm/device/gemm_testbed_3x.hpp, CheckEquality::RELATIVE
  torch      torch.testing.assert_close with its defaults: rtol 1.6e-2 (bf16), 1e-3 (fp16), 1.3e-6 (fp32), atol 1e-5
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import custom_fp
import torch
from custom_fp.accumulators.machines import MACHINES
from custom_fp.testing import assert_matmul
from custom_fp.testing.bounds import bounds
from custom_fp.testing.problem import read_problem
from torch import Tensor

# ---- legal results


def operand_formats(machine: str) -> tuple[str, str]:
    how = custom_fp.Accumulator.parse(machine)
    if how.operands:
        return how.operands[0].name, how.operands[1].name
    return ("bf16", "bf16") if "bf16" in machine else ("fp16", "fp16")


def draw(kind: str, rows: int, depth: int, columns: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw operands that are not yet rounded to the machine's formats."""
    a, b = torch.randn(rows, depth, generator=g), torch.randn(depth, columns, generator=g)

    def spread(x: Tensor, low: int, high: int) -> Tensor:
        return x * 2.0 ** torch.randint(low, high, x.shape, generator=g)

    if kind == "positive":
        return a.abs(), b.abs()
    if kind == "wide":
        return spread(a, -12, 8), spread(b, -12, 8)
    if kind == "subnormal":
        return spread(a, -30, -8), spread(b, -30, -4)
    if kind == "tiny":
        return spread(a, -80, -60), spread(b, -80, -60)
    if kind == "large":
        return spread(a, 4, 15), spread(b, 4, 15)
    if kind == "cancel":
        half = depth // 2
        a[:, half : 2 * half], b[half : 2 * half] = -a[:, :half], b[:half] * (1 + 2.0**-7)
        return a, b
    if kind == "integers":
        return a.mul(3).round(), b.mul(3).round()
    if kind == "one large":
        a[:, depth // 3] *= 2.0**12
        return a * (torch.rand(a.shape, generator=g) < 0.5), b
    return a, b


KINDS = ("normal", "positive", "wide", "subnormal", "tiny", "large", "cancel", "integers", "one large")


def shuffled(x: Tensor, order: Tensor, unit: int, axis: int) -> Tensor:
    """Return the units of an axis in another order. If the last unit is shorter, it remains the last."""
    whole = len(order) * unit
    head, tail = x.narrow(axis, 0, whole), x.narrow(axis, whole, x.shape[axis] - whole)
    head = head.unflatten(axis, (len(order), unit)).index_select(axis, order).flatten(axis, axis + 1)
    return torch.cat([head, tail], axis)


def legal_result(
    a: Tensor, b: Tensor, machine: str, dtype: torch.dtype, scales: tuple, g: torch.Generator
) -> Tensor:
    """Return a product whose order of summation is random and legal."""
    how = custom_fp.Accumulator.parse(machine)
    unit = how.chunk or how.block
    depth = a.shape[1]
    order = torch.randperm(depth // unit, generator=g)
    a, b = shuffled(a, order, unit, 1), shuffled(b, order, unit, 0)
    problem = read_problem(torch.zeros(a.shape[0], b.shape[1]), a, b, machine, "any", *scales)
    starts = range(unit, depth, unit)
    share = (
        torch.rand(1, generator=g).item() ** 3
    )  # The result is often few parts, and sometimes one per block.
    cuts = [0, *(s for s in starts if torch.rand(1, generator=g) < share), depth]
    sums = [problem.chain(first, last)[0] for first, last in itertools.pairwise(cuts)]
    while len(sums) > 1:
        i, j = torch.randperm(len(sums), generator=g)[:2].tolist()
        total = sums[i] + sums[j]
        sums = [s for k, s in enumerate(sums) if k not in (i, j)] + [total]
    total = sums[0]
    factors = list(problem.factors)
    for i in torch.randperm(len(factors), generator=g).tolist():
        total = total * factors[i][0]
    return total.to(dtype)


def check_legal(elements: int, seed: int = 0) -> list[str]:
    names = [m for i, m in enumerate(MACHINES) if custom_fp.Accumulator.parse(m).name == m] + [
        "fp16", "bf16-fused", "fp32-block_4", "fp16-pairwise", "e4m3fn-saturate", "fp32-stochastic", "fp16-kahan",
    ]  # fmt: skip
    g = torch.Generator().manual_seed(seed)
    done = failed = failed_bound = unchecked = round_ = 0
    used: list[float] = []
    started = time.perf_counter()
    while done < elements:
        for machine in names:
            kind = KINDS[torch.randint(len(KINDS), (1,), generator=g).item()]
            rows, columns = (int(x) for x in torch.randint(8, 49, (2,), generator=g))
            depth = int(torch.tensor([32, 100, 160, 256, 512, 777])[torch.randint(6, (1,), generator=g)])
            dtype = (torch.float32, torch.bfloat16, torch.float16)[(round_ + len(machine)) % 3]
            fa, fb = operand_formats(machine)
            a, b = draw(kind, rows, depth, columns, g)
            a, b = custom_fp.quantize(a, fa, axis=-1), custom_fp.quantize(b, fb, axis=-2)
            if custom_fp.Accumulator.parse(machine).operands is not None:
                a, b = (x.nan_to_num(0, 0, 0) for x in (a, b))
            scales: tuple = (None, None)
            if torch.rand(1, generator=g) < 0.3:
                scales = torch.rand(rows, 1, generator=g) + 0.5, torch.rand(1, columns, generator=g) - 0.5
            got = legal_result(a, b, machine, dtype, scales, g)
            problem = read_problem(got, a, b, machine, "any", *scales)
            every = tuple(torch.ones(problem.got.shape).nonzero().unbind(-1))
            found = bounds(problem, *every)
            inside = found.contains(problem.got[every], problem)
            unchecked += int(found.free.sum())
            failed_bound += int((~inside).sum())
            if not inside.all():
                print("outside of its bound:", machine, kind, tuple(a.shape), dtype, int((~inside).sum()))
            if dtype == torch.float32 and "stochastic" not in machine:
                units = (found.high - found.low) / found.high.abs().clamp(min=1e-30) * 2**23
                ok = ~found.free & ~found.special & (units > 32)
                middle, half = (found.low + found.high) / 2, (found.high - found.low) / 2
                share = ((problem.got[every].double() - middle).abs() / half)[ok]
                used += [share.max().item()] if len(share) else []
            try:
                assert_matmul(got, a, b, machine, scale_a=scales[0], scale_b=scales[1])
            except AssertionError as error:
                failed += 1
                print(machine, kind, error)
            done += got.numel() - int(found.free.sum())
        round_ += 1
    seconds = time.perf_counter() - started
    return [
        f"{done:,} elements of legal results of {len(names)} machines and accumulators, with {len(KINDS)} kinds",
        f"of operands: {failed} checks failed, {failed_bound} elements outside of their bound. {unchecked:,} more",
        "elements can overflow and have no bound.",
        f"Of float32 results, the largest error took {max(used):.2f} of the bound; the median over products of their",
        f"largest error is {sorted(used)[len(used) // 2]:.2f} of it. {seconds:.0f} s.",
    ]


# ---- planted bugs


@dataclass
class Kernel:
    """A kernel with a deliberate bug: its result (`got`) and the correct result."""

    name: str
    got: Tensor
    right: Tensor
    a: Tensor
    b: Tensor
    machine: str = "h100_bf16"
    known: dict[str, Any] = field(default_factory=dict)
    words: str = ""
    """The text that the explanation must contain."""

    def reference(self) -> Tensor:
        """Return the float32 product that tests of public kernels compare with."""
        a, b = self.a.float(), self.b.float()
        s_a, s_b = self.known.get("scale_a"), self.known.get("scale_b")
        if isinstance(s_a, Tensor) and s_a.shape[-1] > 1:
            size = a.shape[1] // s_a.shape[-1]
            a, b = a * s_a.repeat_interleave(size, 1), b * s_b.repeat_interleave(size, 0)
            s_a = s_b = None
        total = a @ b
        total = total if s_a is None else total * s_a
        total = total if s_b is None else total * s_b
        return total.to(self.got.dtype)


def _mm(a: Tensor, b: Tensor, machine: str = "h100_bf16") -> Tensor:
    return custom_fp.matmul(a, b, accumulator=machine)


def planted() -> list[Kernel]:
    g = torch.Generator().manual_seed(1)
    bf16, fp16 = torch.bfloat16, torch.float16
    M, N, K = 128, 128, 512

    def normal(*shape: int, dtype: torch.dtype = bf16) -> Tensor:
        return torch.randn(shape, generator=g).to(dtype)

    a, b = normal(M, K), normal(K, N)
    full = _mm(a, b)
    right = full.to(bf16)
    found: list[Kernel] = []

    def add(name: str, got: Tensor, words: str, right: Tensor = right, **other: Any) -> None:
        operands = {"a": a, "b": b, **other}
        found.append(Kernel(name, got, right, words=words, **operands))

    # K
    add("the last block of K is dropped", _mm(a[:, :-16], b[:-16]).to(bf16), "496 of 512")
    add("mask at the edge of K is off by one", _mm(a[:, :-1], b[:-1]).to(bf16), "511 of 512")
    kept = torch.cat([torch.arange(128), torch.arange(192, K)])
    add("one K tile of 64 is skipped", _mm(a[:, kept], b[kept]).to(bf16), "128 to 191 is missing")
    twice = torch.cat([torch.arange(K), torch.arange(32)])
    add(
        "the first K tile of 32 is added twice",
        _mm(a[:, twice], b[twice]).to(bf16),
        "0 to 31 was added twice",
    )
    a500, b500 = a[:, :500], b[:500]
    beyond = torch.cat([b500, b500[-12:]])
    add(
        "no mask at the edge of K: 12 terms of stale memory", _mm(torch.cat([a500, a[:, 500:]], 1), beyond).to(bf16),
        "", right=_mm(a500, b500).to(bf16), a=a500, b=b500,
    )  # fmt: skip
    # layout
    tile = right.clone()
    tile[32:64, 64:96] = right[32:64, 64:96].T
    add("a tile of the result is transposed", tile, "transposed")
    at = a.clone()
    for k in range(0, K, 16):
        for m in range(0, M, 16):
            at[m : m + 16, k : k + 16] = a[m : m + 16, k : k + 16].T
    add(
        "fragments of a are loaded transposed",
        _mm(at, b).to(bf16),
        "tile of 16 x 16 elements of a is transposed",
    )
    bt = b.clone()
    bt[64:96, 32:64] = b[64:96, 32:64].T
    add(
        "one shared-memory tile of b is transposed",
        _mm(a, bt).to(bf16),
        "tile of 32 x 32 elements of b is transposed",
    )
    shifted = right.clone()
    shifted[:, 64:80] = right[:, 80:96]
    add("a column tile is written from its neighbor", shifted, "16 columns to the right")
    wrong_row = right.clone()
    wrong_row[127] = 0
    add("the last row is not written", wrong_row, "the result is 0")
    add("rows are off by one", right.roll(-1, 0), "row i +1")
    stale = full.clone()
    stale[:, 64:128] += full[:, 0:64]
    add("the accumulator is not cleared between tiles", stale.to(bf16), "stale accumulator")
    # rounding of the result
    add(
        "the result is truncated",
        custom_fp.quantize(full, "bf16", rounding="toward_zero").to(bf16),
        "toward zero",
    )
    add("double rounding through fp16", full.half().to(bf16), "double rounding")
    ints_a, ints_b = normal(M, 64).mul(8).round(), normal(64, N).mul(8).round()
    ints = _mm(ints_a, ints_b).double() * 2
    away = custom_fp.quantize(ints, "bf16", rounding="nearest_away").to(bf16)
    add(
        "ties are rounded away from zero", away, "away from zero",
        right=ints.to(bf16), a=ints_a, b=ints_b, known={"scale_a": 2.0},
    )  # fmt: skip
    add("a float32 result is rounded to bf16", full.to(bf16).float(), "rounded to bf16", right=full)
    small_a, small_b = normal(M, 64, dtype=fp16) * 2.0**-9, normal(64, N, dtype=fp16) * 2.0**-8
    small = _mm(small_a, small_b, "h100_fp16")
    flushed = torch.where(small.half().abs() < 2.0**-14, 0, small.half())
    add(
        "subnormal results are flushed", flushed, "subnormal results",
        right=small.half(), a=small_a, b=small_b, machine="h100_fp16",
    )  # fmt: skip
    sub_a = (torch.randn(M, K, generator=g) * 2.0 ** torch.randint(-18, -10, (M, K), generator=g)).to(fp16)
    sub_b = normal(K, N, dtype=fp16)
    no_sub = torch.where(sub_a.abs() < 2.0**-14, 0, sub_a)
    add(
        "subnormal operands are flushed", _mm(no_sub, sub_b, "h100_fp16"), "subnormal operands",
        right=_mm(sub_a, sub_b, "h100_fp16"), a=sub_a, b=sub_b, machine="h100_fp16",
    )  # fmt: skip
    big_a, big_b = normal(M, K, dtype=fp16) * 60, normal(K, N, dtype=fp16) * 30
    big = _mm(big_a, big_b, "h100_fp16")
    add(
        "65504 instead of infinity", big.clamp(-65504, 65504).half(), "largest finite value",
        right=big.half(), a=big_a, b=big_b, machine="h100_fp16",
    )  # fmt: skip
    nan_a = a.clone()
    nan_a[5, 7], nan_a[70, 300] = float("nan"), float("inf")
    swallowed = _mm(nan_a.nan_to_num(0, 0, 0), b).to(bf16)
    add("NaN is replaced by 0", swallowed, "NaN", right=_mm(nan_a, b).to(bf16), a=nan_a)
    # sums
    add("sums are kept in bf16", _mm(a, b, "bf16-fused").to(bf16), "partial sums were rounded to bf16")
    f16a, f16b = normal(M, K, dtype=fp16), normal(K, N, dtype=fp16)
    f16 = _mm(f16a, f16b, "h100_fp16")
    add(
        "sums are kept in fp16", _mm(f16a, f16b, "fp16-fused"), "partial sums were rounded to fp16",
        right=f16, a=f16a, b=f16b, machine="h100_fp16",
    )  # fmt: skip
    parts = sum(_mm(a[:, k : k + 128], b[k : k + 128]).to(bf16) for k in range(0, K, 128))
    add("split-K adds its parts in bf16", parts, "were rounded to bf16 before they were added")
    a32, b32 = normal(M, K, dtype=torch.float32), normal(K, N, dtype=torch.float32)
    tf_a, tf_b = custom_fp.quantize(a32, "tf32"), custom_fp.quantize(b32, "tf32")
    add(
        "tf32 operands are rounded to bf16", _mm(tf_a.to(bf16), tf_b.to(bf16)), "operands were rounded to bf16",
        right=_mm(tf_a, tf_b, "h100_tf32"), a=tf_a, b=tf_b, machine="h100_tf32",
    )  # fmt: skip
    # scales
    add(
        "alpha is missing",
        full.to(bf16),
        "not applied",
        right=(full * 0.125).to(bf16),
        known={"scale_a": 0.125},
    )
    q_a, q_b = (custom_fp.quantize(x.float(), "e4m3fn") for x in (a, b))
    f8 = _mm(q_a, q_b, "h100_fp8")
    row, column = torch.rand(M, 1, generator=g) + 0.5, torch.rand(1, N, generator=g) + 0.5
    fp8 = {"a": q_a, "b": q_b, "machine": "h100_fp8", "right": (f8 * row * column).to(bf16)}
    fp8["known"] = {"scale_a": row, "scale_b": column}
    add("scales of rows and columns are exchanged", (f8 * row.T * column.T).to(bf16), "exchanged", **fp8)
    add("the scale of a row divides", (f8 / row * column).to(bf16), "divided by scale_a", **fp8)
    groups_a, groups_b = (
        torch.rand(M, K // 128, generator=g) + 0.5,
        torch.rand(K // 128, N, generator=g) + 0.5,
    )

    def by_groups(s_a: Tensor, s_b: Tensor) -> Tensor:
        total = torch.zeros(M, N)
        for i in range(K // 128):
            part = _mm(q_a[:, 128 * i : 128 * i + 128], q_b[128 * i : 128 * i + 128], "h100_fp8")
            total = total + part * (s_a[:, i : i + 1] * s_b[i : i + 1])
        return total.to(bf16)

    grouped = {"a": q_a, "b": q_b, "machine": "h100_fp8", "right": by_groups(groups_a, groups_b)}
    grouped["known"] = {"scale_a": groups_a, "scale_b": groups_b}
    add(
        "scales of 1 x 128 groups are one group late",
        by_groups(groups_a.roll(1, 1), groups_b),
        "previous block",
        **grouped,
    )
    m_a, m_b = (
        custom_fp.quantize(a.float(), "mxfp8_e4m3", axis=-1),
        custom_fp.quantize(b.float(), "mxfp8_e4m3", axis=-2),
    )
    wrong_scale = m_a.clone()
    wrong_scale[:, 96:128] *= 2
    mx = {"a": m_a, "b": m_b, "machine": "b200_mxfp8", "right": _mm(m_a, m_b, "b200_mxfp8").to(bf16)}
    add(
        "the scale of one MX block is wrong by 2",
        _mm(wrong_scale, m_b, "b200_mxfp8").to(bf16),
        "96 to 127 has a scale",
        **mx,
    )
    swizzled = m_a.clone()
    exponents = read_problem(torch.zeros(M, N), m_a, m_b, "b200_mxfp8", "any", None, None).a_exponents[0]
    other = exponents.roll(-1, 0)
    other[-1] = exponents[-1]
    swizzled *= torch.exp2((other - exponents).double()).float().repeat_interleave(32, 1)
    add(
        "MX scales are those of the next row", _mm(swizzled, m_b, "b200_mxfp8").to(bf16), "row after it", **mx
    )
    return found


def close_enough(kernel: Kernel, got: Tensor) -> dict[str, bool]:
    """Return whether each check of public kernels passes."""
    want, dtype = kernel.reference(), got.dtype
    x, y = got.double(), want.double()
    ao = 2e-3 if dtype == torch.float32 else 7e-2
    same = (x == y) | ((x - y).abs() < 0.1 * (x.abs() + y.abs()))
    cosine = 1 - 2 * (x * y).sum() / (x * x + y * y).sum()
    limit = 1e-5 if kernel.a.dtype in (torch.bfloat16, torch.float16) else 1e-3

    def asserted(**tolerances: float) -> bool:
        try:
            torch.testing.assert_close(got, want, **tolerances)
        except AssertionError:
            return False
        return True

    return {
        "Triton": torch.allclose(got, want, atol=1e-2, rtol=0),
        "torchao": asserted(atol=ao, rtol=ao),
        "DeepGEMM": bool(cosine < limit),
        "CUTLASS": bool(same.all()),
        "torch": asserted(),
    }


def ours(kernel: Kernel, got: Tensor) -> str | None:
    try:
        assert_matmul(got, kernel.a, kernel.b, kernel.machine, **kernel.known)
    except AssertionError as error:
        return str(error)
    return None


def check_bugs() -> list[str]:
    lines = ["| planted bug | assert_matmul | cause named | Triton | torchao | DeepGEMM | CUTLASS | torch |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    kernels = planted()
    caught = dict.fromkeys(["ours", "named", "Triton", "torchao", "DeepGEMM", "CUTLASS", "torch"], 0)
    false, apart = dict.fromkeys(caught, 0), dict.fromkeys(caught, 0)
    for kernel in kernels:
        message = ours(kernel, kernel.got)
        named = (
            message is not None and kernel.words != "" and kernel.words in message.split("Likely cause: ")[1]
        )
        others = close_enough(kernel, kernel.got)
        seen = {"ours": message is not None, "named": named, **{k: not v for k, v in others.items()}}
        for name, is_seen in seen.items():
            caught[name] += is_seen
        accepts = {"ours": ours(kernel, kernel.right) is None, **close_enough(kernel, kernel.right)}
        for name, passes in accepts.items():
            false[name] += not passes
            apart[name] += passes and seen[name]
        marks = ["yes" if seen[name] else "" for name in caught]
        lines.append(f"| {kernel.name} | {' | '.join(marks)} |")
    lines.append(f"| **found, of {len(kernels)}** | {' | '.join(f'**{n}**' for n in caught.values())} |")
    false["named"] = apart["named"] = ""  # type: ignore[assignment]
    lines.append(
        f"| correct results refused, of {len(kernels)} | {' | '.join(str(n) for n in false.values())} |"
    )
    lines.append(f"| bug found, correct result accepted | {' | '.join(str(n) for n in apart.values())} |")
    return lines


# ---- time


def measure_time() -> list[str]:
    g = torch.Generator().manual_seed(3)
    a, b = torch.randn(256, 1024, generator=g).bfloat16(), torch.randn(1024, 256, generator=g).bfloat16()
    a32, b32 = a.float(), b.float()
    chain = _mm(a, b)
    thirds = _mm(a[:, :352], b[:352]) + _mm(a[:, 352:704], b[352:704]) + _mm(a[:, 704:], b[704:])
    bug = _mm(a[:, :-16], b[:-16]).bfloat16()

    def failing() -> None:
        try:
            assert_matmul(bug, a, b)
        except AssertionError:
            return

    cases: list[tuple[str, Callable[[], Any], int]] = [
        ("torch.mm in float32", lambda: a32 @ b32, 20),
        ("a chain", lambda: assert_matmul(chain.bfloat16(), a, b), 5),
        ("three unequal parts of K, to bf16", lambda: assert_matmul(thirds.bfloat16(), a, b), 3),
        ("three unequal parts of K, to float32", lambda: assert_matmul(thirds, a, b), 3),
        ("the same, elements=4096", lambda: assert_matmul(thirds, a, b, elements=4096), 3),
        ("a failure, with its explanation", failing, 2),
    ]
    lines = [
        "| check of 256 x 256 x 1024, one thread | CPU ms | times torch.mm |",
        "| --- | ---: | ---: |",
    ]
    first = 0.0
    for name, run, times in cases:
        run()
        seconds = []
        for _ in range(times):
            start = time.process_time()
            run()
            seconds.append(time.process_time() - start)
        first = first or min(seconds)
        lines.append(f"| {name} | {1000 * min(seconds):.1f} | {min(seconds) / first:.0f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["legal", "bugs", "time"])
    parser.add_argument("--output", type=Path, help="write the tables to this file as well")
    options = parser.parse_args()
    parts = {
        "legal": lambda: check_legal(options.elements),
        "bugs": check_bugs,
        "time": measure_time,
    }
    lines = [
        "# Checks of kernels",
        "",
        f"    python scripts/benchmarks/testing_study.py --elements {options.elements} --output {options.output}",
        "",
        "The tolerances are those of public tests, cited in the script.",
        "",
    ]
    for name, part in parts.items():
        if options.only in (None, name):
            found = [*part(), ""]
            print("\n".join(found))
            lines += found
    if options.output:
        options.output.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
