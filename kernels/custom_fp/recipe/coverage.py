"""Coverage: the shares of a model's multiply-accumulates that read each number format, counted while the model runs.

    coverage = applied.coverage(model, input_ids)
    dict(coverage)       # {"nvfp4": 0.86, "bf16": 0.14, "float32": 0.0}
    print(coverage)      # also lists the products in float32, and the layers that rules name but the model never called

A `MacCounter` records every operator of PyTorch that multiplies matrices, in the forward and in the backward pass, with
the module that called it. If a rule rounds the operands of a product, the formats of the rule are counted. Otherwise,
the dtypes of the operands are counted, as for products under torch.autocast.

The counts are computed from the shapes of the operands. Products that a kernel computes again to save memory (fused
attention) are counted once. Sums without a product, the softmax and the optimizer's step are not counted. Causal
attention is counted as if no key were masked, and padding that a Hadamard transform adds is counted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from custom_fp.formats.scaled_format import base_name
from custom_fp.layers import products
from custom_fp.layers.attention import SCORES, VALUES
from custom_fp.layers.products import FORWARD, INPUT_GRADIENT, OPERANDS, WEIGHT_GRADIENT, Arithmetic
from custom_fp.recipe.placement import Placement

FLOAT32 = "float32"
_DTYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "e4m3fn",
    torch.float8_e5m2: "e5m2",
}


class Product(NamedTuple):
    """The products that one operator computes in one place of a model.

    Attributes:
        formats: The formats of the operands, joined by " x " if they differ.
        operator: The operator, such as aten.mm.
        place: The name of the module that called the operator, with * in place of numbers.
    """

    formats: str
    operator: str
    place: str


class Coverage(Mapping[str, float]):
    """The share of the multiply-accumulates that read each format. Iteration starts with the largest share.

    The key is the format of both operands, or "A x B" if their formats differ. Options of a format are left out, so
    nvfp4_2d counts as nvfp4. "float32" is always a key.

    Attributes:
        macs: The number of multiply-accumulates of each `Product`.
        never_called: The layers that rules round, but that the model did not call. Their weights may have been used in
            another way, for example by F.linear(x, layer.weight).
        uncounted: Operators that multiply but whose multiply-accumulates cannot be counted, and where they were called.
    """

    def __init__(
        self, macs: Mapping[Product, int], never_called: Sequence[str], uncounted: Sequence[str]
    ) -> None:
        self.macs, self.never_called, self.uncounted = dict(macs), list(never_called), list(uncounted)
        totals = Counter({FLOAT32: 0})
        for product, count in self.macs.items():
            totals[product.formats] += count
        self.total = sum(totals.values())
        self._shares = {name: count / max(self.total, 1) for name, count in totals.most_common()}

    def __getitem__(self, name: str) -> float:
        return self._shares[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shares)

    def __len__(self) -> int:
        return len(self._shares)

    @property
    def rounded(self) -> float:
        """The share of the multiply-accumulates with at least one operand that is not float32."""
        return 1 - self[FLOAT32] if self.total else 0.0

    def in_float32(self) -> dict[str, float]:
        """Return the shares of the products that read float32, such as "aten.mm in blocks.*.mlp", largest first."""
        shares: Counter[str] = Counter()
        for product, count in self.macs.items():
            if product.formats == FLOAT32:
                shares[f"{product.operator} in {product.place}"] += count
        return {where: count / self.total for where, count in shares.most_common()}

    def summary(self) -> str:
        """Return the shares in one line, such as "nvfp4 86 %, bf16 14 %, float32 0 %"."""
        return ", ".join(f"{name} {_percent(share)}" for name, share in self.items())

    def __str__(self) -> str:
        lines = [self.summary()]
        lines += [f"  in float32: {where} {_percent(share)}" for where, share in self.in_float32().items()]
        never_called = Counter(map(_pattern, self.never_called))
        lines += [f"  named by rules, never called: {name} ({count})" for name, count in never_called.items()]
        lines += [f"  could not be counted: {name}" for name in self.uncounted]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Coverage({dict(self)})"


def _percent(share: float) -> str:
    """Return a share in percent, without hiding a small remainder: 0 % and 100 % are exact."""
    if 0 < share < 0.005 or 0.995 < share < 1:
        return "<1 %" if share < 0.5 else ">99 %"
    return f"{100 * share:.0f} %"


def measure(model: nn.Module, placement: Placement | None, args: tuple, kwargs: dict) -> Coverage:
    """Run a forward and a backward pass of a model and return its coverage.

    The model keeps its mode. Its gradients, buffers, histories of delayed scales and the random state are restored.

    Args:
        model: The model, or a wrapper of it.
        placement: The rules in the model, if it has any.
        args: The positional arguments of the model.
        kwargs: The keyword arguments of the model.
    """
    leaves = [*model.parameters(), *(x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))]
    differentiated = [x for x in leaves if x.requires_grad]
    with _restored(model, placement), count_macs(model, placement) as counter, torch.enable_grad():
        output = model(*args, **kwargs)
        results = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
        if results and differentiated:
            ones = [torch.ones_like(x) for x in results]
            torch.autograd.grad(results, differentiated, ones, allow_unused=True)
    return counter.coverage()


@contextmanager
def _restored(model: nn.Module, placement: Placement | None) -> Iterator[None]:
    """Restore the buffers of a model, the histories of delayed scales and the random state at the end."""
    buffers = [
        (module, name, x, x.clone())
        for module in model.modules()
        for name, x in module._buffers.items()
        if x is not None
    ]
    histories = [] if placement is None else list(placement.histories.by_operand.values())
    magnitudes = [(history, history.values, history.seen.clone()) for history in histories]
    devices = {x.device.index for x in model.parameters() if x.device.type == "cuda"}
    try:
        with torch.random.fork_rng(sorted(devices)):
            yield
    finally:
        with torch.no_grad():
            for module, name, x, values in buffers:
                module._buffers[name] = x.copy_(values)
        for history, values, seen in magnitudes:
            history.values, history.seen = values, seen


@contextmanager
def count_macs(model: nn.Module, placement: Placement | None = None) -> Iterator[MacCounter]:
    """Count the multiply-accumulates of everything that runs in this context.

    Args:
        model: The model, whose modules name the places.
        placement: The rules in the model, if it has any.
    """
    counter = MacCounter(model, placement)

    def enter(module: nn.Module, _: Any) -> None:
        counter.stack.append(module)

    def leave(*_: Any) -> None:  # must return None, since other values would replace the output
        counter.stack.pop()

    hooks = [module.register_forward_pre_hook(enter) for module in counter.names]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in counter.names]
    outer, products.observer = products.observer, counter.observed
    try:
        with counter:
            yield counter
    finally:
        products.observer = outer
        for hook in hooks:
            hook.remove()


class MacCounter(TorchDispatchMode):
    """Counts the multiply-accumulates of the operators that PyTorch dispatches.

    Attributes:
        macs: The multiply-accumulates of each `Product`.
        uncounted: Operators that cannot be counted, and where they were called.
        called: The modules whose rules were used, each with the product of its attention or None.
        stack: The modules that are being called, innermost last.
    """

    def __init__(self, model: nn.Module, placement: Placement | None) -> None:
        super().__init__()
        model = model if placement is None else placement.model  # without the wrapper of the model
        self.names = {module: name for name, module in model.named_modules()}
        self.root = model.__class__.__name__
        self.layers = {} if placement is None else {(x.module, x.part): x for x in placement.rules.layers}
        self.placement = placement
        self.macs: Counter[Product] = Counter()
        self.uncounted: dict[str, None] = {}
        self.called: set[tuple[nn.Module | None, str | None]] = set()
        self.stack: list[nn.Module] = []
        self._rule: tuple[str, str] | None = (
            None  # the formats and the place of the rounded product that is computed
        )
        self._places: dict[int, str] = {}  # the place of each autograd node, by its sequence number

    def coverage(self) -> Coverage:
        """Return the coverage of what has run in this context."""
        placed = [] if self.placement is None else self.placement.placed
        never_called = [
            layer.names[0] or self.root
            for _, layer in placed
            if layer.part is None and (layer.module, None) not in self.called
        ]
        return Coverage(self.macs, never_called, list(self.uncounted))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = f"{func.namespace}.{func.overloadpacket.__name__}"
        formula = _FORMULAS.get(operator)
        if formula is None and not _multiplies(operator):
            return result
        if self._rule is not None:
            formats, place = self._rule
        else:
            place = self._place()
            formats = _joined([_dtype_name(x) for x in _operands(operator, args)])
        if formula is None:
            self.uncounted[f"{operator} in {place}"] = None
        else:
            self.macs[Product(formats, operator, place)] += formula(args, result)
        return result

    def observed(self, arithmetic: Arithmetic, kernel: Any) -> Any:
        """Return a kernel that works like the given one and tells this counter which formats its products read."""
        module = self._innermost()
        part = _part_of(module, arithmetic)
        layer = self.layers.get((module, part))
        name = layer.names[0] if layer is not None else self.names.get(module, "")
        self.called.add((module, part))
        place = _pattern(name) or self.root
        counter = self

        class Observed(type(kernel)):  # type: ignore[misc]
            def product(self, *operands: Tensor) -> Tensor:
                with counter._reading(arithmetic, layer, FORWARD, place):
                    return super().product(*operands)

            def input_gradient(self, *operands: Tensor) -> Tensor:
                with counter._reading(arithmetic, layer, INPUT_GRADIENT, place):
                    return super().input_gradient(*operands)

            def weight_gradient(self, *operands: Tensor) -> Tensor:
                with counter._reading(arithmetic, layer, WEIGHT_GRADIENT, place):
                    return super().weight_gradient(*operands)

        observed = object.__new__(Observed)
        observed.__dict__.update(vars(kernel))
        return observed

    @contextmanager
    def _reading(self, arithmetic: Arithmetic, layer: Any, product: str, place: str) -> Iterator[None]:
        outer = self._rule
        self._rule = (
            _joined([self._format(arithmetic, layer, role, product) for role in OPERANDS[product]]),
            place,
        )
        try:
            yield
        finally:
            self._rule = outer

    def _format(self, arithmetic: Arithmetic, layer: Any, role: str, product: str) -> str:
        rounding: Any = arithmetic.roundings.get((role, product))
        if rounding is None and layer is not None and self.placement is not None:
            rounding = self.placement.rules.operand_rounding(
                layer, role, product, max(self.placement.phase, 0)
            )
        if rounding is None:
            return FLOAT32
        rounding = getattr(rounding, "rounding", rounding)  # unwraps the rounding of a delayed scale
        return base_name(
            str(getattr(rounding, "format", None) or getattr(rounding, "fmt", None) or rounding.__name__)
        )

    def _innermost(self) -> Any:
        """Return the innermost module that is being called, or None."""
        return self.stack[-1] if self.stack else None

    def _place(self) -> str:
        """Return the place of the current operator. In the backward pass, this is the place of the forward operator."""
        node = torch._C._current_autograd_node()
        if node is not None and not torch.is_grad_enabled():
            return self._places.get(node._sequence_nr(), "the backward pass")
        place = _pattern(self.names.get(self._innermost(), "")) or self.root
        self._places[torch.autograd._get_sequence_nr() - 1] = place
        return place


def _part_of(module: nn.Module | None, arithmetic: Arithmetic) -> str | None:
    """Return the product of attention that has this arithmetic, or None if it is another product of the module."""
    attention = None if module is None else module.__dict__.get("attention_products")
    for part in (SCORES, VALUES) if attention else ():
        own = getattr(attention, part)
        if arithmetic is own or arithmetic is own.evaluated:
            return part
    return None


def _pattern(name: str) -> str:
    """Return the name of a module with * in place of numbers: blocks.0.mlp becomes blocks.*.mlp."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)


def _joined(formats: Sequence[str]) -> str:
    return " x ".join(dict.fromkeys(sorted(formats, key=lambda name: (name == FLOAT32, name))))


def _dtype_name(x: Tensor) -> str:
    return _DTYPE_NAMES.get(x.dtype, str(x.dtype).removeprefix("torch."))


# ---- operators

Formula = Callable[[Sequence[Any], Any], int]


def _matrices(a: int = 0) -> Formula:
    """Return the formula of a product of the arguments a and a + 1: (..., K) by (..., K, N)."""
    return lambda args, _: args[a].numel() * args[a + 1].shape[-1]


def _vector(a: int = 0) -> Formula:
    return lambda args, _: args[a].numel()


def _linear(args: Sequence[Any], _: Any) -> int:
    return args[0].numel() * args[1].shape[0]


def _grouped(args: Sequence[Any], _: Any) -> int:
    """Return the multiply-accumulates of a grouped product. A 2-D operand has the rows or columns of all groups."""
    a, b = args[:2]
    return (a[0] if (a.dim(), b.dim()) == (3, 2) else a).numel() * b.shape[-1]


def _convolution(args: Sequence[Any], result: Any) -> int:
    return _windows(args[0], args[1], result, args[6])


def _convolution_backward(args: Sequence[Any], _: Any) -> int:
    grad, x, weight = args[:3]
    return _windows(x, weight, grad, args[7]) * sum(args[10][:2])


def _windows(x: Tensor, weight: Tensor, result: Tensor, is_transposed: bool) -> int:
    """Return the multiply-accumulates of a convolution with any number of groups."""
    return (x if is_transposed else result).numel() // weight.shape[0] * weight.numel()


def _attention(query: int, passes: int) -> Formula:
    """Return the formula of fused attention, whose arguments from `query` on are query, key and value."""

    def formula(args: Sequence[Any], _: Any) -> int:
        q, k, v = args[query : query + 3]
        return passes * math.prod(q.shape[:-1]) * k.shape[-2] * (q.shape[-1] + v.shape[-1])

    return formula


def _recurrent(passes: int) -> Formula:
    """Return the formula of one direction of a recurrent layer: input (T, B, I) and two matrices."""
    return lambda args, _: passes * math.prod(args[0].shape[:2]) * (args[1].numel() + args[2].numel())


_ATTENTION = "aten._scaled_dot_product_"
_FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(
        ("aten.mm", "aten.bmm", "aten._int_mm", "aten._scaled_mm", "custom_fp.matmul"), _matrices()
    ),
    **dict.fromkeys(("aten.addmm", "aten.baddbmm", "aten.addbmm"), _matrices(1)),
    **dict.fromkeys(("aten.mv", "aten.dot", "aten.vdot"), _vector()),
    "aten.addmv": _vector(1),
    "aten.addr": lambda _, result: result.numel(),
    **dict.fromkeys(("aten._grouped_mm", "aten._scaled_grouped_mm"), _grouped),
    **dict.fromkeys(("aten.linear", "aten.mkldnn_linear"), _linear),
    "aten.convolution": _convolution,
    "aten._convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    "aten.mkldnn_rnn_layer": _recurrent(1),
    "aten.mkldnn_rnn_layer_backward": _recurrent(2),
    **{
        f"{_ATTENTION}{kind}": _attention(0, 1)
        for kind in (
            *("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"),
            *("fused_attention_overrideable", "attention_math"),
        )
    },
    **{
        f"{_ATTENTION}{kind}_backward": _attention(1, 2)
        for kind in (
            *("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"),
            "fused_attention_overrideable",
        )
    },
}
_FIRST_OPERAND = {"aten.addmm": 1, "aten.baddbmm": 1, "aten.addbmm": 1, "aten.addmv": 1, "aten.addr": 1}
_UNCOUNTED = re.compile(
    r"\w+\.(_?(scaled_dot_product|mkldnn|cudnn|miopen|slow_conv|thnn_conv|conv|trilinear|native_multi_head_attention"
    r"|transformer_encoder_layer|flash_attention|efficient_attention|weight_int|grouped_mm|fused_moe)\w*"
    r"|\w*(grouped_mm|attention|matmul|_mm|_gemm)\w*)"
)


def _multiplies(operator: str) -> bool:
    """Return whether the name of an operator without a formula suggests that it multiplies matrices."""
    return _UNCOUNTED.fullmatch(operator) is not None


def _operands(operator: str, args: Sequence[Any]) -> list[Tensor]:
    first = _FIRST_OPERAND.get(operator, 0)
    return [x for x in args[first : first + 2] if isinstance(x, Tensor)]
