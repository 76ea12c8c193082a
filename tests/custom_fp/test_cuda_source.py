"""The CUDA source compiles for sm_80 and sm_90; no GPU is needed. What it computes is tested in test_gpu.py."""

import pytest

pytest.importorskip("cupy", reason="CuPy brings NVRTC; pip install 'cpdrun[cuda13]'")
from cupy.cuda import nvrtc
from custom_fp import cuda


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_every_kernel_compiles(architecture):
    try:
        nvrtc.getVersion()
    except Exception as error:
        pytest.skip(f"no NVRTC library: {error}")
    program = nvrtc.createProgram(cuda.source(), "custom_fp.cu", [], [])
    try:
        nvrtc.compileProgram(program, [f"--gpu-architecture={architecture}", "-w", *cuda.OPTIONS])
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    binary = nvrtc.getCUBIN(program)
    missing = [name for name in cuda.KERNELS if name.encode() not in binary]
    assert not missing and len(binary) > 10_000


def test_the_source_is_whole():
    source = cuda.source()
    assert '#include "' not in source and source.count("namespace custom_fp {") == 9  # one a header
    assert "--fmad=false" in cuda.OPTIONS and not any("fast" in option for option in cuda.OPTIONS)
