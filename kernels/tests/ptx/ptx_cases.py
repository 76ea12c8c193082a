"""Cases in which CUDA kernels must return the bits of the CPU kernels.

Every operator is called with hostile values, at aligned and unaligned addresses, and with grids that are
smaller and larger than requested. test_ptx.py runs a few cases of each kind, and scripts/checks/check_ptx.py
runs all of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import custom_fp
import torch
from custom_fp import cuda
from custom_fp.accumulators import cuda as dots_cuda
from custom_fp.accumulators import native as dots_native
from custom_fp.formats.scalar import Format
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.rounding import Rule
from custom_fp.scaled.cuda import backend
from ptx_device import Device
from torch import Tensor

SEED = 2**40 + 7
# Indices of the first element, which determine the random bits. Kernels for bytes need multiples of 4.
OFFSETS = [0, 100, 2**40 + 12, 2**40 + 13]
LENGTHS = [1, 3, 5, 511, 2047, 2048, 2049, 4099]
# One kernel of each of these kinds, in one rounding mode. test_cuda_source.py compiles kernels of all other kinds.
SOME_KERNELS = {
    *("quantize_nearest_even_f32", "quantize_nearest_even_f64", "pack_nearest_even"),
    *("accumulate_toward_zero", "accumulate_packed_toward_zero", "accumulate_bytes_toward_zero"),
    *("put_addresses", "matmul_plain"),
    *("scaled_tiles_stochastic", "scaled_runs_stochastic", "max_magnitude_f32", "hadamard", "fused_sum"),
    *("unpack", "scaled_decode"),
}
GRIDS = {"as asked": lambda x: x, "one block": lambda x: 1, "a block more": lambda x: x + 1}


@dataclass
class Compared:
    """The number of values that were compared for each operator, and the calls whose results differed."""

    device: Device
    dice: random.Random
    values: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def equal(self, what: str, on_gpu: Callable[[], object], got: Tensor, expected: Tensor) -> None:
        """Call `on_gpu`, which must overwrite all of `got`, and compare `got` with `expected`."""
        grid = self.dice.choice(list(GRIDS))
        self.device.grid = GRIDS[grid]
        with self.device.in_place():
            on_gpu()
        kind = what.split()[0]
        self.values[kind] = self.values.get(kind, 0) + got.numel()
        differ = (
            (got.view(torch.uint8) != expected.contiguous().view(torch.uint8)).sum() if got.numel() else 0
        )
        if differ:
            self.wrong.append(f"{what}, grid {grid}: {int(differ)} bytes differ of {got.nbytes}")

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32, aligned: bool = False) -> Tensor:
        """Return a tensor filled with bits that no kernel writes.

        Its address is a multiple of 64 bytes, or slightly larger unless `aligned` is True.
        """
        n, past = math.prod(shape), 0 if aligned else self.dice.choice([0, 0, 1, 2, 3])
        room = torch.empty(n + past + 64, dtype=dtype)
        start = -(room.data_ptr() // room.element_size()) % (64 // room.element_size()) + past
        flat = room[start : start + n]
        flat.view(torch.uint8).fill_(0x7B)
        return flat.view(shape)

    def data(self, *shape: int, kind: str = "any") -> Tensor:
        """Return bit patterns, Gaussian numbers of several scales and specials, or only Gaussian numbers."""
        n = math.prod(shape)
        g = torch.Generator().manual_seed(self.dice.randrange(2**31))
        x = torch.randn(n, generator=g)
        if kind == "any":
            x *= torch.tensor([1.0, 1e-3, 1e-6, 1e4, 1e-38])[torch.randint(5, (n,), generator=g)]
            patterns = torch.randint(-(2**31), 2**31, (n,), generator=g).to(torch.int32).view(torch.float32)
            x = torch.where(torch.rand(n, generator=g) < 0.5, patterns, x)
            specials = torch.tensor(
                [0.0, math.inf, math.nan, 2.0**-149, 2.0**-126, 3.4028234663852886e38, 1.5]
            )
            some = torch.randperm(n, generator=g)[:14]
            x[some] = torch.cat([specials, -specials])[: len(some)]
        out = self.empty(*shape)
        out.copy_(x.view(shape))
        return out


def rules(roundings: list[str], overflows: list[str]) -> list[dict[str, object]]:
    return [{"rounding": r, "overflow": o, "seed": SEED} for r in roundings for o in overflows]


def elements(to: Compared, fmt: Format | Tabulated, words: dict[str, object]) -> None:
    """Compare quantize, for float32 and for float64 values between those of float32, and pack."""
    n, words = to.dice.choice(LENGTHS), words | {"offset": to.dice.choice(OFFSETS)}
    rule, x, said = Rule(**words), to.data(n), f"{fmt} {words} {n}"
    double = to.empty(n, dtype=torch.float64)
    double.copy_(x.double() * (1 + 2.0**-30))
    for source in (x, double):
        out, expected = to.empty(n), custom_fp.quantize(source, fmt, **words)
        to.equal(f"quantize {said}", lambda s=source, o=out: cuda.quantize(s, fmt, rule, o), out, expected)
    for shift in (0, to.dice.choice([5, -140, 200])):
        expected = custom_fp.pack(x, fmt, shift=shift, **words)
        out = to.empty(len(expected), dtype=torch.uint8)
        to.equal(f"pack {said} {shift}", lambda s=shift, o=out: cuda.pack(x, fmt, s, rule, o), out, expected)


def sums(to: Compared, fmt: Format | Tabulated, words: dict[str, object]) -> None:
    """Compare accumulate and accumulate_packed, with plain and with Kahan summation."""
    n, terms = min(to.dice.choice(LENGTHS), 2049), to.dice.choice([1, 3, 9])
    if n <= 5 and terms == 9:
        terms = cuda.FEW + 3  # more than fit into the arguments of a kernel
    words = words | {"offset": to.dice.choice(OFFSETS)}
    rule = Rule(**words)
    for kind in ("any", "normal"):
        rows, aligned = [to.data(n, kind=kind) for _ in range(terms)], to.dice.random() < 0.5
        packed = [to.empty(custom_fp.packed_size(n, fmt), dtype=torch.uint8, aligned=aligned) for _ in rows]
        for row, payload in zip(rows, packed, strict=True):
            if kind == "normal":
                row *= min(fmt.max / 4 or 1, 2.0)
            payload.copy_(custom_fp.pack(row, fmt))
        for kahan in (False, True):
            said = f"{fmt} {words} {n} x {terms} {kind} kahan={kahan}"
            out, expected = to.empty(n), custom_fp.accumulate(rows, fmt, kahan=kahan, **words)
            to.equal(
                f"accumulate {said}",
                lambda k=kahan, o=out, r=rows: cuda.accumulate(r, fmt, k, rule, o),
                out,
                expected,
            )
            expected = custom_fp.accumulate_packed(packed, fmt, n, kahan=kahan, **words)
            out = to.empty(len(expected), dtype=torch.uint8, aligned=aligned)
            to.equal(
                f"accumulate_packed {said}",
                lambda k=kahan, o=out, p=packed: cuda.accumulate_packed(p, fmt, n, k, rule, o),
                out,
                expected,
            )


def codes(to: Compared, fmt: Format | Tabulated) -> None:
    """Compare encode, decode for every type of code, and unpack with shifts."""
    n = to.dice.choice(LENGTHS)
    x = to.data(n)
    expected = custom_fp.encode(x, fmt)
    out = to.empty(n, dtype=expected.dtype)
    to.equal(f"encode {fmt} {n}", lambda: cuda.encode(x, fmt, out), out, expected)
    g = torch.Generator().manual_seed(n)
    for dtype in [torch.uint8] * (fmt.bits <= 8) + [torch.int32, torch.int64]:
        found, decoded = to.empty(n, dtype=dtype), to.empty(n)
        found.copy_(torch.randint(2**fmt.bits, (n,), generator=g))
        to.equal(
            f"decode {fmt} {n} {dtype}",
            lambda f=found, o=decoded: cuda.decode(f, fmt, o),
            decoded,
            custom_fp.decode(found, fmt),
        )
    data = to.empty(custom_fp.packed_size(n, fmt), dtype=torch.uint8)
    data.copy_(custom_fp.pack(x, fmt))
    for shift in (0, 5, -140, 200):
        unpacked = to.empty(n)
        expected = custom_fp.unpack(data, fmt, (n,), shift=shift)
        to.equal(
            f"unpack {fmt} {n} {shift}",
            lambda s=shift, o=unpacked: cuda.unpack(data, fmt, s, o),
            unpacked,
            expected,
        )


def products(to: Compared, fmt: Format | Tabulated) -> None:
    kahans = (False,) if isinstance(fmt, Tabulated) else (False, True)
    for batch, rows, depth, columns in ((1, 70, 33, 65), (3, 5, 17, 9), (2, 4, 8, 130), (1, 1, 1, 1)):
        for kahan in kahans:
            a, b = to.data(batch, rows, depth, kind="normal"), to.data(1, depth, columns, kind="normal")
            if depth > 1:
                a.view(-1)[3], b.view(-1)[5], b.view(-1)[7] = math.inf, math.nan, 2.0**-140
            out, expected = (
                to.empty(batch, rows, columns),
                custom_fp.matmul(a, b, accumulator=fmt, kahan=kahan),
            )
            what = f"matmul {fmt} {batch}x{rows}x{depth}x{columns} kahan={kahan}"
            to.equal(what, lambda a=a, b=b, k=kahan, o=out: cuda.matmul(a, b, fmt, k, o), out, expected)


def dots(to: Compared, name: str) -> None:
    """Compare matrix products with an Accumulator."""
    how = custom_fp.Accumulator.parse(name)
    rule = replace(how.rule, seed=SEED)
    a, b = to.data(2, 7, 37, kind="normal"), to.data(1, 37, 9, kind="normal")
    a.view(-1)[3], b.view(-1)[5], b.view(-1)[7] = math.inf, math.nan, 2.0**-140
    if how.scales:
        a, b = (
            custom_fp.quantize(x, f, axis=i) for x, f, i in zip((a, b), how.operands, (2, 1), strict=True)
        )
    out, expected = to.empty(2, 7, 9), torch.empty(2, 7, 9)
    dots_native.matmul(a, b, how, rule, expected)
    to.equal(f"dot {name}", lambda: dots_cuda.matmul(a, b, how, rule, out), out, expected)


def fused_sum(to: Compared) -> None:
    """Compare sums that add all terms at once, exact and aligned."""
    for width, emin, count in ((None, -126, 5), (3, -6, 2), (23, -126, 9), (40, -14, 1)):
        n = to.dice.choice(LENGTHS)
        terms = [to.data(n, kind=to.dice.choice(["any", "normal"])) for _ in range(count)]
        out, expected = to.empty(n, dtype=torch.float64), torch.empty(n, dtype=torch.float64)
        dots_native.fused_sum(terms, width, emin, expected)
        to.equal(
            f"fused_sum width {width}",
            lambda x=terms, w=width, e=emin, o=out: dots_cuda.fused_sum(x, w, e, o),
            out,
            expected,
        )


def whole(to: Compared) -> None:
    """Compare the operators without a format: scale_pow2, max_exponent and the Hadamard transform."""
    for shift in (0, 3, -127, 200, 10**9):
        x = to.data(to.dice.choice(LENGTHS))
        out = to.empty(len(x))
        to.equal(
            f"scale {shift}",
            lambda x=x, s=shift, o=out: cuda.scale_pow2(x, s, o),
            out,
            custom_fp.scale_pow2(x, shift),
        )
    for x in (to.data(2049), to.data(5).double(), to.empty(700).zero_(), torch.tensor([2.0**-149])):
        found = torch.empty(1, dtype=torch.int64)
        number = custom_fp.max_exponent(x)
        to.equal(
            f"max_exponent {len(x)}",
            lambda x=x, f=found: f.fill_(-999 if (e := cuda.max_exponent(x)) is None else e),
            found,
            torch.tensor([-999 if number is None else number]),
        )
    for size, shape in (
        *((1, (2, 5, 3)), (2, (1, 600, 1)), (8, (2, 41, 1)), (16, (3, 64, 1)), (32, (1, 64, 130))),
        *((128, (2, 4096, 1)), (512, (1, 600, 3)), (4, (3, 130, 1)), (16, (2, 67, 9)), (64, (1, 300, 2))),
        (4096, (1, 8200, 1)),
    ):
        for seed, inverse in ((None, False), (SEED, True), (-5, False)):
            x, out = to.data(*shape), to.empty(*shape)
            expected = custom_fp.hadamard(x, size, seed=seed, inverse=inverse, axis=1)
            what = f"hadamard {size} {shape} {seed} {inverse}"
            to.equal(what, lambda a=(x, size, seed, inverse, out): cuda.hadamard(*a), out, expected)


def scaled(to: Compared, name: str, words: dict[str, object], shape: tuple[int, ...] = (3, 41, 150)) -> None:
    """Compare quantize, encode and decode for a format with scales, along every axis."""
    fmt, rule = custom_fp.parse(name), Rule(**words)
    x = to.data(*shape, kind="normal")
    x *= torch.logspace(-20, 8, shape[-1])
    x.view(-1)[[3, -9]] = torch.tensor([math.nan, -math.inf])
    x.view(-1)[40:80] = 0.0
    for axis in (None, *range(len(shape))):
        what = f"{name} {words} axis={axis}"
        out, expected = to.empty(*shape), custom_fp.quantize(x, fmt, axis=axis, **words)
        to.equal(
            f"quantize_scaled {what}",
            lambda a=axis, o=out: backend.quantize(x, fmt, rule, o, a),
            out,
            expected,
        )
        if words["rounding"] != "nearest_even":
            continue
        parts = custom_fp.encode(x, fmt, axis=axis)
        found = [to.empty(*part.shape, dtype=part.dtype) for part in parts]
        with to.device.in_place():
            backend.encode(x, fmt, *found, axis=axis)
        for part, got in zip(parts, found, strict=True):
            to.equal(f"encode_scaled {what}", lambda: None, got.view(-1), part.reshape(-1))
        back, expected = to.empty(*shape), custom_fp.decode(parts, fmt, axis=axis)
        call = partial(backend.decode, *parts, fmt, back, axis=axis)
        to.equal(f"decode_scaled {what}", call, back, expected)
