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
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from custom_fp.formats.scaled_format import base_name
from custom_fp.layers import products
from custom_fp.layers.attachment import class_of
from custom_fp.layers.embedding import QuantEmbedding
from custom_fp.layers.modules import LAYERS
from custom_fp.layers.operations import operations_of
from custom_fp.layers.products import FORWARD, INPUT_GRADIENT, OPERANDS, WEIGHT_GRADIENT, Arithmetic
from custom_fp.layers.rounded_weight import RoundedWeight
from custom_fp.recipe.layers import Layer
from custom_fp.recipe.placement import Placement

_GRADIENTS = INPUT_GRADIENT, WEIGHT_GRADIENT  # in the order in which PyTorch computes them

FLOAT32, FLOAT32_LABEL = "fp32", "float32"
_DTYPE_NAMES = {
    torch.float32: FLOAT32,
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "e4m3fn",
    torch.float8_e5m2: "e5m2",
}


class Product(NamedTuple):
    """The products that one operator computes in one place of a model.

    Attributes:
        operands: The formats of both operands, in alphabetical order.
        accumulator: The format of the sums.
        operator: The operator, such as aten.mm.
        place: The name of the module that called the operator.
    """

    operands: tuple[str, str]
    accumulator: str
    operator: str
    place: str

    @property
    def label(self) -> str:
        """The name under which `Coverage` counts the products."""
        a, b = (FLOAT32_LABEL if name == FLOAT32 else base_name(name) for name in self.operands)
        if a == b == FLOAT32_LABEL and self.accumulator != FLOAT32:
            return f"float32 summed in {self.accumulator}"
        return a if a == b else " x ".join(sorted((a, b), key=lambda name: (name == FLOAT32_LABEL, name)))


class Coverage(Mapping[str, float]):
    """The share of the multiply-accumulates whose operands have each format. Iteration starts with the largest share.

    The key is the format of both operands, or "A x B" if their formats differ. Options of a format are left out, so
    nvfp4_2d counts as nvfp4. If only the sums are rounded, the key is "float32 summed in C". "float32" is always a key.

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
        totals = Counter({FLOAT32_LABEL: 0})
        for product, count in self.macs.items():
            totals[product.label] += count
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
        """The share of the multiply-accumulates with an operand or a sum that is not float32."""
        return 1 - self[FLOAT32_LABEL] if self.total else 0.0

    def in_float32(self) -> dict[str, float]:
        """Return the shares of the products that read float32, such as "aten.mm in blocks.*.mlp", largest first."""
        shares: Counter[str] = Counter()
        for product, count in self.macs.items():
            if product.label == FLOAT32_LABEL:
                shares[f"{product.operator} in {_pattern(product.place)}"] += count
        return {where: count / self.total for where, count in shares.most_common()}

    def summary(self) -> str:
        """Return the shares in one line, such as "nvfp4 86%, bf16 14%, float32 0%"."""
        return shares_text(self)

    def __str__(self) -> str:
        lines = [self.summary()]
        lines += [
            f"  in float32: {where} {percent_text(share)}" for where, share in self.in_float32().items()
        ]
        never_called = Counter(map(_pattern, self.never_called))
        lines += [f"  named by rules, never called: {name} ({count})" for name, count in never_called.items()]
        lines += [f"  could not be counted: {name}" for name in self.uncounted]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Coverage({dict(self)})"


def shares_text(shares: Mapping[str, float]) -> str:
    """Return the shares of formats as text, such as "nvfp4 86%, bf16 14%, float32 0%"."""
    return ", ".join(f"{name} {percent_text(share)}" for name, share in shares.items())


def percent_text(share: float) -> str:
    """Return a share as a percentage. Only the exact shares 0 and 1 are shown as 0% and 100%."""
    if 0 < share < 0.005 or 0.995 < share < 1:
        return "<1%" if share < 0.5 else ">99%"
    return f"{100 * share:.0f}%"


def measure(
    model: nn.Module,
    placement: Placement | None,
    run: Callable[[], object],
    inputs: Sequence[Tensor] = (),
    backward: bool = True,
) -> Coverage:
    """Run a forward and a backward pass of a model and return its coverage.

    The model keeps its mode. Its gradients, buffers, histories of delayed scales and the random state are restored.

    Args:
        model: The model.
        placement: The rules in the model, if it has any.
        run: Calls the model. The tensors in its result are differentiated.
        inputs: Inputs of the model, whose gradients are computed as well if they need one.
        backward: Whether to run the backward pass.
    """
    differentiated = [x for x in (*model.parameters(), *inputs) if x.requires_grad and backward]
    with _restored(model, placement), count_macs({"": (model, placement)}) as counter, torch.enable_grad():
        output = run()
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
    magnitudes = [history.magnitudes.clone() for history in histories]
    devices = {x.device.index for x in model.parameters() if x.device.type == "cuda"}
    try:
        with torch.random.fork_rng(sorted(devices)):
            yield
    finally:
        with torch.no_grad():
            for module, name, x, values in buffers:
                module._buffers[name] = x.copy_(values)
        for history, values in zip(histories, magnitudes, strict=True):
            history.magnitudes.copy_(values)


@contextmanager
def count_macs(models: Mapping[str, tuple[nn.Module, Placement | None]]) -> Iterator[MacCounter]:
    """Return a context in which the multiply-accumulates of all operators are counted.

    Args:
        models: Maps a prefix, such as "" or "Generator.", to a model and its rules. The rules are None if the model has
            no rules. The prefix is prepended to the names of the model's modules.
    """
    counter = MacCounter()
    for prefix, (model, placement) in models.items():
        counter.add(model, placement, prefix)

    def enter(module: nn.Module, *_: Any) -> None:
        if module in counter.names:
            counter.enter(module)

    def leave(module: nn.Module, *_: Any) -> None:  # returns None, so the hook does not replace the output
        if counter.stack and counter.stack[-1] is module:  # false if the call began before this context
            counter.stack.pop()

    # Global hooks are used, because hooks of a module would be saved and copied with the module.
    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    outer, products.observer = products.observer, counter.observed
    try:
        with counter:
            yield counter
    finally:
        products.observer = outer
        for hook in hooks:
            hook.remove()


class MacCounter(TorchDispatchMode):
    """A mode that counts the multiply-accumulates of the operators that PyTorch dispatches.

    Attributes:
        macs: The number of multiply-accumulates of each `Product`.
        uncounted: Operators that multiply but whose multiply-accumulates cannot be counted, and where they were called.
        called: The module and the operation of each product that was computed with the arithmetic of a rule. The
            operation is None for the products of a layer itself.
        entered: The modules whose forward pass has begun.
        stack: The modules whose forward pass is running, innermost last.
        is_paused: If true, operators are not counted.
        root: The name of the place to which operators outside of all modules are assigned.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.root = ""
        self.names: dict[nn.Module, str] = {}
        self.layers: dict[tuple[nn.Module | None, str | None], Layer] = {}
        self.places: dict[Layer, str] = {}
        self.placements: dict[Layer, Placement] = {}
        self.macs: Counter[Product] = Counter()
        self.uncounted: dict[str, None] = {}
        self.called: set[tuple[nn.Module | None, str | None]] = set()
        self.entered: set[nn.Module] = set()
        self.stack: list[nn.Module] = []
        self.is_paused = False
        self._rounded: Product | None = None  # the rounded product that is being computed
        self._nodes: dict[int, _Node] = {}  # keyed by the sequence number of the autograd node

    def add(self, model: nn.Module, placement: Placement | None, prefix: str = "") -> None:
        """Add a model and its rules. The prefix is prepended to the names of its modules."""
        model = (
            model if placement is None else placement.model
        )  # without wrappers such as DistributedDataParallel
        whole = prefix.rstrip(".") or model.__class__.__name__
        self.root = self.root or whole
        self.names |= {module: f"{prefix}{name}" if name else whole for name, module in model.named_modules()}
        if placement is None:
            return
        for layer in placement.rules.layers:
            self.layers[layer.module, layer.part] = layer
            self.places[layer] = f"{prefix}{layer.names[0]}" if layer.names[0] else whole
            self.placements[layer] = placement

    def enter(self, module: nn.Module) -> None:
        """Record that the forward pass of a module begins."""
        self.stack.append(module)
        self.entered.add(module)

    def was_called(self, layer: Layer) -> bool:
        """Return whether the rules for a layer were used, or would have been used in another phase of the run.

        An embedding, a normalization layer, or a layer that is not rounded in the current phase counts if it was
        called. Any other layer or operation counts if it computed a product.
        """
        module = layer.module
        has_no_product = layer.part is None and layer.rounding_class in (QuantEmbedding, RoundedWeight)
        if has_no_product or (layer.part is None and not module.__dict__.get("arithmetic")):
            return module in self.entered
        return (module, layer.part) in self.called

    def coverage(self) -> Coverage:
        """Return the coverage of the operators that have run in this context."""
        placed = [layer for each in dict.fromkeys(self.placements.values()) for _, layer in each.placed]
        never = [self.places[x] for x in placed if x.part is None and not self.was_called(x)]
        return Coverage(self.macs, never, list(self.uncounted))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.is_paused:
            return result
        if isinstance(func, torch._ops.HigherOrderOperator):
            self.uncounted[f"{func.name()} in {_pattern(self._name(self._innermost()))}"] = None
            return result
        operator = f"{func.namespace}.{func.overloadpacket.__name__}"
        formula = _FORMULAS.get(operator)
        if formula is None and not _multiplies(operator):
            return result
        computed = self._products(operator, args) if self._rounded is None else [self._rounded]
        if formula is None:
            self.uncounted[f"{operator} in {_pattern(computed[0].place)}"] = None
            return result
        count = formula(args, result)
        if count == 0:  # such as the product of an expert without rows
            return result
        for i, product in enumerate(computed):  # one operator computes both gradients of a convolution
            share = count // len(computed) + (i < count % len(computed))
            self.macs[product._replace(operator=operator)] += share
        return result

    def _products(self, operator: str, args: Sequence[Any]) -> list[Product]:
        """Return the products that an operator outside of rounded products computes."""
        operands = _operands(operator, args)
        dtypes = [_DTYPE_NAMES.get(x.dtype, str(x.dtype).removeprefix("torch.")) for x in operands]
        a, b = (*dtypes, FLOAT32, FLOAT32)[:2]
        node = torch._C._current_autograd_node()
        if node is None or torch.is_grad_enabled():
            module = self._innermost()
            needs = [x.requires_grad for x in operands]
            known = _Node(module, [p for p, need in zip(_GRADIENTS, needs, strict=False) if need])
            # If the operator has no autograd node, the last sequence number belongs to another operator.
            if known.gradients and torch.is_grad_enabled():
                self._nodes[torch.autograd._get_sequence_nr() - 1] = known
            computed = [FORWARD]
        else:
            known = self._nodes.get(node._sequence_nr(), _Node(None, []))
            computed = known.next_gradients(operator, args)
        layer = self.layers.get((known.module, None))
        if (a, b) != (FLOAT32, FLOAT32) or layer is None or class_of(layer.module) not in LAYERS:
            return [Product(_sorted(a, b), FLOAT32, operator, self._name(known.module))]
        return [self._product(Arithmetic(), layer, product, self._name(known.module)) for product in computed]

    def observed(self, arithmetic: Arithmetic, kernel: Any) -> Any:
        """Return a kernel that works like the given one and tells this counter which formats its products read."""
        module = self._innermost()
        part = _part_of(module, arithmetic)
        self.called.add((module, part))
        layer = self.layers.get((module, part))
        place = self._name(module) if layer is None else self.places[layer]
        counter = self

        class Observed(type(kernel)):  # type: ignore[misc]
            def product(self, *operands: Tensor) -> Tensor:
                with counter._computing(arithmetic, layer, FORWARD, place):
                    return super().product(*operands)

            def input_gradient(self, *operands: Tensor) -> Tensor:
                with counter._computing(arithmetic, layer, INPUT_GRADIENT, place):
                    return super().input_gradient(*operands)

            def weight_gradient(self, *operands: Tensor) -> Tensor:
                with counter._computing(arithmetic, layer, WEIGHT_GRADIENT, place):
                    return super().weight_gradient(*operands)

        observed = object.__new__(Observed)
        observed.__dict__.update(vars(kernel))
        return observed

    @contextmanager
    def _computing(
        self, arithmetic: Arithmetic, layer: Layer | None, product: str, place: str
    ) -> Iterator[None]:
        outer = self._rounded
        self._rounded = self._product(arithmetic, layer, product, place)
        try:
            yield
        finally:
            self._rounded = outer

    def _product(self, arithmetic: Arithmetic, layer: Layer | None, product: str, place: str) -> Product:
        a, b = (self._format(arithmetic, layer, role, product) for role in OPERANDS[product])
        return Product(_sorted(a, b), arithmetic.accumulators.get(product, FLOAT32), "", place)

    def _format(self, arithmetic: Arithmetic, layer: Layer | None, role: str, product: str) -> str:
        rounding: Any = arithmetic.roundings.get((role, product))
        if rounding is None and layer is not None:
            placement = self.placements[layer]
            rounding = placement.rules.stored_rounding(layer, role, placement.phase)
        if rounding is None:
            return FLOAT32
        rounding = getattr(rounding, "rounding", rounding)  # `Delayed` contains a QuantizationSpec
        return str(getattr(rounding, "format", None) or getattr(rounding, "fmt", None) or rounding.__name__)

    def _innermost(self) -> nn.Module | None:
        """Return the innermost module that is being called, if any."""
        return self.stack[-1] if self.stack else None

    def _name(self, module: nn.Module | None) -> str:
        return (self.names.get(module) if module is not None else None) or self.root


@dataclass
class _Node:
    """A node of the autograd graph that was created outside of rounded products.

    Attributes:
        module: The module that created it.
        gradients: The gradients of the operands that it computes, in the order in which it computes them.
    """

    module: nn.Module | None
    gradients: list[str]

    def next_gradients(self, operator: str, args: Sequence[Any]) -> list[str]:
        """Return the gradients that the next operator of this node computes."""
        if operator == "aten.convolution_backward":
            return [product for product, computed in zip(_GRADIENTS, args[10], strict=False) if computed]
        if len(self.gradients) < 2 or operator not in ("aten.mm", "aten.bmm"):
            return self.gradients or list(_GRADIENTS)
        return [self.gradients.pop(0)]


def _part_of(module: nn.Module | None, arithmetic: Arithmetic) -> str | None:
    """Return the operation that uses this arithmetic in a module, or None if the module itself uses it."""
    for part, own in operations_of(module).arithmetics.items():
        if arithmetic is own or arithmetic is own.evaluated:
            return part
    return None


def _pattern(name: str) -> str:
    """Return the name of a module with * in place of numbers: blocks.0.mlp becomes blocks.*.mlp."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)


def _sorted(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a <= b else (b, a)


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
