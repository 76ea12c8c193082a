"""Rounding and encoding of the elements of scaled formats: step 5 of formats/scaled_format.py.

Values are float32 in blocks, of shape (B, K). Elements are rounded, encoded and decoded by the operators for formats
without scales, so compiled code is used if it is available for the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from custom_fp.formats.elements import Element, Integer, ValueTable
from custom_fp.formats.layout import Layout
from custom_fp.operators import table as operators
from custom_fp.rounding import Overflow, Rule
from custom_fp.scaled.blocks import from_blocks, to_blocks


def round_elements(element: Element, q_BxK: Tensor, layout: Layout, rule: Rule) -> Tensor:
    """Round float32 values that lie within the range of the elements.

    Args:
        element: The format of the elements.
        q_BxK: The values.
        layout: How the tensor is cut into blocks. Stochastic rounding uses random words in the order of the tensor.
        rule: How to round.
    """
    number = element.as_scalar if isinstance(element, Integer) else element
    q = from_blocks(q_BxK, layout) if rule.is_stochastic else q_BxK
    found = operators.quantize.compute(q, number, rule.word, Overflow.SATURATE, rule.seed, rule.offset)
    if isinstance(element, Integer):
        found += 0.0  # integers have no -0
    return to_blocks(found, layout) if rule.is_stochastic else found


def to_codes(element: Element, elements_BxK: Tensor, zeros_B: Tensor | None) -> Tensor:
    """Return the codes of elements as uint8. With zero points, a code is the element plus the zero point."""
    if zeros_B is not None:
        return (elements_BxK + zeros_B[:, None]).to(torch.uint8)
    if isinstance(element, Integer):
        return (elements_BxK / element.unit).to(torch.int8).view(torch.uint8) & (1 << element.code_bits) - 1
    return operators.encode.compute(elements_BxK, element)[0]


def from_codes(element: Element, codes_BxK: Tensor, zeros_B: Tensor | None) -> Tensor:
    """Return the elements that codes represent, as float32."""
    if zeros_B is not None:
        return codes_BxK.float() - zeros_B.float()[:, None]
    if isinstance(element, Integer):
        unused = 8 - element.code_bits
        return ((codes_BxK << unused).view(torch.int8) >> unused).float() * element.unit
    found = operators.decode.compute([codes_BxK], element)
    if isinstance(element, ValueTable) and len(element.values) < 256:
        found.masked_fill_(
            codes_BxK >= len(element.values), math.nan
        )  # these bytes are not codes of the table
    return found
