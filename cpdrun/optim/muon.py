"""Muon for the matrices of hidden layers and AdamW for all other parameters, as the author of Muon recommends.

Muon (Keller Jordan, kellerjordan.github.io/posts/muon) updates a matrix by its orthogonalized momentum: some steps of a
Newton-Schulz iteration, in bfloat16, bring its singular values close to 1. Both optimizers are those of torch, and this
module assigns the parameters to them. A difference from Jordan's code: AdamW updates convolutions, which Jordan
flattens to matrices, because torch.optim.Muon accepts only matrices.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

KINDS = {"muon": torch.optim.Muon, "adamw": torch.optim.AdamW}


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for some parameters and AdamW for the others.

    The setting `update` of a parameter group, muon or adamw, chooses its optimizer. It comes from
    `parameter_groups` or from `settings_of`. The other settings of the group are those of that optimizer in
    torch.optim. Arguments with the prefix `adamw_` are settings of AdamW, and the others those of Muon.

    Args:
        params: float32 parameters, or parameter groups.
        lr: The learning rate of Muon.
        momentum: The momentum.
        nesterov: Whether the momentum is Nesterov's.
        weight_decay: The weight decay of Muon.
        ns_steps: The number of steps of the Newton-Schulz iteration.
        adjust_lr_fn: How the learning rate of a matrix depends on its shape, as in torch.optim.Muon.
        adamw_lr: The learning rate of AdamW.
        adamw_betas: The decay rates of the two moments.
        adamw_eps: The number that is added to the square root of the second moment.
        adamw_weight_decay: The weight decay of AdamW.
        adamw_parameters: Patterns for the names of matrices that AdamW updates.

    Raises:
        ValueError: Muon has no parameter, a parameter of Muon is not a matrix, or a setting is invalid.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
        ns_steps: int,
        adjust_lr_fn: str,
        adamw_lr: float,
        adamw_betas: Sequence[float],
        adamw_eps: float,
        adamw_weight_decay: float,
        adamw_parameters: Sequence[str],
    ):
        settings = {
            "muon": {
                "lr": lr,
                "momentum": momentum,
                "nesterov": nesterov,
                "weight_decay": weight_decay,
                "ns_steps": ns_steps,
                "adjust_lr_fn": adjust_lr_fn,
            },
            "adamw": {
                "lr": adamw_lr,
                "betas": tuple(adamw_betas),
                "eps": adamw_eps,
                "weight_decay": adamw_weight_decay,
            },
        }
        if not 0 <= ns_steps < 100:
            raise ValueError(f"optim.ns_steps must lie between 0 and 99, not {ns_steps}")
        groups: list[dict[str, Any]] = [
            dict(group) if isinstance(group, Mapping) else {"params": [group]} for group in params
        ]
        self._by: dict[str, torch.optim.Optimizer] = {}
        defaults: dict[str, Any] = {"update": "adamw"}
        for group in groups:
            if group.setdefault("update", "adamw") not in KINDS:
                raise ValueError(f"parameter_groups: update={group['update']} must be {' or '.join(KINDS)}")
        for update, kind in KINDS.items():
            if mine := [group for group in groups if group["update"] == update]:
                self._by[update] = kind(mine, **settings[update])  # also adds the defaults to the groups
                defaults |= self._by[update].defaults
        if "muon" not in self._by:
            raise ValueError(
                "Muon updates the matrices of hidden layers, but the model has none whose name does not match "
                f"optim.adamw_parameters={list(adamw_parameters)}; type optim=adamw"
            )
        super().__init__(groups, defaults)

    @staticmethod
    def settings_of(
        name: str, module: nn.Module, parameter: Tensor, arguments: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return which optimizer updates a parameter.

        Muon updates a matrix unless it is an embedding or its name matches a pattern of `adamw_parameters`.

        Args:
            name: The name of the parameter.
            module: The module that contains the parameter.
            parameter: The parameter.
            arguments: The arguments of `__init__`.
        """
        others = isinstance(module, nn.Embedding) or parameter.dim() != 2
        others = others or any(fnmatchcase(name, pattern) for pattern in arguments["adamw_parameters"])
        return {"update": "adamw" if others else "muon"}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # ignores closure
        for update, optimizer in self._by.items():
            # load_state_dict replaces the groups and the state of this optimizer, so pass them on.
            optimizer.param_groups = [group for group in self.param_groups if group["update"] == update]
            optimizer.state = self.state
            optimizer.step()
