"""How many multiply-accumulates a step's products are, by the formats that they multiply and sum up in, and so its bit
operations: multiply-accumulates times the bits of both operands (Baskin et al., "UNIQ", arXiv 1804.10969, section 4.2;
van Baalen et al., "Bayesian Bits", arXiv 2005.07093, section 4.1, who count the forward product of inference).

One sample goes through the model; every operator of torch that multiplies is counted by its shapes, as
torch.utils.flop_counter does (which takes a second to import). The two products of the backward pass, of a value that
needs a gradient, are as many as the forward one. Of fused attention its two products count, forward and backward: what
a kernel computes again to save memory does not, nor do sums without a product, the softmax, the optimizer's step. An
element's bits count, its sign too, not its share of a scale: a product multiplies elements, and a scale once a block. A
dimension that a transform fills up counts as filled.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from custom_fp.formats.names import parse
from custom_fp.formats.scaled import ScaledFormat
from custom_fp.layers.attention import SCORES, VALUES
from custom_fp.layers.products import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpdrun.comm.model_parallel import model_workers_of
from cpdrun.train.build import Parts
from cpdrun.train.precision.base import Operands, Precision
from cpdrun.train.preflight.products import Place, entered, is_product

MATRICES = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "mv",
    "dot",
)  # of operators those whose operands are matrices and vectors
Met = tuple[str, str | None, str]  # the module's name, the part of its attention, the product


def step_operations(parts: Parts, batch_size: int) -> dict[str, Any] | None:
    """What done.json says under `products`, of one worker's step of so many samples; the mean over the run's steps,
    where rules change. None where workers share a model, of which each multiplies a part. {"problem": why} where the
    model does not take a sample by itself. Changes no bit of the run."""
    if model_workers_of(parts.model):
        return None
    try:
        batch = parts.batches.plain(1)
        met, uncounted = multiplied(parts.model, lambda: parts.task.outputs(parts.model, batch))
    except Exception as error:  # whatever a model raises: the run has ended well
        return {"problem": f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]}
    by_format = by_operands(met, parts.precision, parts.course.steps)
    return {
        "macs_per_step": batch_size * sum(met.values()),
        "bit_operations_per_step": _exact(
            batch_size * sum(n * bits_of(kind) for kind, n in by_format.items())
        ),
        "by_format": [
            {"a": kind.a, "b": kind.b, "accumulator": kind.accumulator, "macs": _exact(batch_size * n)}
            for kind, n in sorted(by_format.items(), key=lambda pair: -pair[1])
        ],
        **({"uncounted": uncounted} if uncounted else {}),
    }


def multiplied(model: nn.Module, forward: Callable[[], object]) -> tuple[Counter[Met], list[str]]:
    """Multiply-accumulates of each product, forward and backward, where `forward` calls the model; and what
    multiplies in it of which no formula is known. The model is evaluated, and left in the mode it was in."""
    training = model.training
    model.eval()
    try:
        with torch.enable_grad(), entered(model) as place, _Counting(place) as seen:
            forward()
    finally:
        model.train(training)
    return seen.met, list(seen.uncounted)


def by_operands(met: Counter[Met], precision: Precision, steps: int) -> Counter[Operands]:
    """The same by formats, a mean over the steps. The operands of a product in either order are one."""
    turns = [turn for turn in precision.turns() if turn < steps] or [0]
    lengths = [end - turn for turn, end in zip(turns, [*turns[1:], max(steps, 1)], strict=True)]
    found: Counter[Operands] = Counter()
    for (name, part, product), macs in met.items():
        for turn, length in zip(turns, lengths, strict=True):
            kind = precision.operands(name, part, product, turn)
            a, b = sorted((_element(kind.a), _element(kind.b)), key=lambda name: (_bits(name), name))
            found[Operands(a, b, kind.accumulator)] += macs * length
    return Counter({kind: n / sum(lengths) for kind, n in found.items()})


def bits_of(kind: Operands) -> int:
    return _bits(kind.a) * _bits(kind.b)


def _element(name: str) -> str:
    """Of a format with scales what it scales: e4m3fn of mxfp8_e4m3. Of a codebook its own name."""
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


def _exact(number: float) -> int | float:
    return int(number) if float(number).is_integer() else number


class _Counting(TorchDispatchMode):
    """Counts what is dispatched."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.met: Counter[Met] = Counter()
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
            if name in MATRICES:
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
        self.met[name, part, FORWARD] += macs
        if x_needs:
            self.met[name, part, INPUT_GRADIENT] += macs
        if w_needs:
            self.met[name, part, WEIGHT_GRADIENT] += macs


def _part_of(place: Place) -> str | None:
    """Of the attention of the module entered last, where one of its products is formed by rules."""
    attention = place.innermost.__dict__.get("attention_products")
    if attention is None or not place.products:
        return None
    for part in (SCORES, VALUES):
        arithmetic = getattr(attention, part)
        if any(place.products[-1][0] is one for one in (arithmetic, arithmetic.evaluated)):
            return part
    return None
