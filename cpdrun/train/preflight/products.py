"""Which of a model's products rules reach (an accumulator, operands), and which are in float32 all the same.

Only layers that are exactly Linear or Conv can be replaced (custom_fp.modules). What a model multiplies elsewhere -
attention, a tied head, recurrent layers, transposed convolutions, functions called in a `forward` - is seen by watching
one sample go through: every operator of torch that multiplies is written down with the module that called it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from custom_fp.modules import LAYERS
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpdrun.train.build import Parts

# aten's products, by the beginnings of their names; those of the replaced layers are custom_fp's own operators
PRODUCTS = (
    *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr"),
    *("convolution", "conv_", "mkldnn_convolution", "cudnn_convolution", "_convolution"),
    *("_scaled_dot_product", "_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
    *("mkldnn_rnn", "_cudnn_rnn", "linear", "mkldnn_linear", "_trilinear"),
)
REPLACED = tuple(LAYERS.values())


def emulated_products(parts: Parts) -> dict[str, list[str]] | None:
    """`products_of` on the first training sample; None where no product is rounded. Changes no bit of the run:
    nothing is drawn and no statistic moves. Collective where the workers of a model lie on several ranks."""
    if not parts.precision.rounds_products:
        return None
    batch = parts.batches.fetch(torch.tensor([0]), 0, 0)
    return products_of(parts.model, lambda: parts.task.outputs(parts.model, batch))


def products_of(model: nn.Module, forward: Callable[[], object]) -> dict[str, list[str]]:
    """{"in the accumulator": [layers], "in float32": ["blocks.0 (Block): _scaled_dot_product_flash_attention", ...]}
    of the model's forward pass, which `forward` calls on a batch, with "operands rounded": [layers] where the sums of
    some are float32. The model is evaluated, without gradients, and left in the mode it was in."""
    replaced = {name or type(m).__name__: m for name, m in model.named_modules() if isinstance(m, REPLACED)}
    summed = [name for name, m in replaced.items() if m.arithmetic.accumulators]
    rounded = [name for name in replaced if name not in summed]
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), _entered(model) as innermost, _Products(innermost) as seen:
            forward()
    finally:
        model.train(training)
    reached = {"in the accumulator": summed, **({"operands rounded": rounded} if rounded else {})}
    return {**reached, "in float32": list(seen.found)}


class _Products(TorchDispatchMode):
    """Writes down every product that is dispatched, once for each module."""

    def __init__(self, innermost: Callable[[], str | None]) -> None:
        super().__init__()
        self.innermost = innermost
        self.found: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace in ("aten", "mkldnn") and _is_product(name) and (where := self.innermost()):
            self.found[f"{where}: {name}"] = None
        return func(*args, **kwargs or {})


def _is_product(name: str) -> bool:
    return any(name == known or (len(known) > 4 and name.startswith(known)) for known in PRODUCTS)


@contextmanager
def _entered(model: nn.Module) -> Iterator[Callable[[], str | None]]:
    """Gives a function that names the module entered last and not left; None for one whose products rules reach."""
    names = {module: name for name, module in model.named_modules()}
    stack: list[nn.Module] = []

    def enter(module: nn.Module, _: Any) -> None:
        stack.append(module)

    def leave(*_: Any) -> None:  # a hook that returned something would replace the layer's output
        stack.pop()

    def innermost() -> str | None:
        module = stack[-1] if stack else model
        if isinstance(module, REPLACED):
            return None
        name, kind = names.get(module, ""), type(module).__name__
        return f"{name} ({kind})" if name else kind

    hooks = [
        torch.nn.modules.module.register_module_forward_pre_hook(enter),
        torch.nn.modules.module.register_module_forward_hook(leave),
    ]
    try:
        yield innermost
    finally:
        for hook in hooks:
            hook.remove()
