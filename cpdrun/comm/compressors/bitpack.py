"""Pack k-bit integers into bytes without gaps, row by row, in the little-endian order of `custom_fp.pack`.

Codes of fewer than 8 bits are packed eight at a time, as the lanes of an int64. Codes of 8 bits are already
bytes. Wider codes are packed one by one.

Shapes: W rows, m numbers per row, k bits each, G = ceil(m / 8) groups of eight, each of which fills k bytes.
"""

import torch
from torch import Tensor

from cpdrun.comm.wire.message_layout import ceil_div

GROUP = 8


def packed_bytes(m: int, bits: int) -> int:
    """Return the length of a row of m packed numbers."""
    return ceil_div(m * bits, 8)


def code_dtype(bits: int) -> torch.dtype:
    """Return the smallest dtype that can store a code of this many bits."""
    return torch.uint8 if bits <= 8 else torch.int32 if bits < 32 else torch.int64


def pack_codes(code_Wxm: Tensor, bits: int) -> Tensor:
    """Pack integers from 0 to 2^bits - 1 into bytes.

    Returns:
        A tensor (W, packed_bytes), uint8. Unused bits of the last byte are 0.
    """
    W, m = code_Wxm.shape
    if bits == 8:
        return code_Wxm.to(torch.uint8)
    code_Wxm = torch.nn.functional.pad(code_Wxm.to(code_dtype(bits)), (0, -m % GROUP))
    grouped_WxGxk = (_close if bits < 8 else _lay)(code_Wxm.contiguous().view(W, -1, GROUP), bits)
    return grouped_WxGxk.reshape(W, -1)[:, : packed_bytes(m, bits)]


def unpack_codes(data_WxM: Tensor, bits: int, m: int) -> Tensor:
    """Unpack bytes (W, packed_bytes) to codes (W, m), int64."""
    return _unpack(data_WxM, bits, m).long()


def unpack_floats(data_WxM: Tensor, bits: int, m: int) -> Tensor:
    """Unpack bytes (W, packed_bytes) to codes (W, m) in float32, which is exact for up to 24 bits."""
    return _unpack(data_WxM, bits, m).float()


def _unpack(data_WxM: Tensor, bits: int, m: int) -> Tensor:
    W, data_WxM = len(data_WxM), data_WxM[:, : packed_bytes(m, bits)]
    if bits == 8:
        return data_WxM
    filled = torch.nn.functional.pad(data_WxM, (0, ceil_div(m, GROUP) * bits - data_WxM.shape[1]))
    grouped_WxGx8 = (_open if bits < 8 else _lift)(filled.view(W, -1, bits), bits)
    return grouped_WxGx8.reshape(W, -1)[:, :m]


def _steps(bits: int) -> list[tuple[int, int, int]]:
    """Return the steps that merge pairs of lanes, for `_close` and `_open`.

    Each step is a tuple: the number of unused bits between two lanes, the mask that selects the lower lane of each
    pair, and the mask that selects the upper lane.
    """
    steps, width = [], bits
    for lane in (8, 16, 32):
        lower = sum(((1 << width) - 1) << place for place in range(0, 64, 2 * lane))
        steps.append((lane - width, lower, lower << lane))
        width *= 2
    return steps


def _close(code_WxGx8: Tensor, bits: int) -> Tensor:
    """Pack codes of fewer than 8 bits to bytes (W, G, k).

    The unused bits are removed first within pairs of codes, then between pairs, then between groups of four.
    """
    word_WxG = code_WxGx8.view(torch.int64)[..., 0]
    for gap, lower, upper in _steps(bits):
        word_WxG = (word_WxG & lower) | ((word_WxG & upper) >> gap)
    return word_WxG[..., None].view(torch.uint8)[..., :bits]


def _open(data_WxGxk: Tensor, bits: int) -> Tensor:
    """Unpack bytes to codes (W, G, 8), uint8. This is the inverse of `_close`."""
    word_WxG = torch.nn.functional.pad(data_WxGxk, (0, 8 - bits)).view(torch.int64)[..., 0]
    for gap, lower, upper in reversed(_steps(bits)):
        word_WxG = (word_WxG & lower) | ((word_WxG << gap) & upper)
    return word_WxG[..., None].view(torch.uint8)


def _lay(code_WxGx8: Tensor, bits: int) -> Tensor:
    """Pack codes of more than 8 bits to bytes (W, G, k)."""
    data_WxGxk = code_WxGx8.new_zeros(*code_WxGx8.shape[:2], bits, dtype=torch.uint8)
    for i in range(GROUP):
        code_WxG = code_WxGx8[..., i].long() << (i * bits % 8)
        for b in range(i * bits // 8, ceil_div((i + 1) * bits, 8)):
            data_WxGxk[..., b] |= (code_WxG & 255).to(torch.uint8)
            code_WxG = code_WxG >> 8
    return data_WxGxk


def _lift(data_WxGxk: Tensor, bits: int) -> Tensor:
    """Unpack bytes to codes (W, G, 8), int64. This is the inverse of `_lay`."""
    code_WxGx8 = data_WxGxk.new_zeros(*data_WxGxk.shape[:2], GROUP, dtype=torch.int64)
    for i in range(GROUP):
        first = i * bits // 8
        for b in range(first, ceil_div((i + 1) * bits, 8)):
            code_WxGx8[..., i] |= data_WxGxk[..., b].long() << (8 * (b - first))
    place_8 = torch.arange(GROUP, device=data_WxGxk.device) * bits % 8
    return (code_WxGx8 >> place_8) & ((1 << bits) - 1)
