"""What one sample shows before a run starts: whether data, model and task fit together.

A model and data that do not fit can train all the same, and every figure they give is wrong: float targets of one
output have a cross-entropy of exactly 0, a head of 1,000 outputs for 10 classes learns more slowly. So what the loss
cannot mean is refused here, for classes of cpdrun and of the user alike.
"""

from typing import Any

import torch

from cpdrun.train.build import BuildError, Parts


def check_sample(config: dict[str, Any], parts: Parts) -> None:
    """Raises BuildError, which names the part at fault, where the first training sample cannot be learnt from."""
    model, data, task = (config[part]["_target_"].rsplit(".", 1)[-1] for part in ("model", "data", "task"))
    try:
        batch = parts.batches.fetch(torch.tensor([0]), 0, 0)
        problem = parts.task.unfit_targets(batch)
    except Exception as error:
        raise BuildError(f"data: the first sample of {data} cannot be had: {_reason(error)}") from error
    if problem:
        raise BuildError(f"data: the targets of {data} {problem}")
    parts.model.eval()
    try:
        with torch.no_grad():
            outputs = parts.task.outputs(parts.model, batch)
    except Exception as error:
        raise BuildError(
            f"model: {model} does not take the samples of data {data}: {_reason(error)}"
        ) from error
    if problem := parts.task.unfit_outputs(outputs, batch):
        raise BuildError(f"model: {model} {problem}")
    try:
        with torch.no_grad():
            _check_figures(parts, outputs, batch)
    except Exception as error:
        raise BuildError(f"task: {task} cannot judge what {model} gives: {_reason(error)}") from error


def _check_figures(parts: Parts, outputs: Any, batch: Any) -> None:
    """Raises ValueError where the loss is no number, or the metrics are not those that the task declares."""
    task = parts.task
    loss = task.loss(outputs, batch)
    if loss.dim():
        raise ValueError(
            f"its loss is of shape {tuple(loss.shape)}; it must be one number, a mean over the batch"
        )
    given, declared = set(task.metrics(task.sums(outputs, batch))), set(task.measures)
    if given != declared:
        raise ValueError(
            f"its metrics are {', '.join(sorted(given))}; it declares {', '.join(sorted(declared))}"
        )
    for name in ("loss", task.judged_by):
        if name not in declared:
            raise ValueError(f"{name} must be among its metrics")


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    ours = isinstance(error, RuntimeError | ValueError | IndexError) and text
    return text if ours else f"{type(error).__name__}: {text}".rstrip(": ")
