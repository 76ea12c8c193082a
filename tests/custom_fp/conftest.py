"""The CUDA kernels on the CPU, as kernels_on_host.py has them."""

from ctypes import CDLL, c_float, c_int, c_longlong, c_uint, c_ulonglong

import pytest
from kernels_on_host import Addresses, compiled_library


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    return CDLL(str(compiled_library("cuda_on_host.cpp", tmp_path_factory.mktemp("cuda"))))


@pytest.fixture
def launched(kernels, monkeypatch):
    """What cuda.py and its neighbours launch runs here, one thread does it all: cuda, scaled.on_cuda, names of the
    kernels that ran."""
    cuda = pytest.importorskip("custom_fp.cuda", reason="needs CuPy")
    from custom_fp.accumulators import on_cuda as dots
    from custom_fp.scaled import on_cuda, tiles_on_cuda
    from custom_fp.tabulated import on_cuda as tables_on_cuda

    kinds = {"u": c_ulonglong, "f": c_float}
    ran = []

    def launch(name, like, grid, *args):
        ran.append(name)
        kernels.be_thread(0, 1)
        wide = {("i", 4): c_int, ("i", 8): c_longlong, ("u", 4): c_uint}
        converted = [
            wide.get((a.dtype.kind, a.itemsize), kinds.get(a.dtype.kind))(a.item())
            if a.ndim == 0
            else Addresses.from_buffer_copy(a)
            for a in args
        ]
        getattr(kernels, name)(*converted)

    for module in (on_cuda, tiles_on_cuda):  # kernels for runs are warps at work: ptx/ runs those
        monkeypatch.setattr(module, "run", lambda layout: 0)
    monkeypatch.setattr(cuda, "launch", launch)
    monkeypatch.setattr(on_cuda, "launch", launch)
    monkeypatch.setattr(tiles_on_cuda, "launch", launch)
    monkeypatch.setattr(dots, "launch", launch)
    monkeypatch.setattr(tables_on_cuda, "launch", launch)
    return cuda, on_cuda, ran
