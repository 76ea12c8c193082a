"""The layers of a model that rules can select, and the operations that the model's modules call.

    Linear, Conv1d/2d/3d    Layers of exactly these classes, with three products each (custom_fp.layers.products).
    Embedding               The rows that are looked up (role weight), and their gradient.
    MultiheadAttention      Its projections. If query, key and value are the same tensor, one product projects them.
    scaled_dot_product_attention   The attention of a MultiheadAttention, and of any module that calls this function. It
                            has the products NAME.scores, which multiplies query (role input) and key (role weight), and
                            NAME.values, which multiplies probabilities (role input) and value (role weight).
    matmul()                The matrix products that a module computes in its own forward: torch.matmul and @, mm, bmm,
                            mv, addmm and baddbmm, as in the Conv1D of transformers' GPT-2. The first factor is the
                            input, and the second one is the weight.
    einsum()                torch.einsum of two tensors, the input and the weight. No tensor may have a dimension twice,
                            and every dimension that only one tensor has must be in the result.
    linear()                F.linear, as for an output layer whose weight is tied to an embedding, or for a router.
    conv()                  F.conv1d, F.conv2d and F.conv3d.
    grouped_mm()            F.grouped_mm and torch._grouped_mm, the products of a mixture of experts. Each group is
                            rounded like a separate layer, so blocks and scales never span two experts. The tokens
                            are the input.
    softmax(), cross_entropy(), add()
                            The results of these functions (role activation) and the gradients of the results (role
                            error). add() is the sum of two floating-point tensors, as in a residual stream.
    normalization layers    The affine weight (role weight) of any module without submodules whose `weight` is a vector,
                            such as LayerNorm and the RMSNorm classes of model libraries.

The name of an operation, such as NAME.matmul(), begins with the name of the innermost module whose forward is running.
Calls inside PyTorch's own layers, such as the F.linear of a Linear layer, are never selected. Products of integer
tensors, and matrix products whose summed dimension has size 1 (as for rotary embeddings), are never rounded. If
torch.utils.checkpoint is applied to a function within a module, operations that are recomputed in the backward pass are
not rounded, so apply it to whole modules.

A pattern that ends in (), such as matmul(), selects the operations of all modules, and blocks.*.matmul() those of some.
The recipe's key `operations` (true, or a list such as [grouped_mm(), linear()]) lets each rule for * without `first` or
`last` select operations as well, and a rule for router or output_head select the operations of these parts. softmax(),
cross_entropy() and add() are not included, so rules must name them.

Other products of a model stay in float32: recurrent and bilinear layers, transposed convolutions, and other functions
that a `forward` method calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import nn

from custom_fp.layers.attachment import class_of
from custom_fp.layers.embedding import QuantEmbedding
from custom_fp.layers.modules import LAYERS, Quantized
from custom_fp.layers.multihead_attention import QuantMultiheadAttention
from custom_fp.layers.operations import PARTS, RESULT_PARTS, SCORES, SDPA, VALUES
from custom_fp.layers.products import FORWARD, PRODUCTS, WEIGHT_GRADIENT
from custom_fp.layers.products import ROLES as PRODUCT_ROLES
from custom_fp.layers.rounded_weight import RoundedWeight, is_normalization
from custom_fp.recipe.model_parts import parts_of

OTHERS = {nn.Embedding: QuantEmbedding, nn.MultiheadAttention: QuantMultiheadAttention}
KINDS = LAYERS | OTHERS
ROLES = {**PRODUCT_ROLES, "accumulator": PRODUCTS, "activation": (), "error": (), "parameter": ()}
EMBEDDING_PRODUCTS = {
    "weight": (FORWARD,),
    "output_gradient": (WEIGHT_GRADIENT,),
    "result": (FORWARD, WEIGHT_GRADIENT),
}
CALL = "()"
_WILDCARD = re.compile(r"[*?]+")


@dataclass(frozen=True)
class Layer:
    """A module of a model, or one of the operations that it calls.

    The properties of a layer depend on the user's class of the module, even if the attached rounding, fully_shard or a
    parametrization has replaced this class.

    Attributes:
        module: The module.
        names: All names that the module, or this operation of the module, has in the model.
        part: The operation, such as `scores` or `matmul()`, or None for the module itself.
        model_part: `output_head`, `router` or `attention_output` (model_parts.py), or None for other modules.
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
        """The name of the module's class or of the operation. Both products of attention have the same kind."""
        if self.part is None:
            return class_of(self.module).__name__
        return SDPA if self.part in (SCORES, VALUES) else self.part

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names that select the layer as a model part, such as output_head or router.linear()."""
        if self.model_part is None:
            return ()
        return (self.model_part if self.part is None else f"{self.model_part}.{self.part}",)

    @property
    def is_call(self) -> bool:
        """Whether only a pattern with parentheses, such as matmul() or *.matmul(), can select this operation."""
        return self.part is not None and self.part.endswith(CALL)

    @property
    def rounding_class(self) -> type[Quantized] | None:
        """The class whose forward rounds the computations of the module, or None if the module cannot be rounded."""
        if class_of(self.module) in KINDS:
            return KINDS[class_of(self.module)]
        return RoundedWeight if is_normalization(self.module) else None

    @property
    def multiplies(self) -> bool:
        """Whether the layer has operands that can be rounded, such as the affine weight of a normalization layer."""
        if self.part is not None:
            return self.part not in RESULT_PARTS
        return self.rounding_class is not None

    @property
    def must_be_named(self) -> bool:
        """Whether rules must name this kind of layer, because a wildcard such as * does not select its operands."""
        return self.part is not None or (self.multiplies and class_of(self.module) not in LAYERS)

    def products(self, role: str) -> tuple[str, ...]:
        """Return the products of the layer in which a role is used."""
        if self.part is None and self.rounding_class is RoundedWeight:
            return (FORWARD,) if role == "weight" else ()
        if class_of(self.module) is nn.Embedding:
            return EMBEDDING_PRODUCTS.get(role, ())
        return ROLES[role]

    def takes(self, role: str) -> bool:
        """Return whether a rule with this role can select the layer."""
        if ROLES[role]:
            return self.multiplies and bool(self.products(role))
        if self.part is not None:
            return self.part in RESULT_PARTS and role in ("activation", "error")
        if role == "parameter":
            stored = (*self.module.parameters(False), *self.module.buffers(False))
            return any(
                x.requires_grad or (x.is_floating_point() and not isinstance(x, nn.Parameter)) for x in stored
            )
        return not list(self.module.children())


def layers_of(model: nn.Module) -> list[Layer]:
    """Return the layers of a model and the operations that its modules may call, in the order of its modules."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    layers, parts = [], parts_of(model)
    for module, module_names in names.items():
        layers.append(Layer(module, tuple(module_names), None, parts.get(module)))
        for part in operations_called_by(module):
            part_names = tuple(f"{n}.{part}".lstrip(".") for n in module_names)
            layers.append(Layer(module, part_names, part, parts.get(module)))
    return layers


def operations_called_by(module: nn.Module) -> tuple[str, ...]:
    """Return the operations that a module may call in its own forward.

    MultiheadAttention calls the two products of attention. The other classes of torch.nn and of this package call no
    operations, and neither do TorchScript modules. All other modules may call any operation.
    """
    if class_of(module) is nn.MultiheadAttention:
        return SCORES, VALUES
    if isinstance(module, torch.jit.ScriptModule):  # TorchScript calls functions without Python
        return ()
    is_pytorchs = class_of(module).__module__.startswith(("torch.nn.", "custom_fp."))
    return () if is_pytorchs else PARTS


def ends_in_name(pattern: str) -> bool:
    """Return whether the last part of a pattern is more than a wildcard. This is true for *.attn, but not blocks.*."""
    return _WILDCARD.fullmatch(pattern.rpartition(".")[2]) is None
