"""What becomes of a gradient, whoever formed it: one optimizer, its weights and their precision."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cpdrun.train.precision.base import Precision


class Update:
    """Steps of one optimizer on `parameters`, in the way of a precision; longer gradients are cut to clip_norm."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        precision: Precision,
        clip_norm: float | None,
    ):
        self.optimizer, self.parameters, self.precision = optimizer, list(parameters), precision
        self.clip_norm = clip_norm
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]

    @property
    def scale(self) -> float:
        """What the loss of the next gradient is to be multiplied by."""
        return self.precision.loss_scale.value

    def __call__(
        self,
        gradient: Sequence[Tensor],
        nonfinite: int,
        lr_factor: float,
        correct: Callable[[Sequence[Tensor]], None] | None = None,
    ) -> None:
        """One step by the gradient of the scaled loss, of which so many elements are not finite; the loss scale may
        refuse it. Changes the gradient in place; `correct` may, between clipping and the step."""
        scale = self.scale
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base_lr * lr_factor
        if not self.precision.loss_scale.accept(nonfinite):
            self.precision.skip()
            return
        if scale != 1:
            torch._foreach_div_(gradient, scale)
        for parameter, g in zip(self.parameters, gradient, strict=True):
            parameter.grad = g
        if self.clip_norm is not None:
            self._clip()
        if correct is not None:
            correct(gradient)
        self.precision.step(self.optimizer, self.parameters)

    def _clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)

    def memory(self, model: nn.Module) -> dict[str, int]:
        """With parameters that require no gradient: part of the model, and no format's business."""
        memory = self.precision.memory(self.optimizer, self.parameters)
        frozen = sum(p.nbytes for p in model.parameters() if not p.requires_grad)
        return memory | {"model_bytes": memory["model_bytes"] + frozen}

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "precision": self.precision.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.precision.load_state_dict(state["precision"])
