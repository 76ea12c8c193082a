"""Whether the operands of products are what their accumulators find scales in, before a layer is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from custom_fp.accumulator import Accumulator, is_name


def check(
    accumulators: Mapping[str, str],
    roundings: Mapping[tuple[str, str], Any],
    operands: Mapping[str, Iterable[str]],
) -> None:
    """accumulators: by product. operands: the roles of each product's factors, in their order. Raises ValueError for
    one that is not rounded to the accumulator's format; of a rounding that has no format nothing is known."""
    for product, name in accumulators.items():
        how = Accumulator.parse(name) if is_name(name) else None
        if how is None or not how.scales:
            continue
        for role, fmt in zip(operands[product], how.operands, strict=True):
            rounding = roundings.get((role, product))
            found = getattr(rounding, "format", getattr(rounding, "fmt", None))
            if rounding is None or (found is not None and str(found) != fmt.name):
                raise ValueError(
                    f"accumulator {name} of the {product} product takes the {role} in {fmt}, and it is in "
                    f"{found or 'float32'}: a rule with role: {role}, product: {product}, format: {fmt} rounds it"
                )
