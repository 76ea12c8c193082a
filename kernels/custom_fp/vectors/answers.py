"""What the definition makes of inputs: rows of the file."""

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
INPUTS = 0xFFFFFFFE  # the stream of random inputs, apart from what rounding draws from


def rules(roundings: Sequence[str], overflows: Sequence[str], seed: int) -> list[Rule]:
    return [Rule(rounding, overflow, seed) for rounding, overflow in product(roundings, overflows)]


def rows(fmt: NumberFormat, asked: Sequence[Rule], count: int, seed: int) -> Iterator[Row]:
    """A row for each input, or block, and rule; `count` of them at random. The random bits of a value are those that
    quantize draws, with this seed, for the tensor of all inputs in the order of the rows, or for the block's."""
    each = size_of(fmt) if fmt.has_scales else 2
    words = random_words(count * each, INPUTS, seed, torch.device("cpu")).tolist()
    for rule in asked:
        yield from (_of_blocks if fmt.has_scales else _of_values)(fmt, rule, words)


def _of_values(fmt: NumberFormat, rule: Rule, words: Sequence[int]) -> Iterator[Row]:
    cases = inputs(fmt, words)
    x = _floats(list(cases))
    data = _packed(x, fmt, rule)
    codes, values = codes_in(data, len(cases), fmt.code_bits), _unpacked(data, fmt, x.shape)
    drawn = _drawn(rule, len(cases))
    for i, (bits, case) in enumerate(cases.items()):
        row = {"case": case, "input": _hex(bits, 32), **_mode(rule, fmt)}
        row |= {"random": _hex(drawn[i], 32)} if drawn else {}
        yield row | {"code": _hex(codes[i], fmt.code_bits), "value": _hex(values[i], 32)}


def _of_blocks(fmt: NumberFormat, rule: Rule, words: Sequence[int]) -> Iterator[Row]:
    shape = shape_of(fmt)
    for case, block in blocks(fmt, words):
        bits = _beside(block, other_block(fmt), fmt) if fmt.has_tensor_scale else block
        x = _floats(bits).view(shape)
        data = _packed(x, fmt, rule)
        drawn = _drawn(rule, len(bits))
        row = {"case": case, "inputs": _hexes(bits, 32), **_mode(rule, fmt)}
        row |= {"random": _hexes(drawn, 32)} if drawn else {}
        values = _unpacked(data, fmt, shape)
        yield row | _taken_apart(data, fmt, shape) | {"values": _hexes(values, 32)}


def shape_of(fmt: NumberFormat) -> tuple[int, ...]:
    """Of the tensor that a row of a format with scales is: one block, or two beside each other."""
    if not fmt.has_scales:
        return ()
    times = 1 + fmt.has_tensor_scale
    if isinstance(fmt.block, tuple):
        return fmt.block[0], fmt.block[1] * times
    if fmt.block == "column":
        return size_of(fmt), times
    return (size_of(fmt) * times,) if fmt.block != "row" else (times, size_of(fmt))


def _beside(block: Sequence[int], other: Sequence[int], fmt: NumberFormat) -> list[int]:
    """The values of a tensor of two blocks, in its order."""
    if not isinstance(fmt.block, tuple) and fmt.block != "column":
        return [*block, *other]
    width = fmt.block[1] if isinstance(fmt.block, tuple) else 1
    both = [[some[i : i + width] for i in range(0, len(some), width)] for some in (block, other)]
    return [bits for pair in zip(*both, strict=True) for row in pair for bits in row]


def _mode(rule: Rule, fmt: NumberFormat) -> Row:
    return {"rounding": rule.word} | ({} if fmt.has_scales else {"overflow": str(rule.overflow)})


def _drawn(rule: Rule, n: int) -> list[int]:
    return random_words(n, 0, rule.seed, torch.device("cpu")).tolist() if rule.is_stochastic else []


# ---- bytes


def _packed(x: Tensor, fmt: NumberFormat, rule: Rule) -> Tensor:
    data = torch.empty(fmt.packed_size(x.shape), dtype=torch.uint8)
    function("pack", fmt.backends, "any")(x, fmt, 0, rule, data)
    return data


def _unpacked(data: Tensor, fmt: NumberFormat, shape: Sequence[int]) -> list[int]:
    """The bits of the values."""
    out = torch.empty(shape, dtype=torch.float32)
    function("unpack", fmt.backends, "any")(data, fmt, 0, out)
    return (out.view(-1).view(torch.int32).long() & 0xFFFFFFFF).tolist()


def _taken_apart(data: Tensor, fmt: NumberFormat, shape: tuple[int, ...]) -> Row:
    """tensor_scale, scales, zero_points and codes, in their order in packed bytes (protocol.py: packed_size)."""
    count, parts, at = fmt.layout(shape).scales, {}, 0
    known = (
        ("tensor_scale", 32, int(fmt.has_tensor_scale)),
        ("scales", fmt.scale_bits, count),
        ("zero_points", 8, count if fmt.has_zero_point else 0),
    )
    for name, bits, n in known:
        end = at + n * bits // 8
        if n:
            parts[name] = _hexes(codes_in(data[at:end], n, bits), bits)
        at = end
    n = torch.Size(shape).numel()
    return parts | {"codes": _hexes(codes_in(data[at:], n, fmt.code_bits), fmt.code_bits)}


def codes_in(data: Tensor, n: int, bits: int) -> list[int]:
    """Code j from bit j * k on, little-endian."""
    each = data.long()[:, None] >> torch.arange(8) & 1
    weights = 1 << torch.arange(bits)
    return (each.view(-1)[: n * bits].view(n, bits) * weights).sum(1).tolist()


def _floats(bits: Sequence[int]) -> Tensor:
    return torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)


def _hex(code: int, bits: int) -> str:
    return f"{code:0{-(-bits // 4)}x}"


def _hexes(codes: Sequence[int], bits: int) -> list[str]:
    return [_hex(code, bits) for code in codes]
