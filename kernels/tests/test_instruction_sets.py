"""The CPU kernels return equal bits with every instruction set that they are compiled for. Each instruction set is
tested in a process of its own, which the environment variable CUSTOM_FP_ISA restricts to it."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import custom_fp
import pytest
import torch
from custom_fp import _native, backends
from custom_fp.rounding import Overflow, Rounding
from torch import Tensor

NEEDS = {  # as Linux names the features
    "baseline": set(),
    "avx2": {"avx2", "fma"},
    "avx512": {"avx512f", "avx512bw", "avx512vl"},
}
NO_KERNELS = {  # functions of the module that have one implementation for all instruction sets
    *("isas", "isa", "use_isa", "use_paths", "count_binades", "join_halves", "split_halves"),
    "count_disorder",  # a measurement of quantize
}

FLOATS = ["e4m3", "e5m2", "fp16", "bf16", "e4m3fn", "e4m3fnuz", "e3m0", "e8m22", "ue5m3", "e2m1fn"]
TABULATED = ["posit8", "posit16", "takum8", "lns4_3", "hif8", "p3109_k8p4uf"]
SCALED = [
    *("mxfp8_e5m2", "mxfp6_e2m3", "mxfp4", "mxint8", "mxfp4_rceil", "mxfp4_b7", "nvfp4", "fp8_block128"),
    *("dynamic_tree", "nf4_b64", "dynamic_map", "int8_affine", "int4_affine_b32", "int2_affine_8x16"),
]
ROUNDINGS = [*Rounding, "stochastic_8", "stochastic_fast_4", "stochastic_even_6", "stochastic_odd_3"]
ACCUMULATORS = [
    *("e4m3fn-width_6-saturate-toward_zero", "e5m7-of_fp16-block_16-width_12", "e5m3-of_e4m3-flush"),
    *("fp32-product_e4m3fnuz-chunk_5_e5m2fnuz", "e4m3fnuz-fused-toward_zero", "posit8-product_posit16"),
    *("fp16-pairwise", "bf16-chunk_4", "e8m13-fused", "fp32-kahan", "fp16-stochastic_8", "e4m3-stochastic"),
    *("h100_fp8", "deepseek_v3", "a100_fp16", "b200_fp8", "v100_fp16_to_fp16"),
]


def every_upper_half() -> Tensor:
    """Return a float32 for each pattern of the upper 16 bits and several of the lower 16: every bfloat16 value, every
    midpoint of two, the neighbors of both, and values between them."""
    upper = torch.arange(-(2**15), 2**15, dtype=torch.int32)[:, None] << 16
    between = torch.randint(0, 2**16, (2**16, 2), generator=torch.Generator().manual_seed(1))
    edges = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32).expand(2**16, 6)
    return (upper | torch.cat([edges, between.int()], dim=1)).flatten().view(torch.float32)


def spread(*shape: int, binades: float = 6.0, seed: int = 0) -> Tensor:
    """Return normal values that are multiplied by powers of two."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g) * torch.exp2(binades * torch.randn(shape, generator=g).round())


def rounded_one_by_one() -> Iterator[tuple[str, Tensor]]:
    """Yield the result of each operator on single values, on the whole range of float32 and on float64."""
    x = every_upper_half()
    wide = x.double() * (1 + 2.0**-40)
    for name in [*FLOATS, *TABULATED]:
        fmt, sources = custom_fp.parse(name), (x.abs(), wide.abs())
        if fmt.is_signed:
            sources = x, wide
        for source in sources:
            case = f"{name} {source.dtype}"
            for rounding in ROUNDINGS if source.dtype is torch.float32 else ROUNDINGS[:3]:
                for overflow in Overflow if rounding == "nearest_even" and name in FLOATS else ["infinity"]:
                    rule = {"rounding": rounding, "overflow": overflow, "seed": 3}
                    yield f"quantize {case} {rounding} {overflow}", custom_fp.quantize(source, fmt, **rule)
            q = custom_fp.quantize(source, fmt)
            codes = custom_fp.encode(q.to(source.dtype), fmt)
            yield f"encode {case}", codes
            yield f"decode {case}", custom_fp.decode(codes, fmt)
            shift = 3 if name in FLOATS else 0
            packed = custom_fp.pack(source, fmt, shift=shift)
            yield f"pack {case}", packed
            yield f"unpack {case}", custom_fp.unpack(packed, fmt, source.shape, shift=shift)
    for source in (x, wide):
        for shift in (-130, 1, 40):
            yield f"scale_pow2 {source.dtype} {shift}", custom_fp.scale_pow2(source, shift)
        finite = source[source.abs() < 1e30]
        yield f"max_exponent {source.dtype}", torch.tensor([custom_fp.max_exponent(finite)])


def rounded_in_blocks() -> Iterator[tuple[str, Tensor]]:
    """Yield the result of each operator on tensors of formats with scales, along several axes."""
    x = spread(70, 3, 330)
    x[3, 1, 5], x[40, 0, 200:210] = torch.nan, torch.inf
    small = spread(64, 384, binades=2.0, seed=1)
    for name in SCALED:
        for source in (x, small, every_upper_half().view(-1, 512)):
            for axis in (None, *range(source.ndim)):
                case = f"{name} {tuple(source.shape)} {axis}"
                yield f"quantize {case}", custom_fp.quantize(source, name, axis=axis)
                codes = custom_fp.encode(source, name, axis=axis)
                yield from ((f"encode {case} {i}", part) for i, part in enumerate(codes))
                yield f"decode {case}", custom_fp.decode(codes, name, axis=axis)
                packed = custom_fp.pack(source, name, axis=axis)
                yield f"pack {case}", packed
                yield f"unpack {case}", custom_fp.unpack(packed, name, source.shape, axis=axis)
    for name in ("nf4_b64", "mxfp4", "int4_affine_b32"):
        yield f"quantize_rows {name}", custom_fp.quantize_rows(small, name)
    for rounding in Rounding:
        for name in ("mxfp8_e4m3", "nvfp4", "mxint8"):
            yield f"quantize {name} {rounding}", custom_fp.quantize(x, name, rounding=rounding, seed=2)
    for axis in range(3):
        for size in (2, 16, 64):
            y = spread(64, 128, 192)
            yield f"hadamard {size} {axis}", custom_fp.hadamard(y, size, seed=4, axis=axis)


def sums() -> Iterator[tuple[str, Tensor]]:
    """Yield the result of each operator that adds: sums of tensors and matrix products."""
    terms = [spread(10_007, seed=seed) for seed in range(7)]
    for i, term in enumerate(terms[:4]):
        term[:6] = torch.tensor([0.0, -0.0, torch.inf, torch.nan, 2.0**-149, 3e38]).roll(i)
    mixed = [term.double() * (1 + 2.0**-40) if i % 2 else term for i, term in enumerate(terms)]
    for name in ["fp32", *FLOATS, *TABULATED]:
        fmt = custom_fp.parse(name)
        kept = [term.abs() if not fmt.is_signed else term for term in terms]
        packed = [custom_fp.pack(term, fmt) for term in kept]
        for kahan in (False, True):
            for rounding in ("nearest_even", "toward_zero", "stochastic", "stochastic_8", "to_odd"):
                rule = {"kahan": kahan, "rounding": rounding, "seed": 6}
                case = f"{name} {kahan} {rounding}"
                yield f"accumulate {case}", custom_fp.accumulate(kept, fmt, **rule)
                yield f"accumulate_packed {case}", custom_fp.accumulate_packed(packed, fmt, 10_007, **rule)
                if fmt.is_signed:
                    yield f"accumulate float64 {case}", custom_fp.accumulate(mixed, fmt, **rule)
    for name in ("fp32", "e4m3"):
        yield f"accumulate exact {name}", custom_fp.accumulate(terms, name, order="exact")
        yield f"accumulate aligned {name}", custom_fp.accumulate(terms, name, order="aligned", width=24)
    for shapes in (((3, 45, 130), (3, 130, 67)), ((1, 16, 64), (64, 256))):
        a, b = (spread(*shape, binades=1.5, seed=seed) for seed, shape in enumerate(shapes))
        for name in ["fp32", *FLOATS, "posit8", "lns4_3"]:
            for kahan in (False, True):
                case = f"{name} {kahan} {shapes[0]}"
                yield f"matmul {case}", custom_fp.matmul(a.abs(), b.abs(), accumulator=name, kahan=kahan)
        for name in ACCUMULATORS:
            operand = "fp16" if "fp16" in name else "e4m3fn"
            factors = (custom_fp.quantize(factor, operand, overflow="saturate") for factor in (a, b))
            yield f"matmul {name} {shapes[0]}", custom_fp.matmul(*factors, accumulator=name, seed=5)


def digests() -> dict[str, Any]:
    """Return the instruction set in use, a digest of each result, and the names of the kernels that ran."""
    ran = set()

    def recorded(name):
        kernel = getattr(_native, name)

        def record_and_run(*args):
            ran.add(name)
            return kernel(*args)

        setattr(_native, name, record_and_run)

    for name in kernel_names():
        recorded(name)
    found = {}
    for results in (rounded_one_by_one, rounded_in_blocks, sums):
        for case, result in results():
            found[case] = hashlib.sha256(result.contiguous().numpy()).hexdigest()
    return {"isa": backends.instruction_set(), "digests": found, "kernels": sorted(ran)}


def kernel_names() -> list[str]:
    """Return the names of the functions that have an implementation for each instruction set."""
    kinds = {name: type(value).__name__ for name, value in vars(_native).items()}
    return [name for name, kind in kinds.items() if kind == "nb_func" and name not in NO_KERNELS]


@cache
def run_with(isa: str) -> dict[str, Any]:
    """Return what `digests` returns in a process that uses the given instruction set."""
    if not NEEDS[isa] <= set(Path("/proc/cpuinfo").read_text(errors="replace").split()):
        pytest.skip(f"this processor does not support {isa}")
    ended = run_python(isa, __file__)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def run_python(isa: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"CUSTOM_FP_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_equal_bits_with_every_instruction_set(isa):
    found, expected = run_with(isa), run_with("baseline")
    assert (expected["isa"], found["isa"]) == ("baseline", isa)
    assert [case for case, digest in expected["digests"].items() if found["digests"][case] != digest] == []


def test_every_kernel_is_compared():
    assert set(kernel_names()) == set(run_with("baseline")["kernels"])


def test_the_variable_restricts_the_instruction_sets():
    code = "from custom_fp import _native; print(_native.isas(), _native.isa())"
    assert run_python("baseline", "-c", code).stdout == "['baseline'] baseline\n"


def test_an_unknown_instruction_set_is_an_error_and_not_the_reference():
    ended = run_python("mmx", "-c", "import custom_fp; print(custom_fp.backend())")
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.splitlines()[-1].startswith(
        "ValueError: CUSTOM_FP_ISA is 'mmx'; this processor supports baseline"
    )


if __name__ == "__main__":
    print(json.dumps(digests()))
