"""Muon for the matrices of hidden layers, AdamW for everything else, as Muon's author has it.

Muon (Keller Jordan, kellerjordan.github.io/posts/muon) moves a matrix by its momentum made orthogonal: steps of a
Newton-Schulz iteration, in bfloat16, bring its singular values near 1. Both are torch's own optimizers; what is here
says which parameter is whose. Convolutions, which Jordan flattens to matrices, are AdamW's: torch.optim.Muon takes
matrices alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

KINDS = {"muon": torch.optim.Muon, "adamw": torch.optim.AdamW}


class MuonAndAdamW(torch.optim.Optimizer):
    """float32 parameters. A group has `update`, muon or adamw: what parameter_groups says of it, else `settings_of`.

    Its other settings are those of torch's optimizer of that name; of the arguments the ones with `adamw_` are AdamW's,
    the others Muon's. Raises ValueError where no parameter is Muon's, or one that is no matrix, and for a setting that
    torch refuses.
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
        groups = [dict(group) if isinstance(group, Mapping) else {"params": [group]} for group in params]
        self._by = {}
        defaults: dict[str, Any] = {"update": "adamw"}
        for group in groups:
            if group.setdefault("update", "adamw") not in KINDS:
                raise ValueError(f"parameter_groups: update={group['update']} must be {' or '.join(KINDS)}")
        for update, kind in KINDS.items():
            if mine := [group for group in groups if group["update"] == update]:
                self._by[update] = kind(mine, **settings[update])  # fills in the groups' settings
                defaults |= self._by[update].defaults
        if "muon" not in self._by:
            raise ValueError(
                "Muon moves the matrices of hidden layers, and no parameter is one that optim.adamw_parameters = "
                f"{list(adamw_parameters)} leaves to it; type optim=adamw"
            )
        super().__init__(groups, defaults)

    @staticmethod
    def settings_of(
        name: str, module: nn.Module, parameter: Tensor, arguments: Mapping[str, Any]
    ) -> dict[str, str]:
        """Whose a parameter of `module` is; arguments: those of __init__. A matrix is Muon's unless it is an embedding
        or one of the patterns adamw_parameters matches its name."""
        others = isinstance(module, nn.Embedding) or parameter.dim() != 2
        others = others or any(fnmatchcase(name, pattern) for pattern in arguments["adamw_parameters"])
        return {"update": "adamw" if others else "muon"}

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:
        for update, optimizer in self._by.items():
            # a state that was loaded came with groups of its own
            optimizer.param_groups = [group for group in self.param_groups if group["update"] == update]
            optimizer.state = self.state
            optimizer.step()
