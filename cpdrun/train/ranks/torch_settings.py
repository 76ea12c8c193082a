"""How torch computes in a rank: its threads, the precision of float32, and deterministic algorithms on a GPU.

Ranks, attached scripts and calibration share these settings, so that "float32" is the same everywhere. By default torch
lets cuDNN round the inputs of float32 convolutions to TF32, which has 10 mantissa bits. That would change the fp32
baseline and nearly every value of a format whose scales follow the data.
"""

import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch

IEEE, TF32 = "ieee", "tf32"
_NONDETERMINISTIC = re.compile(r"(\S+) does not have a deterministic implementation")
_nondeterministic: dict[str, None] = {}  # operations that this process has used, in order


def configure_torch(config: Mapping[str, Any]) -> None:
    """Set torch's threads, float32 precision and, on a machine with a GPU, deterministic algorithms.

    Call this before the first use of CUDA. It does not initialize CUDA. On a machine without a GPU, and with
    `device: cpu`, only the threads have an effect.

    Args:
        config: a run's config; `threads`, `device` and `tf32` are read.
    """
    torch.set_num_threads(config["threads"])
    on_gpu = config["device"] != "cpu" and _has_gpu()
    _set_float32_precision(TF32 if on_gpu and config.get("tf32", False) else IEEE)
    if on_gpu:
        _request_deterministic_algorithms()


def numerics_facts(device: torch.device) -> dict[str, Any]:
    """Return what env.json says about the arithmetic of this process: `float32` and, on a GPU, which operations ran
    without a deterministic implementation so far."""
    facts: dict[str, Any] = {"float32": _float32_precision()}
    if device.type == "cuda":
        facts["nondeterministic"] = list(_nondeterministic)
    return facts


def _has_gpu() -> bool:
    """Ask the driver's library, which does not initialize CUDA: a script may still set CUDA_VISIBLE_DEVICES."""
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
    cudnn = torch.backends.cudnn
    return {"matmul": torch.backends.cuda.matmul, "conv": cudnn.conv, "rnn": cudnn.rnn}


def _float32_precision() -> str:
    """Return "ieee", "tf32", or "tf32 (conv)" if a script has changed some of the settings."""
    operations = _float32_operations()
    in_tf32 = [name for name, operation in operations.items() if operation.fp32_precision == TF32]
    if not in_tf32:
        return IEEE
    return TF32 if len(in_tf32) == len(operations) else f"{TF32} ({', '.join(in_tf32)})"


def _request_deterministic_algorithms() -> None:
    """Use deterministic algorithms if there are any; note the names of the operations that have none."""
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # cuBLAS is deterministic with this setting only
    torch.backends.cudnn.benchmark = False  # the fastest kernel of the day has its own order of sums
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = (
        False  # it would fill every new tensor with NaN, slowly
    )
    warnings.filterwarnings("default", message=f".*{_NONDETERMINISTIC.pattern}")
    show = warnings.showwarning

    def note(message: Warning | str, *rest: Any, **named: Any) -> None:
        if found := _NONDETERMINISTIC.search(str(message)):
            if found[1] in _nondeterministic:
                return
            _nondeterministic[found[1]] = None
        show(message, *rest, **named)

    warnings.showwarning = note
