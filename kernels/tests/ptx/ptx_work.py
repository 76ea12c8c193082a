"""What each CUDA kernel does for an element: the instructions that its PTX executes on normal numbers, and the bytes of
the tensors that it reads and writes. The threads of a launch get as many elements as they would of 2^26, so that what
one works out first weighs what it does there; of products, the sums of 64^3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import custom_fp
import torch
from custom_fp import cuda
from custom_fp.accumulators import cuda as dots
from custom_fp.nvrtc import MODES
from custom_fp.rounding import Rule
from custom_fp.scaled.cuda import backend
from ptx_device import Device
from torch import Tensor

N, SIDE, BLOCKS = 1 << 16, 64, 4  # blocks of a launch: as 2^12 for 2^26 elements
OTHER = {**{mode: mode for mode in MODES}, "otherwise": "nearest_away"}


@dataclass(frozen=True)
class Case:
    what: str  # as the user asks for it
    call: Callable[[], object]
    bytes: int  # of the tensors
    elements: int


@dataclass(frozen=True)
class Work:
    """Of an element."""

    what: str
    instructions: float  # of PTX
    doubles: float  # of these, in float64
    shared: float  # accesses to shared memory
    bytes: float


def work_of(device: Device) -> dict[str, Work]:
    """Of each kernel that a case launches; the first case counts."""
    found: dict[str, Work] = {}
    device.grid = lambda blocks: min(blocks, BLOCKS)
    for case in cases():
        before = dict(device.launches)
        with device.in_place():
            case.call()
        for name in device.launches:
            if device.launches[name] == before.get(name, 0) or name in found:
                continue
            counts = device.counts[name]
            done = (counts.instructions, counts.doubles, counts.shared, case.bytes)
            found[name] = Work(case.what, *(one / case.elements for one in done))
    return found


def cases() -> Iterator[Case]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, generator=g) * 1e-3
    wide, out = x.double(), torch.empty(N)
    terms = [x.roll(i) for i in range(8)]

    def case(what: str, call: Callable[..., object], *args: object) -> Case:
        used = [a for one in args for a in (one if isinstance(one, list) else [one]) if isinstance(a, Tensor)]
        return Case(what, lambda: call(*args), sum(tensor.nbytes for tensor in used), N)

    for name in ("e4m3", "takum8"):
        fmt = custom_fp.parse(name)
        data = custom_fp.pack(x, fmt)
        packed = [custom_fp.pack(term, fmt) for term in terms]
        for mode in MODES:
            rule = Rule(rounding=OTHER[mode], seed=1)
            said = f"{name}, {rule.rounding}"
            yield case(said, cuda.quantize, x, fmt, rule, out)
            yield case(f"{said}, of float64", cuda.quantize, wide, fmt, rule, out)
            yield case(said, cuda.pack, x, fmt, 0, rule, data)
            yield case(f"8 of {said}", cuda.accumulate, terms, fmt, False, rule, out)
            yield case(f"8 of {said}", cuda.accumulate_packed, packed, fmt, N, False, rule, data)
        yield case(name, cuda.unpack, data, fmt, 0, out)
        for dtype in (torch.uint8, torch.int32, torch.int64):
            codes = custom_fp.encode(x, fmt).to(dtype)
            if name != "takum8" or dtype is not torch.int64:
                yield case(name, cuda.encode, x, fmt, codes)
            yield case(name, cuda.decode, codes, fmt, out)
    fmt = custom_fp.parse("e3m2")  # has 6-bit codes, which the kernels for bytes cannot add
    packed, data = [custom_fp.pack(term, fmt) for term in terms], custom_fp.pack(x, fmt)
    for mode in MODES:
        rule = Rule(rounding=OTHER[mode], seed=1)
        yield case(f"8 of e3m2, {rule.rounding}", cuda.accumulate_packed, packed, fmt, N, False, rule, data)
    yield case("", cuda.scale_pow2, x, 3, out)
    yield case("", cuda.max_exponent, x)
    yield case("of float64", cuda.max_exponent, wide)
    yield case("blocks of 16", cuda.hadamard, x.view(1, N, 1), 16, 1, False, out.view(1, N, 1))
    yield from scaled(x, out, case)
    yield from products()


def scaled(x: Tensor, out: Tensor, case: Callable[..., Case]) -> Iterator[Case]:
    for name, mode in product(("nvfp4", "fp8_tensor"), MODES):
        rule = Rule(rounding=OTHER[mode], seed=1)
        yield case(f"{name}, {rule.rounding}", backend.quantize, x, custom_fp.parse(name), rule, out)
    nvfp4, rows, across = custom_fp.parse("nvfp4"), x.view(-1, 1 << 8), out.view(-1, 1 << 8)
    for mode in MODES:
        rule = Rule(rounding=OTHER[mode], seed=1)
        said = f"nvfp4, {rule.rounding}, along the first axis"
        yield case(said, backend.quantize, rows, nvfp4, rule, across, 0)
    for axis, said in ((None, "nvfp4"), (0, "nvfp4, along the first axis")):
        decode = partial(backend.decode, axis=axis)
        yield case(said, decode, *custom_fp.encode(rows, nvfp4, axis=axis), nvfp4, across)
    for names in (("nf4_b64", "dynamic_tree"), ("int4_affine_b32", "int8_affine")):
        for name in names:
            yield case(name, backend.quantize, x, custom_fp.parse(name), Rule(), out)
        fmt = custom_fp.parse(names[0])
        yield case(f"{fmt}, along the first axis", backend.quantize, rows, fmt, Rule(), across, 0)


def products() -> Iterator[Case]:
    """An element: a term of a sum."""
    a, b = (torch.randn(1, SIDE, SIDE, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    out, terms = torch.empty(1, SIDE, SIDE), SIDE**3

    def case(what: str, call: Callable[[], object]) -> Case:
        return Case(what, call, 3 * out.nbytes, terms)

    for fmt, kahan in ((custom_fp.parse("fp16"), False), (custom_fp.parse("fp16"), True)):
        said = f"fp16{', Kahan' if kahan else ''}"
        yield case(said, lambda f=fmt, k=kahan: cuda.matmul(a, b, f, k, out))
    yield case("takum8", lambda: cuda.matmul(a, b, custom_fp.parse("takum8"), False, out))
    for name in ("fp32-fused", "h100_fp16", "fp16-stochastic", "fp16-nearest_away"):
        how = custom_fp.Accumulator.parse(name)
        rule = replace(how.rule, seed=1)
        yield case(name, lambda h=how, r=rule: dots.matmul(a, b, h, r, out))
