"""What one sample shows before a run starts: whether data, model and loss fit together.

A model and data that do not fit can train all the same, and every figure they give is wrong: float targets of one
output have a cross-entropy of exactly 0, a head of 1,000 outputs for 10 classes learns more slowly. So what the loss
cannot mean is refused here, for classes of cpdrun and of the user alike.

Legend: B samples (one), K classes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpdrun.train.build import BuildError, Parts


def check_sample(config: dict[str, Any], parts: Parts) -> None:
    """Raises BuildError, which names the part at fault, where the first training sample cannot be learnt from."""
    model, data = (config[part]["_target_"].rsplit(".", 1)[-1] for part in ("model", "data"))
    try:
        x_BxF, y_B = parts.batches.fetch(torch.tensor([0]), 0, 0)
    except Exception as error:
        raise BuildError(f"data: the first sample of {data} cannot be had: {_reason(error)}") from error
    _check_targets(data, y_B)
    parts.model.eval()
    try:
        with torch.no_grad():
            logits_BxK = parts.model(x_BxF)
    except Exception as error:
        raise BuildError(
            f"model: {model} does not take the samples of data {data}: {_reason(error)}"
        ) from error
    _check_outputs(model, data, logits_BxK, y_B, getattr(parts.data, "num_classes", None))


def _check_targets(data: str, y_B: Any) -> None:
    if not isinstance(y_B, Tensor) or y_B.dtype != torch.int64:
        kind = _described(y_B)
        raise BuildError(
            f"data: the targets of {data} are {kind}; the loss is cross-entropy over classes, which takes int64 class "
            "numbers from 0 (regression and other losses cannot be trained yet)"
        )


def _check_outputs(model: str, data: str, logits_BxK: Any, y_B: Tensor, classes: int | None) -> None:
    if not isinstance(logits_BxK, Tensor) or logits_BxK.dim() < 2:
        raise BuildError(
            f"model: {model} gives {_described(logits_BxK)}; the loss takes one tensor (samples, classes, ...)"
        )
    K = logits_BxK.shape[1]
    if K < 2:
        raise BuildError(
            f"model: {model} has one output, of which every cross-entropy is 0: it needs one for each class"
        )
    if classes is not None and classes != K:
        raise BuildError(
            f"model: {model} has {K} outputs for the {classes} classes of data {data}; give its class an argument "
            f"num_classes, or set the one it has to {classes}"
        )
    try:
        F.cross_entropy(logits_BxK.float(), y_B)
    except (RuntimeError, ValueError, IndexError) as error:
        raise BuildError(
            f"model: {model} gives {_described(logits_BxK)} for targets {_described(y_B)} of data {data}: "
            f"{_reason(error)}"
        ) from error


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    ours = isinstance(error, RuntimeError | ValueError | IndexError) and text
    return text if ours else f"{type(error).__name__}: {text}".rstrip(": ")
