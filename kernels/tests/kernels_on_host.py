"""The CUDA kernels compiled for the CPU, and how they are called thread by thread: of test_cuda_on_host.py and
test_cuda_launched.py. conftest.py has the fixtures."""

import math
import shutil
import subprocess
from ctypes import Structure, c_int, c_uint, c_ulonglong, c_void_p
from pathlib import Path

import custom_fp
import pytest
import torch
from custom_fp.rounding import Rule

HERE = Path(__file__).parent
CSRC = Path(custom_fp.__file__).parent / "csrc"
OPTIONS = [
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-shared",
    "-fPIC",
    "-w",
]
ROUNDINGS = ["nearest_even", "toward_zero", "stochastic", "stochastic_5", "stochastic_even_9"]
SEED, OFFSET = 77, 1001


def compiled_library(source: str, folder: Path, level: str = "-O0") -> Path:
    """Of a C++ file that lies here and includes csrc; skips the test where there is no compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    library = folder / "library.so"
    subprocess.run(
        [compiler, *OPTIONS, level, f"-I{CSRC}", str(HERE / source), "-o", str(library)], check=True
    )
    return library


def address(tensor):
    return c_void_p(tensor.data_ptr())


class Addresses(Structure):
    """As custom_fp.cu has it: 480 addresses, and that of a table where there are more."""

    _fields_ = [("first", c_ulonglong * 480), ("table", c_ulonglong)]


def addresses(tensors):
    return Addresses((c_ulonglong * 480)(*(tensor.data_ptr() for tensor in tensors)))


def as_drawn(rounding):
    return c_ulonglong(SEED), c_ulonglong(OFFSET), c_uint(Rule(rounding).flat[-1])


def as_how(rounding, overflow):
    mode, number, *_ = Rule(rounding, overflow).flat
    return c_int(mode << 8 | number)


def hostile(*shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)) * torch.logspace(-20, 8, shape[-1])
    x.view(-1)[[3, -9]] = torch.tensor([math.nan, -math.inf])
    x.view(-1)[40:80] = 0.0
    return x


def same_bits(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
