"""Launches without a GPU. `cuda.launch` runs as it is, and CuPy converts the arguments of every launch as it does for a
GPU; only the driver, which CuPy would then call, is replaced.

CuPy converts the arguments before it asks for a driver. A function with a null pointer therefore tells an argument that
CuPy accepts (the launch fails with an error of the CUDA runtime or driver) from one that it refuses (TypeError).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from unittest import mock

import cupy
import numpy as np
import torch
from cupy.cuda.function import Function
from custom_fp import nvrtc

Run = Callable[[str, tuple[int, ...], tuple], object]
"""What runs in place of the driver: it gets a kernel's name, the grid and the arguments."""

SCALARS = {"int": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "float": np.float32}
_PROTOTYPE = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\)\s+)?(\w+)\((.*?)\)\s*\{', re.S
)


def check_cupy_accepts(grid: tuple[int, ...], block: tuple[int, ...], args: tuple, stream: object) -> None:
    """Raise TypeError if CuPy cannot pass one of the arguments to a kernel."""
    try:
        Function.__new__(Function)(grid, block, args, stream=stream)
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError):
        return
    raise AssertionError("CuPy launched a function that does not exist")


@contextmanager
def replaced_driver(run: Run) -> Iterator[None]:
    """Within this context, kernels launch on the CPU: CuPy converts their arguments, then `run` is called."""

    def kernel(name: str, device: int | None) -> Callable[..., None]:
        def launched(grid: tuple[int, ...], block: tuple[int, ...], args: tuple, *, stream: object) -> None:
            check_cupy_accepts(grid, block, args, stream)
            run(name, grid, args)

        return launched

    with (
        mock.patch.object(nvrtc, "kernel", kernel),
        mock.patch.object(cupy.cuda, "Device", lambda number: nullcontext()),
        mock.patch.object(torch.cuda, "current_stream", lambda device: mock.Mock(cuda_stream=0)),
    ):
        yield


@cache
def prototypes(source: str) -> dict[str, list[str]]:
    """Return the parameter types of every kernel as the source declares them; "*" is an address. Needs g++."""
    arguments = ["g++", "-std=c++17", "-D__CUDACC_RTC__", "-E", "-P", "-x", "c++", "-"]
    text = subprocess.run(arguments, input=source, capture_output=True, text=True, check=True).stdout
    return {
        name: ["*" if "*" in one else one.split()[-2] for one in re.split(r",\s*", parameters)]
        for name, parameters in _PROTOTYPE.findall(text)
    }


def check_types(name: str, args: tuple, declared: list[str]) -> None:
    """Fail if the arguments of a launch differ from the kernel's parameters in number or type."""
    assert len(args) == len(declared), f"{name}: {len(args)} arguments, {declared} are wanted"
    for place, (given, kind) in enumerate(zip(args, declared, strict=True)):
        if kind == "Addresses":
            assert isinstance(given, np.ndarray) and given.nbytes == 481 * 8, f"{name}: argument {place}"
            continue
        wanted = np.uint64 if kind == "*" else SCALARS[kind]
        assert type(given) is wanted, f"{name}: argument {place} is {type(given)}, a {kind} is wanted"
