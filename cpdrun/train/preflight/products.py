"""The products of a model: which of them the precision rules reach, and how many multiply-accumulates a step takes.

Rules do not or cannot reach some products of a model (custom_fp.recipe.layers): attention, a tied head, recurrent
layers, transposed convolutions, and functions called in a `forward`. `products_of` finds them with one sample: it
records every torch operator that multiplies, together with the module that called it.

`step_operations` counts multiply-accumulates by the formats of their operands and sums. It also computes the bit
operations, which are multiply-accumulates times the bits of both operands (Baskin et al., "UNIQ", arXiv 1804.10969,
section 4.2; van Baalen et al., "Bayesian Bits", arXiv 2005.07093, section 4.1, who count the forward product for
inference).

The counts come from the shapes of the operators' operands for one sample, as in torch.utils.flop_counter (which takes a
second to import). Each of the two backward products takes as many multiply-accumulates as the forward product, and
exists if its operand needs a gradient. Both products of fused attention are counted, forward and backward. Not counted
are products that a kernel recomputes to save memory, sums without a product, the softmax, and the optimizer's step. The
bits of an element include its sign but not its share of a scale, because a product multiplies elements and applies a
scale once per block. Padding that a Hadamard transform adds to a dimension is counted.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from custom_fp.formats.names import parse
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.layers.attention import SCORES, VALUES
from custom_fp.layers.modules import LAYERS
from custom_fp.layers.products import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Arithmetic
from custom_fp.recipe.layers import OTHERS
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpdrun.comm.model_parallel import model_workers_of
from cpdrun.train.build import Parts
from cpdrun.train.instantiate import naming
from cpdrun.train.precision.base import Operands, Precision

# Prefixes of the names of aten's products. Replaced layers call custom_fp's own operators.
PRODUCTS = (
    *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr"),
    *("convolution", "conv_", "mkldnn_convolution", "cudnn_convolution", "_convolution"),
    *("_scaled_dot_product", "_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
    *("mkldnn_rnn", "_cudnn_rnn", "linear", "mkldnn_linear", "_trilinear"),
)
REPLACED = tuple(LAYERS.values())
MAY_BE_REPLACED = tuple(OTHERS.values())


def emulated_products(parts: Parts) -> dict[str, list[str]] | None:
    """Return `products_of` for the first training sample, or None if no product is rounded.

    This changes no bit of the run: it draws no random numbers and updates no statistics. It is collective if the
    workers of one model are on several ranks.

    Raises:
        BuildError: A rule for attention matches no call.
    """
    if not parts.precision.rounds_products:
        return None
    batch = parts.batches.fetch(torch.tensor([0]), 0, 0)
    products = products_of(parts.model, lambda: parts.task.outputs(parts.model, batch))
    with naming("precision"):
        parts.precision.check_called()
    return products


def products_of(model: nn.Module, forward: Callable[[], object]) -> dict[str, list[str]]:
    """Return which layers of a forward pass the rules reach.

    The model runs in evaluation mode without gradients. Its mode is restored.

    Args:
        model: The model.
        forward: Calls the model with a batch.

    Returns:
        "in the accumulator": layers with a rounded accumulator. "operands rounded", if there are any: layers whose
        operands are rounded and whose sums are float32. "in float32": other products, such as "blocks.0 (Block):
        _scaled_dot_product_flash_attention".
    """
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), entered(model) as place, _ProductRecorder(place.unreached) as recorder:
            forward()
    finally:
        model.train(training)
    found = arithmetics(model)
    summed = [name for name, arithmetic in found.items() if arithmetic.accumulators]
    rounded = [name for name in found if name not in summed]
    reached = {"in the accumulator": summed, **({"operands rounded": rounded} if rounded else {})}
    return {**reached, "in float32": list(recorder.found)}


def arithmetics(model: nn.Module) -> dict[str, Arithmetic]:
    """Return the arithmetic of each layer and of each attention product that rules have replaced, by name."""
    found: dict[str, Arithmetic] = {}
    for name, module in model.named_modules():
        name, attention = name or type(module).__name__, module.__dict__.get("attention_products")
        if isinstance(module, REPLACED) or (isinstance(module, MAY_BE_REPLACED) and module.arithmetic):
            found[name] = module.arithmetic
        for part in (SCORES, VALUES) if attention and attention.called else ():
            if arithmetic := getattr(attention, part):
                found[f"{name}.{part}"] = arithmetic
    return found


class _ProductRecorder(TorchDispatchMode):
    """Records every product that is dispatched, once for each module."""

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
    """Return whether the aten operator of this name multiplies."""
    return any(name == known or (len(known) > 4 and name.startswith(known)) for known in PRODUCTS)


@dataclass
class Place:
    """The position in a forward pass.

    Attributes:
        names: The names of the model's modules.
        model: The model.
        stack: The modules that are being called, innermost last.
        products: The rule-based products that are being computed: their arithmetic, and whether each of the two
            operands needs a gradient.
    """

    names: dict[nn.Module, str]
    model: nn.Module
    stack: list[nn.Module] = field(default_factory=list)
    products: list[tuple[Arithmetic, bool, bool]] = field(default_factory=list)

    @property
    def innermost(self) -> nn.Module:
        """The module that is being called."""
        return self.stack[-1] if self.stack else self.model

    def described(self) -> str:
        """Return the name and class of the module that is being called."""
        module = self.innermost
        name, kind = self.names.get(module, ""), type(module).__name__
        return f"{name} ({kind})" if name else kind

    def unreached(self) -> str | None:
        """Return a description of the module that is being called, or None if rules reach its products."""
        is_reached = any(bool(arithmetic) for arithmetic, _, _ in self.products)
        return None if is_reached or isinstance(self.innermost, REPLACED) else self.described()


@contextmanager
def entered(model: nn.Module) -> Iterator[Place]:
    """Track the position in forward passes of the model."""
    place = Place({module: name for name, module in model.named_modules()}, model)
    multiply = Arithmetic.multiply

    def tracked(arithmetic: Arithmetic, kernel: Any, x: Tensor, w: Tensor, *layout: Any, **named: Any) -> Any:
        place.products.append((arithmetic, x.requires_grad, w.requires_grad))
        try:
            return multiply(arithmetic, kernel, x, w, *layout, **named)
        finally:
            place.products.pop()

    def enter(module: nn.Module, _: Any) -> None:
        place.stack.append(module)

    def leave(*_: Any) -> None:  # must return None, since other values would replace the output
        place.stack.pop()

    hooks = [
        torch.nn.modules.module.register_module_forward_pre_hook(enter),
        torch.nn.modules.module.register_module_forward_hook(leave),
    ]
    patched: Any = Arithmetic
    patched.multiply = tracked
    try:
        yield place
    finally:
        patched.multiply = multiply
        for hook in hooks:
            hook.remove()


MATRIX_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "dot")  # operands are matrices or vectors
ProductKey = tuple[str, str | None, str]  # the module's name, the part of its attention, the product


def step_operations(parts: Parts, batch_size: int) -> dict[str, Any] | None:
    """Return the entry `products` of done.json: the operations of one worker's step, averaged over the run's steps.

    Returns:
        None if workers share a model. {"problem": reason} if the model cannot process a single sample.
    """
    if model_workers_of(parts.model):
        return None
    try:
        batch = parts.batches.first_samples(1)
        macs, uncounted = count_macs(parts.model, lambda: parts.task.outputs(parts.model, batch))
    except Exception as error:  # an error of the model must not fail a run that is complete
        return {"problem": f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]}
    by_format = by_operands(macs, parts.precision, parts.duration.steps)
    return {
        "macs_per_step": batch_size * sum(macs.values()),
        "bit_operations_per_step": _integer_if_exact(
            batch_size * sum(n * bits_of(kind) for kind, n in by_format.items())
        ),
        "by_format": [
            {
                "a": kind.a,
                "b": kind.b,
                "accumulator": kind.accumulator,
                "macs": _integer_if_exact(batch_size * n),
            }
            for kind, n in sorted(by_format.items(), key=lambda pair: -pair[1])
        ],
        **({"uncounted": uncounted} if uncounted else {}),
    }


def count_macs(model: nn.Module, forward: Callable[[], object]) -> tuple[Counter[ProductKey], list[str]]:
    """Count the multiply-accumulates of a forward pass and of its backward pass.

    The model runs in evaluation mode. Its mode is restored.

    Args:
        model: The model.
        forward: Calls the model with one sample.

    Returns:
        The multiply-accumulates of each product, and descriptions of products whose formula is not known.
    """
    training = model.training
    model.eval()
    try:
        with torch.enable_grad(), entered(model) as place, _MacCounter(place) as counter:
            forward()
    finally:
        model.train(training)
    return counter.macs, list(counter.uncounted)


def by_operands(macs: Counter[ProductKey], precision: Precision, steps: int) -> dict[Operands, float]:
    """Return the mean multiply-accumulates per step by operand formats. The order of the two operands is ignored."""
    starts = [start for start in precision.phase_starts() if start < steps] or [0]
    lengths = [end - start for start, end in zip(starts, [*starts[1:], max(steps, 1)], strict=True)]
    totals: dict[Operands, int] = {}
    for (name, part, product), count in macs.items():
        for start, length in zip(starts, lengths, strict=True):
            kind = precision.operands(name, part, product, start)
            a, b = sorted((_element(kind.a), _element(kind.b)), key=lambda name: (_bits(name), name))
            key = Operands(a, b, kind.accumulator)
            totals[key] = totals.get(key, 0) + count * length
    return {kind: n / sum(lengths) for kind, n in totals.items()}


def bits_of(kind: Operands) -> int:
    """Return the bit operations of one multiply-accumulate."""
    return _bits(kind.a) * _bits(kind.b)


def _element(name: str) -> str:
    """Return the element format of a format with scales, such as e4m3fn of mxfp8_e4m3. Other names are unchanged."""
    if _is_integer(name):
        return name
    fmt = parse(name)
    if fmt.has_zero_point:
        return f"int{fmt.code_bits}"
    return fmt.element.name if isinstance(fmt, ScaledFormat) else fmt.name


def _bits(name: str) -> int:
    return int(name[3:]) if _is_integer(name) else parse(name).code_bits


def _is_integer(name: str) -> bool:
    return name.startswith("int") and name[3:].isdigit()


def _integer_if_exact(number: float) -> int | float:
    return int(number) if float(number).is_integer() else number


class _MacCounter(TorchDispatchMode):
    """Counts the multiply-accumulates of dispatched operators."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.macs: Counter[ProductKey] = Counter()
        self.uncounted: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if func.namespace == "custom_fp" and name == "matmul":
            self._count(_part_of(self.place), args[0].numel() * args[1].shape[-1], *args[:2])
        elif name.startswith("_scaled_dot_product"):
            query, key, value = args[:3]
            rows = math.prod(query.shape[:-1]) * key.shape[-2]
            self._count(SCORES, rows * query.shape[-1], query, key)
            self._count(VALUES, rows * value.shape[-1], query, value)
        elif func.namespace in ("aten", "mkldnn") and is_product(name):
            operands = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
            if name in MATRIX_PRODUCTS:
                self._count(_part_of(self.place), result.numel() * operands[0].shape[-1], *operands)
            elif name == "convolution":
                is_transposed = args[6]
                windows = (operands[0] if is_transposed else result).numel() // operands[1].shape[0]
                self._count(_part_of(self.place), windows * operands[1].numel(), *operands)
            else:
                self.uncounted[f"{self.place.described()}: {name}"] = None
        return result

    def _count(self, part: str | None, macs: int, x: Tensor, w: Tensor) -> None:
        place = self.place
        x_needs, w_needs = place.products[-1][1:] if place.products else (x.requires_grad, w.requires_grad)
        name = place.names.get(place.innermost, "")
        self.macs[name, part, FORWARD] += macs
        if x_needs:
            self.macs[name, part, INPUT_GRADIENT] += macs
        if w_needs:
            self.macs[name, part, WEIGHT_GRADIENT] += macs


def _part_of(place: Place) -> str | None:
    """Return the part of attention that is being computed by rules, or None."""
    attention = place.innermost.__dict__.get("attention_products")
    if attention is None or not place.products:
        return None
    for part in (SCORES, VALUES):
        arithmetic = getattr(attention, part)
        if any(place.products[-1][0] is one for one in (arithmetic, arithmetic.evaluated)):
            return part
    return None
