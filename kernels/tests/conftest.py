"""Fixtures: the CUDA kernels, run on the CPU."""

import sys
from ctypes import CDLL, c_float, c_int, c_longlong, c_uint, c_ulonglong
from pathlib import Path

import pytest
from kernels_on_host import Addresses, compiled_library

sys.path.insert(0, str(Path(__file__).parent / "ptx"))  # cupy_launches.py is there, for scripts too


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    return CDLL(str(compiled_library("cuda_on_host.cpp", tmp_path_factory.mktemp("cuda"))))


@pytest.fixture
def launched(kernels, monkeypatch):
    """Run here, on one thread, what cuda.py and scaled/cuda.py launch.

    Yields the modules cuda and scaled.cuda, and a list of the names of the kernels that ran. The arguments
    pass through cuda.launch and CuPy's own conversion; only the driver is replaced.
    """
    cuda = pytest.importorskip("custom_fp.cuda", reason="needs CuPy")
    from cupy_launches import replaced_driver
    from custom_fp.scaled import cuda as scaled_cuda

    kinds = {"u": c_ulonglong, "f": c_float}
    wide = {("i", 4): c_int, ("i", 8): c_longlong, ("u", 4): c_uint}
    ran = []

    def run(name, grid, args):
        ran.append(name)
        kernels.be_thread(0, 1)
        converted = [
            wide.get((a.dtype.kind, a.itemsize), kinds.get(a.dtype.kind))(a.item())
            if a.ndim == 0
            else Addresses.from_buffer_copy(a)
            for a in args
        ]
        getattr(kernels, name)(*converted)

    # the kernels for runs need whole warps: ptx/ runs those
    monkeypatch.setattr(scaled_cuda, "run", lambda layout: 0)
    with replaced_driver(run):
        yield cuda, scaled_cuda, ran


@pytest.fixture
def empty_compile_cache(monkeypatch, tmp_path):
    """Let torch.compile use an empty cache: a process that is killed while it compiles can damage the shared one."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
