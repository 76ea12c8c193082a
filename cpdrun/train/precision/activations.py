"""What a network keeps of a batch between its forward and its backward pass."""

from collections.abc import Callable

import torch
from torch import nn

from cpdrun.comm.compressors.bitpack import packed_bytes
from cpdrun.models.normed.norms import is_norm


def activation_bytes(model: nn.Module, forward: Callable[[], object], bits: int | None) -> int:
    """Bytes of what enters the Linear, Conv2d and normalisation layers, `bits` a value (None: float32), where `forward`
    calls the model with a batch: each of them needs its input again, to form gradients. A value that enters two layers
    counts twice; the model is left as it is."""
    kept = 0

    def count(_module: nn.Module, inputs: tuple) -> None:
        nonlocal kept
        kept += packed_bytes(inputs[0].numel(), bits or 32)

    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d) or is_norm(m)]
    hooks = [layer.register_forward_pre_hook(count) for layer in layers]
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            forward()
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return kept
