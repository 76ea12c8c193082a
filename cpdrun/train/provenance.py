"""Where a run comes from: versions, machine, data, and the code of the folder in which its command was typed."""

import hashlib
import platform
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from cpdrun.record import RunDir, git, git_commit, write_json, write_text

PACKAGES = ("cpdrun", "torch", "torchvision", "numpy", "hydra-core", "omegaconf")
DIFF_BYTES = 1 << 20  # of code.diff; a longer one is cut, and says so
FOLDERS_AS_ONE = ("--directory", "--no-empty-directory")


def write_environment(run: RunDir, device: torch.device, data: Any) -> None:
    """env.json and, where the repository of the current folder is not as committed, code.diff.

    env.json: versions, device, machine; `data_sha256`, where the dataset `data` knows a digest of itself;
    `git_commit`, null outside a repository; `git_diff`, ten digits of the SHA-256 of code.diff, which tell apart
    runs of different code, or "none" where every tracked file is as committed.
    """
    diff = git("diff", "--no-color", "--no-ext-diff", "HEAD")
    untracked = git("ls-files", "--others", "--exclude-standard", *FOLDERS_AS_ONE, "--full-name", ":/")
    run.code_diff.unlink(missing_ok=True)  # of an attempt with other code
    if diff or untracked:
        names = "".join(f"# not in the repository: {name}\n" for name in (untracked or "").splitlines())
        write_text(run.code_diff, cut(names + (diff or "")))
    write_json(
        run.env,
        {
            "python": platform.python_version(),
            "packages": {name: _version(name) for name in PACKAGES},
            "custom_fp_backend": _backend(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
            "platform": platform.platform(),
            "hostname": socket.gethostname(),
            "data_sha256": getattr(data, "sha256", None),
            "git_commit": git_commit(),
            "git_diff": diff if diff is None else _digest(diff),
        },
    )


def cut(diff: str) -> str:
    """`diff`, or its first DIFF_BYTES and a line that says so."""
    data = diff.encode()
    if len(data) <= DIFF_BYTES:
        return diff
    return data[:DIFF_BYTES].decode("utf-8", "ignore") + f"\n# cut here: {len(data)} bytes in all\n"


def _digest(diff: str) -> str:
    return hashlib.sha256(diff.encode()).hexdigest()[:10] if diff else "none"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _backend() -> str:
    import custom_fp

    return custom_fp.backend()


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
