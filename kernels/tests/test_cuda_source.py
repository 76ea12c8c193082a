"""The CUDA source compiles for sm_80 and sm_90. No GPU is needed. test_backends.py tests what the kernels compute."""

import re
import threading
from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("cupy", reason="CuPy brings NVRTC; pip install cupy-cuda13x")
from cupy.cuda import nvrtc as cupy_nvrtc
from custom_fp import cuda, nvrtc
from ptx_cases import SOME_KERNELS


@pytest.fixture(autouse=True)
def _has_nvrtc():
    try:
        cupy_nvrtc.getVersion()
    except Exception as error:
        pytest.skip(f"no NVRTC library: {error}")


def test_a_part_of_each_kind_has_its_kernels_and_compiles():
    """For each kind of kernel that ptx/test_ptx.py does not cover, compile one rounding mode.

    Large kernels are compiled to PTX for sm_80. All others are compiled to machine code for sm_90. The fixture
    `kernels` compiles all rounding modes with g++.
    """
    kinds = {}
    for name in cuda.KERNELS:
        part = nvrtc.part_of(name)
        kinds.setdefault(part[1], {}).setdefault(part, []).append(name)
    on_ptx = {nvrtc.part_of(name)[1] for name in SOME_KERNELS}
    others = {kind: parts for kind, parts in kinds.items() if kind not in on_ptx}
    assert others and on_ptx < kinds.keys()
    for i, parts in enumerate(others.values()):
        part, names = list(parts.items())[i % len(parts)]
        is_large = part[1].endswith(("DOT", "TABULATED"))
        options = [f"--gpu-architecture={'compute_80' if is_large else 'sm_90'}", "-w", *nvrtc.OPTIONS, *part]
        code = nvrtc.compile_source(nvrtc.source(), options)
        assert all(name.encode() in code for name in names), part


def test_the_source_is_whole():
    source = nvrtc.source()
    assert '#include "' not in source and source.count("namespace custom_fp {") >= 7  # one a header
    declared = set(re.findall(r"defined CFP_ONLY_(\w+)", source))
    assert declared == set(nvrtc.PARTS.values())
    assert {"--fmad=false", "--ftz=false"} < set(nvrtc.OPTIONS)
    assert (
        "--device-as-default-execution-space" in nvrtc.OPTIONS
    )  # NVRTC before 13.2 needs it for generic lambdas
    assert not any("fast" in option for option in nvrtc.OPTIONS)


def test_one_thread_compiles_and_the_others_read_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    calls, together = [], threading.Barrier(4)

    def compile_source(text, options):
        calls.append(options)
        return b"code of " + options[0].encode()

    monkeypatch.setattr(nvrtc, "compile_source", compile_source)
    part, found = nvrtc.part_of("pack_stochastic"), []

    def ask():
        together.wait()
        found.append(nvrtc.binary(part, 90))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"code of --gpu-architecture=sm_90"] * 4 and len(calls) == 1
    newest = max(map(int, cupy_nvrtc.getSupportedArchs()))
    assert nvrtc.binary(part, newest + 1) == f"code of --gpu-architecture=compute_{newest}".encode()
    monkeypatch.setenv("CUPY_CACHE_DIR", "/dev/null/nowhere")
    assert nvrtc.binary(part, 90) == found[0] and len(calls) == 3


def test_the_error_for_an_unsupported_gpu_names_the_packages(monkeypatch):
    """A V100 has compute capability 7.0, which CUDA 13 no longer supports."""
    monkeypatch.setattr(cupy_nvrtc, "getSupportedArchs", lambda: [75, 80, 90])
    monkeypatch.setattr(cupy_nvrtc, "getVersion", lambda: (13, 0))
    with pytest.raises(RuntimeError, match=r"7\.0.*CUDA 13 needs .*7\.5.*cupy-cuda12x and a torch.*\+cu12"):
        nvrtc.binary(nvrtc.part_of("unpack"), 70)


def test_a_launch_runs_on_torchs_stream(monkeypatch):
    class Stream:
        cuda_stream = 77

    said = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream)
    monkeypatch.setattr(cuda.cupy.cuda, "Device", lambda number: nullcontext())
    monkeypatch.setattr(
        nvrtc, "kernel", lambda name, device: lambda *args, stream: said.append((name, args, stream.ptr))
    )
    cuda.launch("unpack", torch.empty(0), (3,), 1, 2)
    assert said == [("unpack", ((3,), (256,), (1, 2)), 77)]
