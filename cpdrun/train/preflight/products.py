"""Which of a model's products rules reach (an accumulator, operands), and which are in float32 all the same.

What a model multiplies where no rule reaches or can reach (custom_fp.recipe.layers) - attention, a tied head, recurrent
layers, transposed convolutions, functions called in a `forward` - is seen by watching one sample go through: every
operator of torch that multiplies is written down with the module that called it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from custom_fp.layers.attention import SCORES, VALUES
from custom_fp.layers.modules import LAYERS
from custom_fp.layers.products import Arithmetic
from custom_fp.recipe.layers import OTHERS
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpdrun.train.build import Parts
from cpdrun.train.instantiate import naming

# aten's products, by the beginnings of their names; those of the replaced layers are custom_fp's own operators
PRODUCTS = (
    *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr"),
    *("convolution", "conv_", "mkldnn_convolution", "cudnn_convolution", "_convolution"),
    *("_scaled_dot_product", "_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
    *("mkldnn_rnn", "_cudnn_rnn", "linear", "mkldnn_linear", "_trilinear"),
)
REPLACED = tuple(LAYERS.values())
MAY_BE_REPLACED = tuple(OTHERS.values())


def emulated_products(parts: Parts) -> dict[str, list[str]] | None:
    """`products_of` on the first training sample; None where no product is rounded. Changes no bit of the run:
    nothing is drawn and no statistic moves. Raises BuildError for a rule of attention that no call
    met. Collective where the workers of a model lie on several ranks."""
    if not parts.precision.rounds_products:
        return None
    batch = parts.batches.fetch(torch.tensor([0]), 0, 0)
    products = products_of(parts.model, lambda: parts.task.outputs(parts.model, batch))
    with naming("precision"):
        parts.precision.check_called()
    return products


def products_of(model: nn.Module, forward: Callable[[], object]) -> dict[str, list[str]]:
    """{"in the accumulator": [layers], "in float32": ["blocks.0 (Block): _scaled_dot_product_flash_attention", ...]}
    of the model's forward pass, which `forward` calls on a batch, with "operands rounded": [layers] where the sums of
    some are float32. The model is evaluated, without gradients, and left in the mode it was in."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), entered(model) as place, _Products(place.unreached) as seen:
            forward()
    finally:
        model.train(training)
    found = arithmetics(model)
    summed = [name for name, arithmetic in found.items() if arithmetic.accumulators]
    rounded = [name for name in found if name not in summed]
    reached = {"in the accumulator": summed, **({"operands rounded": rounded} if rounded else {})}
    return {**reached, "in float32": list(seen.found)}


def arithmetics(model: nn.Module) -> dict[str, Arithmetic]:
    """That of each layer, and of each product of attention, that rules have replaced, by its name."""
    found = {}
    for name, module in model.named_modules():
        name, attention = name or type(module).__name__, module.__dict__.get("attention_products")
        if isinstance(module, REPLACED) or (isinstance(module, MAY_BE_REPLACED) and module.arithmetic):
            found[name] = module.arithmetic
        for part in (SCORES, VALUES) if attention and attention.called else ():
            if arithmetic := getattr(attention, part):
                found[f"{name}.{part}"] = arithmetic
    return found


class _Products(TorchDispatchMode):
    """Writes down every product that is dispatched, once for each module."""

    def __init__(self, innermost: Callable[[], str | None]) -> None:
        super().__init__()
        self.innermost = innermost
        self.found: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace in ("aten", "mkldnn") and is_product(name) and (where := self.innermost()):
            self.found[f"{where}: {name}"] = None
        return func(*args, **kwargs or {})


def is_product(name: str) -> bool:
    return any(name == known or (len(known) > 4 and name.startswith(known)) for known in PRODUCTS)


@dataclass
class Place:
    """Where a forward pass is: the modules that were entered and not left, and the product by rules that is formed."""

    names: dict[nn.Module, str]
    model: nn.Module
    stack: list[nn.Module] = field(default_factory=list)
    products: list[tuple[Arithmetic, bool, bool]] = field(
        default_factory=list
    )  # whether x and w need a gradient

    @property
    def innermost(self) -> nn.Module:
        return self.stack[-1] if self.stack else self.model

    def described(self) -> str:
        module = self.innermost
        name, kind = self.names.get(module, ""), type(module).__name__
        return f"{name} ({kind})" if name else kind

    def unreached(self) -> str | None:
        """The module entered last; None for one whose products rules reach, and within a product that they do."""
        within = any(bool(arithmetic) for arithmetic, _, _ in self.products)
        return None if within or isinstance(self.innermost, REPLACED) else self.described()


@contextmanager
def entered(model: nn.Module) -> Iterator[Place]:
    """Follows forward passes of the model."""
    place = Place({module: name for name, module in model.named_modules()}, model)
    multiply = Arithmetic.multiply

    def watched(arithmetic: Arithmetic, kernel: Any, x: Tensor, w: Tensor, *layout: Any, **named: Any) -> Any:
        place.products.append((arithmetic, x.requires_grad, w.requires_grad))
        try:
            return multiply(arithmetic, kernel, x, w, *layout, **named)
        finally:
            place.products.pop()

    def enter(module: nn.Module, _: Any) -> None:
        place.stack.append(module)

    def leave(*_: Any) -> None:  # a hook that returned something would replace the layer's output
        place.stack.pop()

    hooks = [
        torch.nn.modules.module.register_module_forward_pre_hook(enter),
        torch.nn.modules.module.register_module_forward_hook(leave),
    ]
    Arithmetic.multiply = watched
    try:
        yield place
    finally:
        Arithmetic.multiply = multiply
        for hook in hooks:
            hook.remove()
