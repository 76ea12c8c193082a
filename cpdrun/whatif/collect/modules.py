"""Describe a model's layers, and record their operands with hooks.

A description contains everything about a layer that precision rules need, so the effects of a config can be computed
without the model. The hooks record the inputs of Linear and Conv layers and the gradients of their outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from custom_fp.recipe.layers import ROLES, Layer, layers_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_pre_hook

from cpdrun.models.normed.norms import is_norm

_RECORDED_CLASSES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def describe_layers(model: nn.Module) -> list[dict[str, Any]]:
    """Describe each layer of a model in JSON.

    `LayerDescription.of` restores the layers. The model may or may not have been prepared for a precision.
    """
    name_of = {id(p): name for name, p in model.named_parameters()}
    found = []
    for layer in layers_of(model):
        held = () if layer.part else layer.module.parameters(recurse=False)
        found.append(
            {
                "names": list(layer.names),
                "part": layer.part,
                "model_part": layer.model_part,
                "kind": layer.kind,
                "must_be_named": layer.must_be_named,
                "products": {r: list(layer.products(r)) for r in ROLES if layer.takes(r)},
                "is_norm": layer.part is None and is_norm(layer.module),
                "parameters": [name_of[id(p)] for p in held if id(p) in name_of and p.requires_grad],
            }
        )
    return found


@dataclass(frozen=True)
class LayerDescription(Layer):
    """A layer that was restored from its description. Its `module` is a placeholder.

    Attributes:
        called: The class name of the layer, or the name of its attention function.
        named: Whether only a rule that names the layer matches its products (`Layer.must_be_named`).
        takes_part: Pairs of a role and the products that have an operand of this role.
        is_norm: Whether the layer is a normalization layer.
        parameters: The names of the layer's own trainable parameters.
    """

    called: str = ""
    named: bool = False
    takes_part: tuple[tuple[str, tuple[str, ...]], ...] = ()
    is_norm: bool = False
    parameters: tuple[str, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> LayerDescription:
        """Restore a layer from its description by `describe_layers`."""
        products = tuple((role, tuple(of_role)) for role, of_role in facts["products"].items())
        return cls(
            nn.Identity(),
            tuple(facts["names"]),
            facts["part"],
            facts.get("model_part"),
            facts["kind"],
            facts["must_be_named"],
            products,
            facts["is_norm"],
            tuple(facts["parameters"]),
        )

    @property
    def kind(self) -> str:
        return self.called

    @property
    def must_be_named(self) -> bool:
        return self.named

    @property
    def multiplies(self) -> bool:
        return any(products for _, products in self.takes_part)

    def products(self, role: str) -> tuple[str, ...]:
        return dict(self.takes_part).get(role, ())

    def takes(self, role: str) -> bool:
        return role in dict(self.takes_part)


class OperandRecorder:
    """Record the operands of Linear and Conv layers, if this rank emulates worker 0 (`here`).

    A layer has a hook only while it computes, so that a model that is saved or copied between its calls has none.

    Attributes:
        layers: The names of the layers to record, keyed by module.
        handle: The handle of the hook that torch calls before every module; None while nothing is recorded.
        hooks: The handles of the hooks of the layers that are computing.
        calls: The number of calls of the model since `open`.
        attends: Whether the model called scaled_dot_product_attention, whose operands are not recorded.
        found: The recorded tensors as found[role][layer].
    """

    def __init__(self, model: nn.Module, here: bool):
        self.model = model
        self.layers = {
            m: name for name, m in model.named_modules() if here and isinstance(m, _RECORDED_CLASSES)
        }
        self.handle: Any = None
        self.hooks: dict[nn.Module, Any] = {}
        self.calls = 0
        self.attends = False
        self.found: dict[str, dict[str, list[Tensor]]] = {}

    def open(self) -> None:
        """Start recording. Only the first worker that calls the model is recorded."""
        self.calls, self.found = 0, {"activation": {}, "output_gradient": {}}
        if not self.layers:
            return
        self.handle = register_module_forward_pre_hook(self._before_call)
        self.attention, F.scaled_dot_product_attention = F.scaled_dot_product_attention, self._attend

    def close(self) -> dict[str, dict[str, Tensor]]:
        """Stop recording, and return the tensors as {role: {layer: values}}.

        The roles are activation and output_gradient; a role without values is left out. If a layer was called several
        times, its tensors are flattened and concatenated.
        """
        if self.handle is not None:
            F.scaled_dot_product_attention = self.attention
            self.handle.remove()
        for module in list(self.hooks):
            self._remove_hook(module)
        found, self.found, self.handle = self.found, {}, None
        return {
            role: {name: torch.cat([x.reshape(-1) for x in tensors]) for name, tensors in of.items()}
            for role, of in found.items()
            if of
        }

    def _attend(self, *args: Any, **kwargs: Any) -> Tensor:
        self.attends = True
        return self.attention(*args, **kwargs)

    def _before_call(self, module: nn.Module, _inputs: tuple) -> None:
        if module is self.model and self.counts():
            self.calls += 1
        if module in self.layers:
            self._remove_hook(module)  # of a call that raised an exception
            self.hooks[module] = module.register_forward_hook(self._hook(self.layers[module]))

    def _remove_hook(self, module: nn.Module) -> None:
        if hook := self.hooks.pop(module, None):
            hook.remove()

    def counts(self) -> bool:
        """Return True if the model's current call belongs to a training step.

        Subclasses may exclude calls for evaluation.
        """
        return True

    def _hook(self, name: str) -> Any:
        def see(module: nn.Module, inputs: tuple, output: Tensor) -> None:
            self._remove_hook(module)
            if self.calls > 1 or not self.counts() or not inputs or not isinstance(inputs[0], Tensor):
                return
            found = self.found
            found["activation"].setdefault(name, []).append(_of_worker_0(inputs[0]))
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(
                    lambda g: found["output_gradient"].setdefault(name, []).append(_of_worker_0(g))
                )

        return see


def _of_worker_0(x: Tensor) -> Tensor:
    """Copy a tensor, or only worker 0's part if vmap batches the workers."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        place = functorch.maybe_get_bdim(x) if functorch.is_batchedtensor(x) else None
        x = functorch.get_unwrapped(x)
        x = x if place is None else x.select(place, 0)
    return x.detach().clone()
