"""The layers of a model that rules can select.

    Linear, Conv1d/2d/3d    Layers of exactly these classes, with three products each (custom_fp.layers.products).
    Embedding               The rows that are looked up (role weight), and their gradient.
    MultiheadAttention      Its projections. If query, key and value are the same tensor, one product projects them.
    scaled_dot_product_attention   The attention of a MultiheadAttention, and of any module that calls this function. It
                            has the products NAME.scores, which multiplies query (role input) and key (role weight), and
                            NAME.values, which multiplies probabilities (role input) and value (role weight).

Other products of a model stay in float32: recurrent and bilinear layers, transposed convolutions, functions that a
`forward` method calls, and an output layer whose weight is tied to an embedding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from custom_fp.layers.attention import SCORES, SDPA, VALUES, QuantMultiheadAttention
from custom_fp.layers.embedding import QuantEmbedding
from custom_fp.layers.modules import LAYERS
from custom_fp.layers.products import FORWARD, PRODUCTS, WEIGHT_GRADIENT
from custom_fp.layers.products import ROLES as PRODUCT_ROLES
from custom_fp.recipe.model_parts import parts_of

OTHERS = {nn.Embedding: QuantEmbedding, nn.MultiheadAttention: QuantMultiheadAttention}
KINDS = LAYERS | OTHERS
ROLES = {**PRODUCT_ROLES, "accumulator": PRODUCTS, "activation": (), "error": (), "parameter": ()}
EMBEDDING_PRODUCTS = {
    "weight": (FORWARD,),
    "output_gradient": (WEIGHT_GRADIENT,),
    "result": (FORWARD, WEIGHT_GRADIENT),
}
_WILDCARD = re.compile(r"[*?]+")


@dataclass(frozen=True)
class Layer:
    """A module of a model, or one of the two products of its attention.

    The class of a module is always the user's class, `module.__class__`, even if rounding is attached to the module.

    Attributes:
        module: The module.
        names: All names under which the model contains the module, or this product of its attention.
        part: `scores` or `values` for a product of the module's attention, and None for the module itself.
        model_part: `output_head`, `router` or `attention_output` if the module is one (model_parts.py), or else None.
    """

    module: nn.Module
    names: tuple[str, ...]
    part: str | None = None
    model_part: str | None = None

    @property
    def path(self) -> str:
        """The name of the module in its model."""
        name = self.names[0]
        return name if self.part is None else name[: -len(self.part)].rstrip(".")

    @property
    def kind(self) -> str:
        """The class of the module, or scaled_dot_product_attention."""
        return SDPA if self.part else self.module.__class__.__name__

    @property
    def multiplies(self) -> bool:
        """Whether the layer has products that can be rounded."""
        return self.part is not None or self.module.__class__ in KINDS

    @property
    def must_be_named(self) -> bool:
        """Whether rules must name this kind of layer, because a wildcard such as * does not select its products."""
        return self.part is not None or self.module.__class__ in OTHERS

    def products(self, role: str) -> tuple[str, ...]:
        """Return the products of the layer in which a role is used."""
        if self.module.__class__ is nn.Embedding:
            return EMBEDDING_PRODUCTS.get(role, ())
        return ROLES[role]

    def takes(self, role: str) -> bool:
        """Return whether a rule with this role can select the layer."""
        if ROLES[role]:
            return self.multiplies and bool(self.products(role))
        if self.part is not None:
            return False
        if role == "parameter":
            stored = (*self.module.parameters(False), *self.module.buffers(False))
            return any(
                x.requires_grad or (x.is_floating_point() and not isinstance(x, nn.Parameter)) for x in stored
            )
        return not list(self.module.children())


def layers_of(model: nn.Module) -> list[Layer]:
    """Return the layers of a model, in the order of its modules."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    layers, parts = [], parts_of(model)
    for module, module_names in names.items():
        layers.append(Layer(module, tuple(module_names), model_part=parts.get(module)))
        if may_attend(module):
            for part in (SCORES, VALUES):
                layers.append(Layer(module, tuple(f"{n}.{part}".lstrip(".") for n in module_names), part))
    return layers


def may_attend(module: nn.Module) -> bool:
    """Return whether a module may call scaled_dot_product_attention.

    MultiheadAttention does. Any module whose class is not defined by PyTorch might do so.
    """
    if module.__class__ is nn.MultiheadAttention:
        return True
    return not module.__class__.__module__.startswith(("torch.nn.", "custom_fp."))


def ends_in_name(pattern: str) -> bool:
    """Return whether the last part of a pattern is more than a wildcard. This is true for *.attn, but not blocks.*."""
    return _WILDCARD.fullmatch(pattern.rpartition(".")[2]) is None
