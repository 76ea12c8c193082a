"""Where a rank computes."""

import os

import torch

from cpdrun.train.build import BuildError


def device_of(choice: str) -> torch.device:
    """The device of `device=auto|cpu|cuda`; of several GPUs, the one of this rank, made the current one. Raises
    BuildError for cuda where torch can use no GPU."""
    found = torch.cuda.is_available()
    if choice == "cuda" and not found:
        raise BuildError("device=cuda: torch can use no GPU here; take device=auto or device=cpu")
    if choice == "cpu" or not found:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
