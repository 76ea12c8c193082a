"""Fixtures: the instruction set and the threads are restored, and CUDA kernels run on the CPU."""

import sys
from ctypes import CDLL, c_float, c_int, c_longlong, c_uint, c_ulonglong
from pathlib import Path

import pytest
import torch
from custom_fp import _native
from kernels_on_host import Addresses, compiled_library

sys.path.insert(0, str(Path(__file__).parent / "ptx"))  # cupy_launches.py is there, for scripts too


@pytest.fixture(autouse=True)
def _restore_isa_and_threads():
    threads = torch.get_num_threads()
    yield
    _native.use_isa(_native.isas()[-1])
    torch.set_num_threads(threads)


@pytest.fixture(params=_native.isas())
def isa(request):
    """The test runs once with each instruction set."""
    _native.use_isa(request.param)
    return request.param


@pytest.fixture
def flushed_subnormals():
    """The calling thread treats subnormal float32 values as zero."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal values")
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    return CDLL(str(compiled_library("cuda_on_host.cpp", tmp_path_factory.mktemp("cuda"))))


@pytest.fixture
def launched(kernels, monkeypatch):
    """Run the kernels that the CUDA backend launches as host functions, one thread after the other.

    Yields a list of the names of the kernels that ran. The arguments pass through cuda.launch and CuPy's own
    conversion; only the driver is replaced. Barriers do nothing here, so kernels for runs, which need whole warps,
    cannot run, and packed sums have at most 8 terms (ptx/ runs those).
    """
    pytest.importorskip("custom_fp.cuda", reason="needs CuPy")
    from cupy_launches import replaced_driver
    from custom_fp.scaled import cuda as scaled_cuda

    kinds = {"u": c_ulonglong, "f": c_float}
    wide = {("i", 4): c_int, ("i", 8): c_longlong, ("u", 4): c_uint}
    ran = []

    def run(name, grid, args):
        ran.append(name)
        converted = [
            wide.get((a.dtype.kind, a.itemsize), kinds.get(a.dtype.kind))(a.item())
            if a.ndim == 0
            else Addresses.from_buffer_copy(a)
            for a in args
        ]
        kernel = getattr(kernels, name)
        if "pack" not in name or "accumulate" in name:
            kernels.be_thread(0, 256 if "accumulate_packed" in name else 1)
            kernel(*converted)
            return
        assert grid == (1,)
        # Threads pass random bits, codes and bytes through shared memory. In the third round, all of them are there.
        for thread in 3 * [*range(256)]:
            kernels.be_thread(thread, 256)
            kernel(*converted)

    monkeypatch.setattr(scaled_cuda, "run", lambda layout: 0)
    with replaced_driver(run):
        yield ran


@pytest.fixture
def empty_compile_cache(monkeypatch, tmp_path):
    """Let torch.compile use an empty cache: a process that is killed while it compiles can damage the shared one.

    Its C++ code is scalar, which saves compiling a test program for each instruction set.
    """
    import torch._inductor.config as config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with config.patch({"cpp.vec_isa_ok": False}):
        yield
