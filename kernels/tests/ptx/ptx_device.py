"""A simulated GPU: the CPU runs the PTX of csrc/custom_fp.cu on tensors in ordinary memory.

NVRTC compiles the PTX. cuda.py and its neighbors launch the kernels, without changes. The arguments of a
launch are checked against the kernel's parameters, and every memory access against the tensors whose
addresses were taken for that launch.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ctypes import CDLL, POINTER, Structure, c_char_p, c_uint64, pointer
from pathlib import Path
from unittest import mock

import numpy as np
import ptx_to_cpp
import torch
from cupy_launches import check_types, prototypes, replaced_driver
from custom_fp import nvrtc

HERE = Path(__file__).parent
COMPILER = ["g++", "-std=c++17", "-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]
THREADS = 256
STRIDING = re.compile(r"(?!matmul)")  # kernels that work with any grid; matmul's grid assigns the products


class Counts(Structure):
    """The struct Counts of machine.h: executed instructions, those in float64, bytes loaded from and stored
    to global memory, and accesses to local and shared memory."""

    _fields_ = [
        (name, c_uint64) for name in ("instructions", "doubles", "loaded", "stored", "local", "shared")
    ]


class Device:
    """A device with compiled kernels.

    `grid` maps the requested number of blocks to the number that is launched, for kernels that work with any
    grid.
    """

    def __init__(
        self, ptx: str, source: str, folder: Path, names: Iterable[str] | None = None, level: str = "-O0"
    ) -> None:
        several = ptx_to_cpp.kernels(ptx, None if names is None else set(names))
        found = list(
            {kernel.name: kernel for kernel in several}.values()
        )  # a kernel may be in more than one part
        self.parameters = {kernel.name: kernel.parameters for kernel in found}
        self.written = {kernel.name: kernel.instructions for kernel in found}
        self.prototypes = prototypes(source)
        halves = found[::2], found[1::2]  # two compilers at a time
        self.libraries = _compiled([ptx_to_cpp.program(half) for half in halves if half], folder, level)
        self.grid = lambda blocks: blocks
        self.counts: dict[str, Counts] = {}  # of a kernel's last launch
        self.launches: dict[str, int] = {}
        self._taken: list[tuple[int, int]] = []  # addresses of tensors that were asked for

    def launch(self, name: str, grid: tuple[int, ...], args: tuple[np.generic | np.ndarray, ...]) -> None:
        """Run a kernel in place of the CUDA driver."""
        self._check(name, args)
        taken = self._taken
        if name != "put_addresses":  # it stores addresses for the launch that follows
            self._taken = []
        x, y = (*grid, 1)[:2]
        if STRIDING.match(name):
            x = self.grid(x)
        kept = [np.array([a]) for a in args]
        addresses = (c_uint64 * len(kept))(*(a.ctypes.data for a in kept))
        for library in self.libraries:
            for first, end in taken:
                library.allow(c_uint64(first), c_uint64(end))
            if library.launch(name.encode(), x, y, THREADS, addresses):
                break
        else:
            raise KeyError(f"{name} was not compiled")
        counts = Counts()
        library.report.restype, library.report.argtypes = c_char_p, [POINTER(Counts)]
        faults = library.report(pointer(counts)).decode()
        assert not faults, f"{name}{grid}: {faults}"
        self.counts[name], self.launches[name] = counts, self.launches.get(name, 0) + 1

    def _check(self, name: str, args: tuple[np.generic | np.ndarray, ...]) -> None:
        """Check types and sizes against the source and the PTX, and that an address is 0 or a tensor's."""
        declared, compiled = self.prototypes[name], self.parameters[name]
        check_types(name, args, declared)
        for place, (given, kind, parameter) in enumerate(zip(args, declared, compiled, strict=True)):
            assert given.nbytes == parameter.size, f"{name}: argument {place}"
            if kind == "Addresses":
                continue  # reads and writes through them are checked where they happen
            assert (given.dtype.kind == "f") == (parameter.kind[0] == "f"), f"{name}: argument {place}"
            if kind == "*" and given:
                known = any(first <= given <= end for first, end in self._taken)
                assert known, f"{name}: argument {place} is no tensor's address"

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this context, custom_fp launches its kernels on this device.

        Taking a tensor's address allows the kernels to access its elements.
        """
        data_ptr = torch.Tensor.data_ptr
        self._taken = []

        def taken(tensor: torch.Tensor) -> int:
            first = data_ptr(tensor)
            self._taken.append((first, first + tensor.numel() * tensor.element_size()))
            return first

        with mock.patch.object(torch.Tensor, "data_ptr", taken), replaced_driver(self.launch):
            yield


def _compiled(programs: list[str], folder: Path, level: str) -> list[CDLL]:
    running = []
    for i, text in enumerate(programs):
        (folder / f"kernels_{i}.cpp").write_text(text)
        files = [str(folder / f"kernels_{i}.cpp"), "-o", str(folder / f"kernels_{i}.so")]
        running.append(subprocess.Popen([*COMPILER, level, "-shared", "-fPIC", f"-I{HERE}", *files]))
    ended = [one.wait() for one in running]
    assert not any(ended), "an instruction that machine.h lacks?"
    return [CDLL(str(folder / f"kernels_{i}.so")) for i in range(len(programs))]


def ptx_of(names: Iterable[str], architecture: str = "compute_90") -> str:
    """Return the PTX of the parts of custom_fp.cu that contain the kernels, compiled as nvrtc.py does.

    Raise RuntimeError if NVRTC is missing or rejects the source.
    """
    parts = sorted({nvrtc.part_of(name) for name in names})
    return "\n".join(compile_ptx(nvrtc.source(), architecture, part) for part in parts)


def compile_ptx(source: str, architecture: str = "compute_90", part: tuple[str, ...] = ()) -> str:
    options = [f"--gpu-architecture={architecture}", "-w", *nvrtc.OPTIONS, *part]
    return nvrtc.compile_source(source, options).decode().rstrip("\0")
