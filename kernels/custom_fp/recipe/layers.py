"""What of a model rules can mean: its modules, and the two products of each attention.

    Linear, Conv1d/2d/3d    layers that are exactly of these classes; their three products (custom_fp.layers.products)
    Embedding               the rows that are looked up (weight) and the gradient that arrives at them
    MultiheadAttention      its projections, q, k and v as one where they are of one tensor
    scaled_dot_product_attention   of whatever module calls it, and of a MultiheadAttention: the products NAME.scores,
                            q (input) by k (weight), and NAME.values, the probabilities (input) by v (weight)

What a model multiplies elsewhere (recurrent and bilinear layers, transposed convolutions, functions called in a
`forward`, a tied head) stays as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from custom_fp.layers.attention import SCORES, SDPA, VALUES, QuantMultiheadAttention
from custom_fp.layers.lookup import QuantEmbedding
from custom_fp.layers.modules import LAYERS
from custom_fp.layers.products import FORWARD, PRODUCTS, WEIGHT_GRADIENT
from custom_fp.layers.products import ROLES as OF_PRODUCTS

OTHERS = {nn.Embedding: QuantEmbedding, nn.MultiheadAttention: QuantMultiheadAttention}
KINDS = LAYERS | OTHERS
ROLES = {**OF_PRODUCTS, "accumulator": PRODUCTS, "activation": (), "error": (), "parameter": ()}
OF_EMBEDDINGS = {
    "weight": (FORWARD,),
    "output_gradient": (WEIGHT_GRADIENT,),
    "result": (FORWARD, WEIGHT_GRADIENT),
}
_WILD = re.compile(r"[*?]+")


@dataclass(frozen=True)
class Layer:
    """A module of the model with all names that it has, or one of the two products of its attention (`part`) with their
    names. The class that counts is the user's, `module.__class__`, whatever is attached to the module."""

    module: nn.Module
    names: tuple[str, ...]
    part: str | None = None

    @property
    def path(self) -> str:
        """Of the module, in its model."""
        name = self.names[0]
        return name if self.part is None else name[: -len(self.part)].rstrip(".")

    @property
    def kind(self) -> str:
        return SDPA if self.part else self.module.__class__.__name__

    @property
    def multiplies(self) -> bool:
        """Whether its products can be rounded."""
        return self.part is not None or self.module.__class__ in KINDS

    @property
    def must_be_named(self) -> bool:
        """Whether a pattern such as * does not mean its products: those of Linear and Conv layers are what all mean."""
        return self.part is not None or self.module.__class__ in OTHERS

    def products(self, role: str) -> tuple[str, ...]:
        """Those that a role of products takes part in."""
        if self.module.__class__ is nn.Embedding:
            return OF_EMBEDDINGS.get(role, ())
        return ROLES[role]

    def takes(self, role: str) -> bool:
        """Whether a rule of this role can mean it."""
        if ROLES[role]:
            return self.multiplies and bool(self.products(role))
        if self.part is not None:
            return False
        if role == "parameter":
            kept = (*self.module.parameters(False), *self.module.buffers(False))
            return any(
                x.requires_grad or (x.is_floating_point() and not isinstance(x, nn.Parameter)) for x in kept
            )
        return not list(self.module.children())


def layers_of(model: nn.Module) -> list[Layer]:
    """In the order of the model's modules."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    layers = []
    for module, of_module in names.items():
        layers.append(Layer(module, tuple(of_module)))
        if may_attend(module):
            for part in (SCORES, VALUES):
                layers.append(Layer(module, tuple(f"{n}.{part}".lstrip(".") for n in of_module), part))
    return layers


def may_attend(module: nn.Module) -> bool:
    """Whether it may call scaled_dot_product_attention: it is a MultiheadAttention, or no layer of torch's."""
    if module.__class__ is nn.MultiheadAttention:
        return True
    return not module.__class__.__module__.startswith(("torch.nn.", "custom_fp."))


def names_something(pattern: str) -> bool:
    """Whether the last part of a pattern is more than a wildcard: *.attn and Embedding, but not blocks.*"""
    return _WILD.fullmatch(pattern.rpartition(".")[2]) is None
