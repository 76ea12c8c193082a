"""Where a rank computes."""

import os

import torch

from cpdrun.train.build import BuildError


def device_of(choice: str) -> torch.device:
    """Return the device of `device=auto|cpu|cuda`. Of several GPUs it is this rank's, and it becomes the current one.

    Raises:
        BuildError: torch can use no GPU although `choice` is cuda, or the GPU is older than this torch supports.
    """
    found = torch.cuda.is_available()
    if choice == "cuda" and not found:
        raise BuildError("device=cuda: torch can use no GPU here; take device=auto or device=cpu")
    if choice == "cpu" or not found:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    _check_supported(device)
    torch.cuda.set_device(device)
    return device


def _check_supported(device: torch.device) -> None:
    """Without this check the first kernel would fail with "no kernel image is available"."""
    major, minor = torch.cuda.get_device_capability(device)
    known = [int(name[3:]) for name in torch.cuda.get_arch_list() if name[3:].isdecimal()]
    if known and 10 * major + minor < min(known):
        version, least = torch.version.cuda, f"{min(known) // 10}.{min(known) % 10}"
        older = int(version.split(".")[0]) - 1
        raise BuildError(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}, and this torch for CUDA "
            f"{version} needs {least} or later: install a torch wheel for CUDA {older} (its version ends in "
            f"+cu{older}N) and cupy-cuda{older}x, or take device=cpu"
        )
