"""Compile the CUDA kernels with NVRTC, one part of csrc/custom_fp.cu at a time.

The compiled code is cached on disk for each GPU architecture and shared by all processes.

This module does not use cupy.RawModule, because CuPy adds -ftz=true to the options of everything that it compiles
(CuPy 14.2, cuda/compiler.py). With this option, float32 arithmetic treats subnormal numbers as 0, so results would
differ from those of the CPU.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import cupy
from cupy.cuda import nvrtc

CSRC = Path(__file__).parent / "csrc"
OPTIONS = (
    *("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"),
    # Without this option, NVRTC before 13.2 treats generic lambdas in kernels as host functions.
    "--device-as-default-execution-space",
)
MODES = ("nearest_even", "toward_zero", "stochastic", "otherwise")
PARTS = {  # prefix of a kernel's name (longer prefixes first) -> name of the kernel's part of custom_fp.cu
    "accumulate_packed_": "ACCUMULATE_PACKED",
    "accumulate_bytes_": "ACCUMULATE_BYTES",
    "accumulate_": "ACCUMULATE",
    "quantize_": "QUANTIZE",
    "pack_": "PACK",
    **dict.fromkeys(("scale_", "max_magnitude_", "put_"), "ELEMENTS"),
    **dict.fromkeys(("encode_", "decode_", "unpack"), "CODES"),
    "dot_": "DOT",
    "fused_sum": "FUSED_SUM",
    "matmul_": "MATMUL",
    "hadamard": "HADAMARD",
    **dict.fromkeys(("codebook_", "affine_"), "SCALED"),
    "scaled_": "TILES",
    "table_": "TABULATED",
}


def source() -> str:
    """Return the text of custom_fp.cu with all headers inserted, so a change in any header invalidates the cache."""
    seen = set()

    def expand(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        text = (CSRC / name).read_text().replace("#pragma once\n", "")
        return re.sub(r'^#include "(.+)"$', lambda match: expand(match[1]), text, flags=re.MULTILINE)

    return expand("custom_fp.cu")


def part_of(name: str) -> tuple[str, ...]:
    """Return the options with which NVRTC compiles only the part of custom_fp.cu that has the given kernel.

    A part has one rounding mode and the kernels that are similar to the given one.
    """
    part = next(part for start, part in PARTS.items() if name.startswith(start))
    mode = next((mode for mode in MODES if mode in name), MODES[0])
    return "-DCFP_PART", f"-DCFP_ONLY_{part}", f"-DCFP_FOR_EACH_MODE(kernel)=kernel({mode})"


@cache
def kernel(name: str, device: int) -> cupy.cuda.Function:
    """Return the kernel with the given name. `device` is the number of the current device."""
    return _module(part_of(name), device).get_function(name)


@cache
def _module(part: tuple[str, ...], device: int) -> cupy.cuda.Module:
    module = cupy.cuda.Module()
    module.load(binary(part, int(cupy.cuda.Device(device).compute_capability)))
    return module


def binary(part: tuple[str, ...], capability: int) -> bytes:
    """Return a part of the kernels as machine code for a compute capability, such as 90 for version 9.0.

    For a GPU that is newer than this NVRTC, PTX is returned instead, which the driver compiles. The result is cached on
    disk. If several processes need it at the same time, one compiles and the others wait.

    Raises:
        RuntimeError: This NVRTC does not support such an old GPU.
    """
    text, known = source(), [int(number) for number in nvrtc.getSupportedArchs()]
    if capability < min(known):
        raise RuntimeError(_too_old(capability, min(known), nvrtc.getVersion()[0]))
    is_known = capability in known
    target = f"sm_{capability}" if is_known else f"compute_{max(n for n in known if n < capability)}"
    options = [f"--gpu-architecture={target}", "-w", *OPTIONS, *part]
    cache_key = repr((options, nvrtc.getVersion(), text)).encode()
    cached_file = (
        _folder() / f"custom_fp-{hashlib.sha256(cache_key).hexdigest()[:32]}.{'cubin' if is_known else 'ptx'}"
    )
    with suppress(OSError):
        return cached_file.read_bytes()
    try:
        cached_file.parent.mkdir(parents=True, exist_ok=True)
        with cached_file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                return cached_file.read_bytes()
            made = compile_source(text, options)
            _write(cached_file, made)
            return made
    except OSError:  # the cache folder is not writable
        return compile_source(text, options)


def _too_old(capability: int, oldest: int, cuda: int) -> str:
    """Return a message that tells the user which packages to install for a GPU that is too old for this NVRTC."""
    gpu, least = (f"compute capability {number // 10}.{number % 10}" for number in (capability, oldest))
    return (
        f"This GPU has {gpu}, and CUDA {cuda} needs at least {least}. Install CuPy and a PyTorch build for CUDA "
        f"{cuda - 1}: pip uninstall cupy-cuda{cuda}x, then pip install cupy-cuda{cuda - 1}x and a torch wheel whose "
        f"version ends in +cu{cuda - 1}N (such as +cu126 for CUDA 12.6)."
    )


def compile_source(text: str, options: list[str]) -> bytes:
    """Return machine code if the options name an sm_ architecture, or PTX if they name a compute_ architecture."""
    program = nvrtc.createProgram(text, "custom_fp.cu", [], [])
    try:
        nvrtc.compileProgram(program, options)
        is_real = any("=sm_" in option for option in options)
        # CuPy omits the last byte of machine code, a zero.
        return nvrtc.getCUBIN(program) + b"\0" if is_real else nvrtc.getPTX(program)
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"NVRTC could not compile custom_fp.cu: {nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)


def _folder() -> Path:
    """Return the folder in which CuPy caches compiled kernels."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")


def _write(path: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    Path(temporary).replace(path)
