"""C++ and CUDA source compiled for the CPU, for fixtures and tests that call it through ctypes."""

import shutil
import subprocess
from ctypes import Structure, c_ulonglong
from pathlib import Path

import custom_fp
import pytest

HERE = Path(__file__).parent
CSRC = Path(custom_fp.__file__).parent / "csrc"
OPTIONS = [
    *("-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-shared", "-fPIC"),
    "-w",
]


def compiled_library(source: str, folder: Path, level: str = "-O0") -> Path:
    """Compile a C++ file of this folder that includes csrc. Skip the test if there is no compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    library = folder / "library.so"
    arguments = [*OPTIONS, level, f"-I{CSRC}", str(HERE / source), "-o", str(library)]
    subprocess.run([compiler, *arguments], check=True)
    return library


class Addresses(Structure):
    """The struct of custom_fp.cu: 480 addresses, and that of a table if there are more."""

    _fields_ = [("first", c_ulonglong * 480), ("table", c_ulonglong)]
