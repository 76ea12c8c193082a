"""The test vectors of a number format: for each input, the result that the definition requires."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from custom_fp.backends import function
from custom_fp.formats.protocol import NumberFormat
from custom_fp.reference import random_words
from custom_fp.rounding import Rule
from custom_fp.vectors.blocks import blocks, other_block, size_of
from custom_fp.vectors.inputs import inputs

Row = dict[str, Any]
INPUTS = 0xFFFFFFFE  # the random stream of the inputs; rounding uses other streams


def rules(roundings: Sequence[str], overflows: Sequence[str], seed: int) -> list[Rule]:
    """Return a rule for each pair of a rounding mode and an overflow mode."""
    return [Rule.of(rounding, overflow, seed) for rounding, overflow in product(roundings, overflows)]


def rows(fmt: NumberFormat, rules: Sequence[Rule], count: int, seed: int) -> Iterator[Row]:
    """Yield a row for each rule and each input, or for each rule and each block if the format has scales.

    The random bits in a row are those that quantize uses with the seed of the rule, either for a tensor of all inputs
    in the order of the rows, or for the tensor of the block.

    Args:
        fmt: The format.
        rules: The rounding rules to test.
        count: The number of random inputs or blocks.
        seed: The seed of the random inputs.
    """
    words_per_input = size_of(fmt) if fmt.has_scales else 2
    words = random_words(count * words_per_input, INPUTS, seed, torch.device("cpu")).tolist()
    for rule in rules:
        yield from (_block_rows if fmt.has_scales else _value_rows)(fmt, rule, words)


def _value_rows(fmt: NumberFormat, rule: Rule, words: Sequence[int]) -> Iterator[Row]:
    cases = inputs(fmt, words)
    x = _floats(list(cases))
    data = _pack(x, fmt, rule)
    codes, values = codes_in(data, len(cases), fmt.code_bits), _unpack(data, fmt, x.shape)
    random = _random_bits(rule, len(cases))
    for i, (bits, case) in enumerate(cases.items()):
        row = {"case": case, "input": _hex(bits, 32), **_mode(rule, fmt)}
        row |= {"random": _hex(random[i], 32)} if random else {}
        yield row | {"code": _hex(codes[i], fmt.code_bits), "value": _hex(values[i], 32)}


def _block_rows(fmt: NumberFormat, rule: Rule, words: Sequence[int]) -> Iterator[Row]:
    shape = shape_of(fmt)
    for case, block in blocks(fmt, words):
        bits = _side_by_side(block, other_block(fmt), fmt) if fmt.has_tensor_scale else block
        x = _floats(bits).view(shape)
        data = _pack(x, fmt, rule)
        random = _random_bits(rule, len(bits))
        row = {"case": case, "inputs": _hexes(bits, 32), **_mode(rule, fmt)}
        row |= {"random": _hexes(random, 32)} if random else {}
        values = _unpack(data, fmt, shape)
        yield row | _split(data, fmt, shape) | {"values": _hexes(values, 32)}


def shape_of(fmt: NumberFormat) -> tuple[int, ...]:
    """Return the shape of a row's tensor, for formats with scales: one block, or two if the tensor has a scale."""
    if not fmt.has_scales:
        return ()
    times = 1 + fmt.has_tensor_scale
    if isinstance(fmt.block, tuple):
        return fmt.block[0], fmt.block[1] * times
    if fmt.block == "column":
        return size_of(fmt), times
    return (size_of(fmt) * times,) if fmt.block != "row" else (times, size_of(fmt))


def _side_by_side(block: Sequence[int], other: Sequence[int], fmt: NumberFormat) -> list[int]:
    """Return the values of a tensor that consists of two blocks next to each other, in memory order."""
    if not isinstance(fmt.block, tuple) and fmt.block != "column":
        return [*block, *other]
    width = fmt.block[1] if isinstance(fmt.block, tuple) else 1
    both = [[values[i : i + width] for i in range(0, len(values), width)] for values in (block, other)]
    return [bits for pair in zip(*both, strict=True) for row in pair for bits in row]


def _mode(rule: Rule, fmt: NumberFormat) -> Row:
    return {"rounding": rule.word} | ({} if fmt.has_scales else {"overflow": str(rule.overflow)})


def _random_bits(rule: Rule, n: int) -> list[int]:
    return random_words(n, 0, rule.seed or 0, torch.device("cpu")).tolist() if rule.is_stochastic else []


# ---- packed bytes


def _pack(x: Tensor, fmt: NumberFormat, rule: Rule) -> Tensor:
    data = torch.empty(fmt.packed_size(x.shape), dtype=torch.uint8)
    function("pack", fmt.backends, "any")(x, fmt, 0, rule, data)
    return data


def _unpack(data: Tensor, fmt: NumberFormat, shape: Sequence[int]) -> list[int]:
    """Return the bits of the float32 values of packed bytes."""
    out = torch.empty(shape, dtype=torch.float32)
    function("unpack", fmt.backends, "any")(data, fmt, 0, out)
    return (out.view(-1).view(torch.int32).long() & 0xFFFFFFFF).tolist()


def _split(data: Tensor, fmt: NumberFormat, shape: tuple[int, ...]) -> Row:
    """Split packed bytes into a dict with the keys tensor_scale, scales, zero_points and codes, in this order."""
    count, start = fmt.layout(shape).scales, 0
    found: Row = {}
    parts = (
        ("tensor_scale", 32, int(fmt.has_tensor_scale)),
        ("scales", fmt.scale_bits, count),
        ("zero_points", 8, count if fmt.has_zero_point else 0),
    )
    for name, bits, n in parts:
        end = start + n * bits // 8
        if n:
            found[name] = _hexes(codes_in(data[start:end], n, bits), bits)
        start = end
    n = torch.Size(shape).numel()
    return found | {"codes": _hexes(codes_in(data[start:], n, fmt.code_bits), fmt.code_bits)}


def codes_in(data: Tensor, n: int, bits: int) -> list[int]:
    """Return the first n codes in packed bytes. Code j starts at bit j * bits, little-endian."""
    digits = data.long()[:, None] >> torch.arange(8) & 1
    weights = 1 << torch.arange(bits)
    return (digits.view(-1)[: n * bits].view(n, bits) * weights).sum(1).tolist()


def _floats(bits: Sequence[int]) -> Tensor:
    return torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)


def _hex(code: int, bits: int) -> str:
    return f"{code:0{-(-bits // 4)}x}"


def _hexes(codes: Sequence[int], bits: int) -> list[str]:
    return [_hex(code, bits) for code in codes]
