"""The compiled CPU backend for formats with scales (csrc/tiles/ and csrc/scaled/).

To encode codebooks and integers with zero points along an axis other than the last one, tensors are transposed first.
There are no kernels for codebooks in tiles, nor for integers with zero points and other rounding than nearest even.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache, partial

import torch
from torch import Tensor, get_num_threads

from custom_fp import _native  # type: ignore[attr-defined]  # the compiled module has no type stub
from custom_fp.formats.elements import ValueTable
from custom_fp.formats.layout import Layout
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.rounding import Rounding, Rule
from custom_fp.scaled.arithmetic import NEAREST, ScaledReference
from custom_fp.scaled.blocks import single
from custom_fp.scaled.search import search_of

LONG = 1 << 17  # longer blocks are divided among several threads, as `grain` in csrc/cpu/parallel.h


class NativeScaled(ScaledReference):
    """The CPU kernels for scaled formats, selected by operator and by `ScaledFormat.kernels`."""

    def kernel(
        self, operator: str, fmt: ScaledFormat, layout: Layout, rule: Rule = NEAREST
    ) -> Callable[..., None] | None:
        if fmt.kernels == "tiles":
            is_dense = operator in ("pack", "unpack")
            if is_dense and not _is_one_row(layout):
                return None
            if operator == "quantize":
                return partial(_quantize_tiles, fmt, layout, rule)
            if operator in ("decode", "unpack"):
                return partial(_decode_tiles, fmt, layout, is_dense)
            return partial(_encode_tiles, fmt, layout, rule, is_dense)
        if fmt.kernels == "codebook":
            return _codebook_kernel(operator, fmt, layout)
        if fmt.kernels == "affine" and rule.rounding is Rounding.NEAREST_EVEN:
            return _affine_kernel(operator, fmt, layout)
        return None

    def quantize_delayed(
        self, x: Tensor, magnitudes: Tensor, fmt: ScaledFormat, records: bool, rule: Rule, out: Tensor
    ) -> None:
        """Round as `ScaledReference.quantize_delayed` does, but pass the scale to the kernel."""
        x = single(x)
        can_fix_scale = fmt.kernels == "tiles" and fmt.scale.rule == "amax" and fmt.scale.format.bits == 32
        low, high = torch.stack(x.aminmax()).tolist() if can_fix_scale and x.numel() else (0.0, math.nan)
        before = magnitudes[1:].max().item()
        if not (-math.inf < low and high < math.inf and before > 0):  # NaN, infinity, or no history
            super().quantize_delayed(x, magnitudes, fmt, records, rule, out)
            return
        own = max(high, -low)  # max(-low, high) would be -0.0 if x is zero
        if records and own > magnitudes[0].item():
            magnitudes[0] = own
        if own > before:
            x = x.clamp(-before, before)
        args = _tiling(fmt.layout(x.shape)), _fixed_scaling(fmt, before), *_rule_args(rule), get_num_threads()
        _native.quantize_tiles(x.data_ptr(), out.data_ptr(), *args)

    def join(self, codes_n: Tensor, bits: int, out: Tensor) -> None:
        addresses, n = (codes_n.data_ptr(), out.data_ptr()), codes_n.numel()
        if bits == 4:
            _native.join_halves(*addresses, n, get_num_threads())
            out[(n + 1) // 2 :].zero_()
        else:
            _native.join_codes(*addresses, n, bits, get_num_threads())

    def split(self, data: Tensor, n: int, bits: int) -> Tensor:
        if bits == 8:
            return data[:n]
        codes_n = torch.empty(n, dtype=torch.uint8)
        addresses = data.data_ptr(), codes_n.data_ptr()
        if bits == 4:
            _native.split_halves(*addresses, n, get_num_threads())
        else:
            _native.split_codes(*addresses, n, bits, get_num_threads())
        return codes_n


def _call(function: Callable[..., None], *rest: object) -> Callable[..., None]:
    """Return a function of tensors that calls `function` with their addresses, `rest`, and the number of threads."""
    return lambda *tensors: function(*(x.data_ptr() for x in tensors), *rest, get_num_threads())


def _rows(layout: Layout) -> tuple[int, int, int]:
    """Return the number of rows, the length of a row, and the size of a block, for blocks along rows."""
    return layout.planes * layout.rows, layout.columns, layout.width


def _by_rows(operator: str, fmt: ScaledFormat, layout: Layout, *tensors: Tensor) -> None:
    """Encode or decode blocks along columns, by transposing the matrices so that blocks run along rows."""
    planes, rows, columns = layout.planes, layout.rows, layout.columns
    blocks = -(-rows // layout.height)
    across = Layout(planes, columns, rows, 1, layout.height, (planes, columns, blocks))
    kernel = backend.kernel(operator, fmt, across)
    assert kernel is not None
    sizes = [blocks if x.numel() < layout.numel else rows for x in tensors]
    # squeeze(0), because PyTorch transposes a single matrix faster
    transposed = [x.view(planes, n, columns).squeeze(0).mT for x, n in zip(tensors, sizes, strict=True)]
    inputs = 1 if operator == "encode" else len(tensors) - 1
    results = [torch.empty(x.shape, dtype=x.dtype) for x in transposed[inputs:]]
    kernel(*(x.contiguous() for x in transposed[:inputs]), *results)
    for to, result in zip(transposed[inputs:], results, strict=True):
        to.copy_(result)


# ---- scalar elements and integers in blocks and tiles


def _quantize_tiles(fmt: ScaledFormat, layout: Layout, rule: Rule, x: Tensor, out: Tensor) -> None:
    args = _tiling(layout), _scaling(fmt), *_rule_args(rule), get_num_threads()
    _native.quantize_tiles(x.data_ptr(), out.data_ptr(), *args)


def _encode_tiles(
    fmt: ScaledFormat,
    layout: Layout,
    rule: Rule,
    is_dense: bool,
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    *tensor_scale: Tensor,
) -> None:
    addresses = x.data_ptr(), scales.data_ptr(), codes.data_ptr()
    args = _tiling(layout), _scaling(fmt), *_rule_args(rule), get_num_threads()
    t = _native.encode_tiles(*addresses, is_dense, *args)
    for found in tensor_scale:
        found.fill_(t)


def _decode_tiles(
    fmt: ScaledFormat, layout: Layout, is_dense: bool, codes: Tensor, scales: Tensor, *rest: Tensor
) -> None:
    *tensor_scale, out = rest
    t = tensor_scale[0].item() if tensor_scale else 1.0
    addresses = scales.data_ptr(), codes.data_ptr(), is_dense, out.data_ptr()
    _native.decode_tiles(*addresses, _tiling(layout), _scaling(fmt), t, get_num_threads())


def _rule_args(rule: Rule) -> tuple[int, ...]:
    """Return the mode, the seed, the offset and the mask of random bits."""
    mode, _, *random = rule.flat
    return mode, *random


def _is_one_row(layout: Layout) -> bool:
    """Return whether a kernel can pack codes directly, because each thread's part begins at a whole byte."""
    return layout.as_rows.rows == 1 == layout.planes and (
        layout.height == 1 and (layout.width <= LONG or layout.width >= layout.columns)
    )


@lru_cache(maxsize=4096)
def _tiling(layout: Layout) -> _native.Tiling:
    flat = layout.as_rows
    return _native.Tiling(flat.planes, flat.rows, flat.columns, flat.height, flat.width)


@cache
def _scaling(fmt: ScaledFormat) -> _native.Scaling:
    return _native.Scaling(*fmt.parts)


def _fixed_scaling(fmt: ScaledFormat, amax: float) -> _native.Scaling:
    """Return a `Scaling` with the float32 scale for the given largest magnitude, regardless of the tensor."""
    scale = max(amax / fmt.target, fmt.scale.format.smallest)
    parts = fmt.parts
    # parts[9] and parts[10] are the smallest and the largest allowed scale.
    return _native.Scaling(*parts[:9], scale, scale, *parts[11:])


# ---- integers with zero points


def _affine_kernel(operator: str, fmt: ScaledFormat, layout: Layout) -> Callable[..., None] | None:
    largest = int(fmt.element.max)
    tiles = layout.planes, layout.rows, layout.columns, layout.height, layout.width
    match operator, layout.height == 1:
        case "quantize", True:
            return _call(_native.affine_quantize, *_rows(layout), largest)
        case "quantize", False if layout.width == 1:
            return _call(_native.affine_columns, *tiles[:4], largest)
        case "quantize", False:
            return _call(lambda x, out, *rest: _native.affine_tiles(x, out, 0, 0, 0, *rest), *tiles, largest)
        case "encode" | "decode", False if layout.width == 1:
            return partial(_by_rows, operator, fmt, layout)
        case "encode", True:
            return _call(_native.affine_encode, *_rows(layout), largest)
        case "encode", False:
            return _call(lambda x, *rest: _native.affine_tiles(x, 0, *rest), *tiles, largest)
        case "decode", True:
            return _call(_native.affine_decode, *_rows(layout))
        case "decode", False:
            return _call(_native.affine_decode_tiles, *tiles)
    return None


# ---- codebooks


def _codebook_kernel(operator: str, fmt: ScaledFormat, layout: Layout) -> Callable[..., None] | None:
    assert isinstance(fmt.element, ValueTable)
    (tables, _), values = _tables(fmt.element), _values(fmt.element).data_ptr()
    if layout.height > 1:
        if layout.width > 1:
            return None
        if operator == "quantize":
            sizes = layout.planes, layout.rows, layout.columns, layout.height
            return _call(_native.codebook_columns, *sizes, tables)
        return partial(_by_rows, operator, fmt, layout) if operator in ("encode", "decode") else None
    match operator:
        case "quantize":
            return _call(_native.codebook_quantize, *_rows(layout), tables)
        case "encode":
            return _call(_native.codebook_encode, *_rows(layout), tables)
        case "decode":
            return _call(_native.codebook_decode, *_rows(layout), values)
        case "pack" if layout.as_rows.rows == layout.planes == 1:
            if fmt.code_bits == 8:
                return partial(
                    _pack_bytes, _call(_native.codebook_encode, 1, layout.numel, layout.width, tables)
                )
            if fmt.code_bits == 4 and (layout.width % 2 == 0 or layout.scales == 1):
                halves = _call(_native.codebook_pack_halves, layout.numel, layout.width, tables)
                return partial(_pack_bytes, halves)
    return None


def _pack_bytes(kernel: Callable[..., None], x: Tensor, body: Tensor, scales: Tensor) -> None:
    kernel(x, body, scales)
    bits = body.numel() // -(-x.numel() // 8)
    body[-(-x.numel() * bits // 8) :].zero_()


@cache
def _tables(table: ValueTable) -> tuple[_native.CodebookTables, object]:
    """Return the tables as an argument of compiled functions, and the object that keeps their memory alive."""
    search = search_of(table, "cpu")
    return _native.CodebookTables(*search.addresses(int), len(table.sorted_codes)), search


@cache
def _values(table: ValueTable) -> Tensor:
    """Return the value of each of 256 bytes. Bytes that are not codes of the table are NaN."""
    rest = [math.nan] * (256 - len(table.values))
    return torch.tensor([*table.values, *rest], dtype=torch.float32)


backend = NativeScaled()
