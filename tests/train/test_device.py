"""The choice of a device."""

import pytest
import torch

from cpdrun.train.build import BuildError
from cpdrun.train.ranks.torch_settings import backend_for, select_device


@pytest.mark.parametrize("choice", ["auto", "cuda"])
def test_the_error_for_an_unsupported_gpu_names_packages_that_support_it(monkeypatch, choice):
    facts = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda device: "Tesla V100-SXM2-16GB",
        "get_device_capability": lambda device: (7, 0),
        "get_arch_list": lambda: ["sm_75", "sm_80", "sm_90", "compute_120"],
    }
    for name, fact in facts.items():
        monkeypatch.setattr(torch.cuda, name, fact)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    with pytest.raises(BuildError, match=r"V100.* 7\.0.*needs 7\.5 .*for CUDA 12 .*\+cu12N.*cupy-cuda12x"):
        select_device(choice)
    assert select_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "ranks", "gpus", "backend"),
    [("cuda", 4, 4, "nccl"), ("cuda", 4, 2, "gloo"), ("cuda", None, 1, "nccl"), ("cpu", 2, 4, "gloo")],
)
def test_ranks_that_share_a_gpu_use_gloo(monkeypatch, device, ranks, gpus, backend):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert backend_for(torch.device(device)) == backend
