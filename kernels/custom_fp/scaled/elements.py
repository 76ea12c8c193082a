"""Elements of blocks in torch: step 5 of formats/block.py, and their codes. Values are float32, of any shape."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from custom_fp.formats.block import BlockFormat
from custom_fp.formats.scale import Integer
from custom_fp.operators import table as operators
from custom_fp.reference import goes_up, round_to_format
from custom_fp.rounding import Overflow, Rounding, Rule


def rounded(fmt: BlockFormat, q: Tensor, rule: Rule, random: Tensor | None) -> Tensor:
    """q, within the elements' least and largest value, rounded to those. random: 32 bits for each (int64), where
    rounding is stochastic."""
    if fmt.is_integer:
        return to_integer(fmt.of, q, rule, random)
    if random is not None:
        saturating = replace(rule, overflow=Overflow.SATURATE)
        return round_to_format(q.double(), fmt.of, saturating, random).float()
    return operators.quantize.compute(q, fmt.of, rule.rounding, Overflow.SATURATE)


def to_integer(kind: Integer, q: Tensor, rule: Rule, random: Tensor | None) -> Tensor:
    units = q.double() / kind.unit
    if rule.rounding is Rounding.NEAREST_EVEN:
        whole = units.round()
    else:
        whole = units.trunc()
        up = goes_up(whole.abs(), (units - whole).abs(), torch.signbit(units), rule, random)
        whole = whole + torch.copysign(up.double(), units)
    return (whole * kind.unit).float() + 0.0  # no -0


def codes(fmt: BlockFormat, elements: Tensor) -> Tensor:
    """uint8; an integer's in two's complement."""
    if fmt.is_integer:
        units = (elements / fmt.of.unit).to(torch.int16)
        return (units & (1 << fmt.code_bits) - 1).to(torch.uint8)
    return operators.encode.compute(elements, fmt.of)[0]


def of_codes(fmt: BlockFormat, codes: Tensor) -> Tensor:
    if fmt.is_integer:
        unused = 16 - fmt.code_bits
        return (codes.to(torch.int16) << unused >> unused).to(torch.float32) * fmt.of.unit
    return operators.decode.compute([codes], fmt.of)
