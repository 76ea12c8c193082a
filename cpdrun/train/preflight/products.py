"""The products of a model: the formats that they read, what stays in float32, and the operations of a step.

Precision rules do not apply to some products of a model (custom_fp.recipe.layers): those of recurrent layers and
transposed convolutions, and of functions that a `forward` calls, unless a rule names the operation. `products_of` finds
these products by running the model forward and backward with one sample (custom_fp.recipe.coverage).

`step_operations` counts multiply-accumulates by the formats of their operands and sums. It also computes the bit
operations, which are multiply-accumulates times the bits of both operands (Baskin et al., "UNIQ", arXiv 1804.10969,
section 4.2; van Baalen et al., "Bayesian Bits", arXiv 2005.07093, section 4.1, who count the forward product for
inference). The bits of an element include its sign but not its share of a scale, because a product multiplies elements
and applies a scale once per block.
"""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from custom_fp.formats.names import parse
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.layers.modules import LAYERS
from custom_fp.layers.operations import operations_of
from custom_fp.layers.products import Arithmetic
from custom_fp.recipe.apply import placement_in
from custom_fp.recipe.coverage import Coverage, measure
from custom_fp.recipe.layers import OTHERS
from torch import nn

from cpdrun.comm.model_parallel import model_workers_of
from cpdrun.train.build import Parts
from cpdrun.train.instantiate import naming

REPLACED = tuple(LAYERS.values())
MAY_BE_REPLACED = tuple(OTHERS.values())


def emulated_products(parts: Parts) -> dict[str, Any] | None:
    """Return `products_of` for the first training sample, or None if no product is rounded.

    This changes no bit of the run: the random state and the statistics of the model are restored. It is collective if
    the workers of one model are on several ranks.

    Raises:
        BuildError: The model calls no layer that a rule selects.
    """
    if not parts.precision.rounds_products:
        return None
    batch = parts.batches.fetch(torch.tensor([0]), 0, 0)
    coverage = coverage_of(parts.model, lambda: parts.task.outputs(parts.model, batch))
    with naming("precision"):
        parts.precision.check_called(coverage.never_called)
    return products_of(parts.model, coverage)


def coverage_of(model: nn.Module, forward: Callable[[], object]) -> Coverage:
    """Return the formats that the multiply-accumulates of a forward and a backward pass read.

    The model runs in evaluation mode, because some layers cannot train with one sample. Its mode is restored. If the
    workers that share a model are on several ranks, only the forward pass is counted.

    Args:
        model: The model.
        forward: Calls the model with a batch.
    """
    training = model.training
    model.eval()
    try:
        return measure(model, placement_in(model), forward, backward=not model_workers_of(model))
    finally:
        model.train(training)


def products_of(model: nn.Module, coverage: Coverage) -> dict[str, Any]:
    """Return the layers of a model by what the precision rules round in their products.

    Returns:
        A dictionary. Its key "in the accumulator" contains the layers with a rounded accumulator. "operands rounded"
        contains the layers whose operands are rounded and whose sums are float32. "in float32" contains other products,
        such as "aten.bmm in blocks.*". "never called" contains the layers that rules name but that the model does not
        call. "coverage" contains the share of the multiply-accumulates that read each format. "operands rounded" and
        "never called" are left out if there are no such layers.
    """
    found = {name: x for name, x in arithmetics(model).items() if name not in coverage.never_called}
    summed = [name for name, arithmetic in found.items() if arithmetic.accumulators]
    rounded = [name for name in found if name not in summed]
    return {
        "in the accumulator": summed,
        **({"operands rounded": rounded} if rounded else {}),
        "in float32": [*coverage.in_float32(), *coverage.uncounted],
        **({"never called": coverage.never_called} if coverage.never_called else {}),
        "coverage": dict(coverage),
    }


def arithmetics(model: nn.Module) -> dict[str, Arithmetic]:
    """Return the arithmetic of each layer and of each called operation that rules have replaced, by name."""
    found: dict[str, Arithmetic] = {}
    for name, module in model.named_modules():
        name, operations = name or type(module).__name__, operations_of(module)
        if isinstance(module, REPLACED) or (isinstance(module, MAY_BE_REPLACED) and module.arithmetic):
            found[name] = module.arithmetic
        for part, arithmetic in operations.arithmetics.items():
            if arithmetic and part in operations.called:
                found[f"{name}.{part}"] = arithmetic
    return found


def step_operations(parts: Parts, batch_size: int) -> dict[str, Any] | None:
    """Return the entry `products` of done.json: the operations of one worker's step, averaged over the run's steps.

    Returns:
        None if workers share a model. {"problem": reason} if the model cannot process a single sample.
    """
    if model_workers_of(parts.model):
        return None
    try:
        by_format, uncounted = _operations_by_format(parts)
    except Exception as error:  # an error of the model must not fail a run that is complete
        return {"problem": f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]}
    return {
        "macs_per_step": _integer_if_exact(batch_size * sum(by_format.values())),
        "bit_operations_per_step": _integer_if_exact(
            batch_size * sum(n * _bits(a) * _bits(b) for (a, b, _), n in by_format.items())
        ),
        "by_format": [
            {"a": a, "b": b, "accumulator": accumulator, "macs": _integer_if_exact(batch_size * n)}
            for (a, b, accumulator), n in sorted(by_format.items(), key=lambda pair: -pair[1])
        ],
        **({"uncounted": uncounted} if uncounted else {}),
    }


def _operations_by_format(parts: Parts) -> tuple[dict[tuple[str, str, str], float], list[str]]:
    """Return the mean multiply-accumulates per step, for one sample, by the formats of the operands and of the sums."""
    batch, steps = parts.batches.first_samples(1), parts.duration.steps
    starts = [start for start in parts.precision.phase_starts() if start < steps] or [0]
    totals: Counter[tuple[str, str, str]] = Counter()
    uncounted: dict[str, None] = {}
    for start, end in pairwise([*starts, max(steps, 1)]):
        parts.precision.at(start)
        coverage = coverage_of(parts.model, lambda: parts.task.outputs(parts.model, batch))
        uncounted |= dict.fromkeys(coverage.uncounted)
        for product, count in coverage.macs.items():
            a, b = sorted(map(_element, product.operands), key=lambda name: (_bits(name), name))
            totals[a, b, product.accumulator] += count * (end - start)
    return {kind: count / max(steps, 1) for kind, count in totals.items()}, list(uncounted)


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
