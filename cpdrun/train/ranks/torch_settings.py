"""The torch settings of a rank: device, threads, float32 precision, and deterministic algorithms on a GPU.

Ranks, attached scripts and calibration share these settings, so that "float32" is the same everywhere. By default torch
lets cuDNN round the inputs of float32 convolutions to TF32, which has 10 mantissa bits. That would change the fp32
baseline and nearly every value of a format whose scales follow the data.
"""

import ctypes
import os
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from cpdrun.train.instantiate import BuildError

IEEE, TF32 = "ieee", "tf32"
_MIB = 1 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # parameter numbers of mallopt, from glibc's malloc.h
_NONDETERMINISTIC = re.compile(r"(\S+) does not have a deterministic implementation")
_nondeterministic: dict[str, None] = {}  # operations that this process has used, in order


def configure_torch(config: Mapping[str, Any]) -> None:
    """Set torch's threads, float32 precision and, on a machine with a GPU, deterministic algorithms.

    Call this before the first use of CUDA. It does not initialize CUDA. On a machine without a GPU, and with
    `device: cpu`, only the threads have an effect.

    Args:
        config: The config of a run. Only `threads`, `device` and `tf32` are read.
    """
    torch.set_num_threads(config["threads"])
    on_gpu = config["device"] != "cpu" and _has_gpu()
    _set_float32_precision(TF32 if on_gpu and config.get("tf32", False) else IEEE)
    if on_gpu:
        _request_deterministic_algorithms()


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next training step.

    By default, glibc returns large freed blocks to the operating system, which must then map new pages in
    every step. This function makes it keep blocks of up to 128 MiB (32 MiB if glibc is older than 2.35), and up
    to 256 MiB of free memory at the end of the heap. It has no effect with C libraries that lack mallopt.
    """
    with suppress(AttributeError, OSError, TypeError):  # TypeError: on Windows
        mallopt = ctypes.CDLL(None).mallopt
        if mallopt(_M_MMAP_THRESHOLD, 128 * _MIB) or mallopt(_M_MMAP_THRESHOLD, 32 * _MIB):
            mallopt(_M_TRIM_THRESHOLD, 256 * _MIB)


def numerics_facts(device: torch.device) -> dict[str, Any]:
    """Return the facts about the arithmetic of this process that env.json records.

    `float32` is the precision of float32 operations. On a GPU, `nondeterministic` lists the operations without a
    deterministic implementation that have run so far.
    """
    facts: dict[str, Any] = {"float32": _float32_precision()}
    if device.type == "cuda":
        facts["nondeterministic"] = list(_nondeterministic)
    return facts


def _has_gpu() -> bool:
    """Return whether there is a GPU, without initializing CUDA, since a script may still set CUDA_VISIBLE_DEVICES."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return torch.cuda.is_available()


def _set_float32_precision(precision: str) -> None:
    """Set the precision of products, convolutions and recurrent layers on a GPU.

    torch has an old interface and a new one. After the new one alone, reading the old one raises an error, which breaks
    scripts and `torch.backends.cudnn.flags`. Both together agree.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == TF32
    torch.backends.cudnn.allow_tf32 = precision == TF32
    for operations in _float32_operations().values():
        operations.fp32_precision = precision


def _float32_operations() -> dict[str, Any]:
    """Return the torch backends that have a float32 precision, by name."""
    cudnn: Any = torch.backends.cudnn  # its type stubs lack conv and rnn
    return {"matmul": torch.backends.cuda.matmul, "conv": cudnn.conv, "rnn": cudnn.rnn}


def _float32_precision() -> str:
    """Return "ieee", "tf32", or "tf32 (conv)" if a script has changed some of the settings."""
    operations = _float32_operations()
    in_tf32 = [name for name, operation in operations.items() if operation.fp32_precision == TF32]
    if not in_tf32:
        return IEEE
    return TF32 if len(in_tf32) == len(operations) else f"{TF32} ({', '.join(in_tf32)})"


def _request_deterministic_algorithms() -> None:
    """Use deterministic algorithms where torch has them, and record the names of the operations that have none."""
    # cuBLAS is only deterministic with this setting.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = (
        False  # Benchmarks may select kernels with different orders of summation.
    )
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    # By default, deterministic mode fills every new tensor with NaN, which is slow.
    deterministic: Any = torch.utils.deterministic  # Any, because torch's type stubs lack the next setting
    deterministic.fill_uninitialized_memory = False
    warnings.filterwarnings("default", message=f".*{_NONDETERMINISTIC.pattern}")
    show = warnings.showwarning

    def record(message: Warning | str, *rest: Any, **named: Any) -> None:
        if found := _NONDETERMINISTIC.search(str(message)):
            if found[1] in _nondeterministic:
                return
            _nondeterministic[found[1]] = None
        show(message, *rest, **named)

    warnings.showwarning = record


def select_device(choice: str) -> torch.device:
    """Return the device for `device=auto|cpu|cuda`.

    If there are several GPUs, the ranks are distributed over them, and this rank's GPU becomes the current device.

    Raises:
        BuildError: torch can use no GPU although `choice` is cuda, or the GPU is older than this torch supports.
    """
    found = torch.cuda.is_available()
    if choice == "cuda" and not found:
        raise BuildError("device=cuda: torch cannot use a GPU here. Set device=auto or device=cpu")
    if choice == "cpu" or not found:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    _check_supported(device)
    torch.cuda.set_device(device)
    return device


def backend_for(device: torch.device) -> str:
    """Return the torch.distributed backend for the ranks of a run: nccl or gloo.

    nccl requires a separate GPU for each rank. Ranks that share a GPU, and ranks on the CPU, use gloo.
    """
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return "nccl" if device.type == "cuda" and ranks_here <= torch.cuda.device_count() else "gloo"


def _check_supported(device: torch.device) -> None:
    """Raise a clear error for an old GPU. Its first kernel would fail with "no kernel image is available"."""
    major, minor = torch.cuda.get_device_capability(device)
    known = [int(name[3:]) for name in torch.cuda.get_arch_list() if name[3:].isdecimal()]
    if known and 10 * major + minor < min(known):
        version = str(torch.version.cuda)
        least = f"{min(known) // 10}.{min(known) % 10}"
        older = int(version.split(".")[0]) - 1
        raise BuildError(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}, but this torch for CUDA "
            f"{version} needs {least} or later. Install a torch wheel for CUDA {older} (its version ends in "
            f"+cu{older}N) and cupy-cuda{older}x, or set device=cpu"
        )
