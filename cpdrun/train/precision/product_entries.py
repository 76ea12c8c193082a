"""The entries `products` of env.json and of done.json, computed from the coverage of a model.

The entry in env.json groups the layers by what rules round, and contains the share of the multiply-accumulates that
read each format. The entry in done.json contains the number of multiply-accumulates per step for each combination of
operand formats and accumulator format. It also contains the number of bit operations, where each multiply-accumulate
counts as the product of the bit widths of its operands. This measure comes from Baskin et al., "UNIQ" (arXiv
1804.10969, section 4.2), and van Baalen et al., "Bayesian Bits" (arXiv 2005.07093, section 4.1), who count only the
forward product, for inference. These bit widths include the sign bit. They do not include a share of the scale, because
a product multiplies elements and applies the scale once per block.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from custom_fp.formats.names import parse
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.layers.modules import LAYERS
from custom_fp.layers.operations import operations_of
from custom_fp.layers.products import Arithmetic
from custom_fp.recipe.coverage import Coverage
from custom_fp.recipe.layers import OTHERS
from torch import nn

# Three formats: the narrower operand's, the other operand's, and the accumulator's.
Operation = tuple[str, str, str]

REPLACED = tuple(LAYERS.values())
MAY_BE_REPLACED = tuple(OTHERS.values())


def products_of(by_layer: Mapping[str, Arithmetic], coverage: Coverage) -> dict[str, Any]:
    """Return the entry `products` of env.json: the layers of a model, grouped by what the precision rules round.

    Args:
        by_layer: The arithmetic of each layer with rules, as `arithmetics` returns it.
        coverage: The coverage of the model.

    Returns:
        A dictionary with these keys:

            in the accumulator   The layers with a rounded accumulator.
            operands rounded     The layers whose operands are rounded and whose sums are float32. Left out if empty.
            in float32           All other products, such as "aten.bmm in blocks.*".
            never called         The layers that rules select but that the model does not call. Left out if empty.
            coverage             A dictionary that maps each format to its share of the multiply-accumulates.
    """
    found = {name: x for name, x in by_layer.items() if name not in coverage.never_called}
    summed = [name for name, arithmetic in found.items() if arithmetic.accumulators]
    rounded = [name for name in found if name not in summed]
    return {
        "in the accumulator": summed,
        **({"operands rounded": rounded} if rounded else {}),
        "in float32": [*coverage.in_float32(), *coverage.uncounted],
        **({"never called": coverage.never_called} if coverage.never_called else {}),
        "coverage": dict(coverage),
    }


def arithmetics(model: nn.Module, prefix: str = "") -> dict[str, Arithmetic]:
    """Return the arithmetic of each rounded layer and each rounded operation, keyed by its name.

    Operations that the model has not called are left out.

    Args:
        model: The model.
        prefix: A prefix for all keys.
    """
    found: dict[str, Arithmetic] = {}
    for name, module in model.named_modules():
        name = f"{prefix}{name}" if name else prefix.rstrip(".") or type(module).__name__
        operations = operations_of(module)
        if isinstance(module, REPLACED) or (isinstance(module, MAY_BE_REPLACED) and module.arithmetic):
            found[name] = module.arithmetic
        for part, arithmetic in operations.arithmetics.items():
            if arithmetic and part in operations.called:
                found[f"{name}.{part}"] = arithmetic
    return found


def operations_entry(
    by_format: Mapping[Operation, float], operand_bits: float, uncounted: Collection[str]
) -> dict[str, Any]:
    """Return the entry `products` of done.json.

    Args:
        by_format: The number of multiply-accumulates in one worker's step, as `by_elements` returns it.
        operand_bits: The bits of both operands, summed over all multiply-accumulates, as `sum_operand_bits` returns it.
        uncounted: The operators that multiply but cannot be counted.

    Returns:
        A dictionary. Its keys are described in `cpdrun.record.Result`.
    """
    macs = sum(by_format.values())
    return {
        "macs_per_step": _integer_if_exact(macs),
        **({"mean_operand_bits": _integer_if_exact(operand_bits / 2 / macs)} if macs else {}),
        "bit_operations_per_step": _integer_if_exact(
            sum(n * _bits(a) * _bits(b) for (a, b, _), n in by_format.items())
        ),
        "by_format": [
            {"a": a, "b": b, "accumulator": accumulator, "macs": _integer_if_exact(n)}
            for (a, b, accumulator), n in sorted(by_format.items(), key=lambda pair: -pair[1])
        ],
        **({"uncounted": list(uncounted)} if uncounted else {}),
    }


def by_elements(coverage: Coverage) -> Counter[Operation]:
    """Return the number of multiply-accumulates for each combination of element formats and accumulator format."""
    counts: Counter[Operation] = Counter()
    for product, count in coverage.macs.items():
        a, b = sorted(map(_element, product.operands), key=lambda name: (_bits(name), name))
        counts[a, b, product.accumulator] += count
    return counts


def sum_operand_bits(coverage: Coverage) -> float:
    """Return the bits of both operands, summed over all multiply-accumulates.

    The bits of an operand include its share of a block's scale.
    """
    return sum(
        count * sum(_bits(name) if _is_integer(name) else parse(name).bits for name in product.operands)
        for product, count in coverage.macs.items()
    )


def _element(name: str) -> str:
    """Return the element format of a scaled format, for example e4m3fn for mxfp8_e4m3. Return other names unchanged."""
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
