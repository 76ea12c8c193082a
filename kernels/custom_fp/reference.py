"""The reference implementation of every operator, in PyTorch and float64. It is slow, but readable and exact.

This module defines the results of the operators, and the native and CUDA kernels return the same bits. The reference
implementation also runs where the kernels cannot run (backends.py then warns once). Its functions receive what
operators/table.py passes to every backend: contiguous float32 or float64 tensors on any device, and a tensor `out` for
the result. A format is a scalar format or a table. tabulated/rounding.py implements the arithmetic of tables.

A float64 represents every float32 and every product of two float32 values exactly, and scaling by a power of two is
exact. The functions below therefore round only where the operator rounds. They round intermediate sums to odd
(`add_to_odd`), which does not change the final rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from custom_fp.formats.scalar import Format
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.rounding import Rule
from custom_fp.tabulated.rounding import Place, codes_of_values, goes_up, round_to_table, values_of_codes

INFINITY = float("inf")
LARGEST, SMALLEST = (2 - 2.0**-52) * 2.0**1023, 2.0**-1074  # of float64
NEAREST = Rule()
HADAMARD = 0xFFFFFFFF  # the random stream of the signs of hadamard; rounding uses other streams


def power_of_two(exponent: Tensor) -> Tensor:
    """Return 2.0**exponent in float64 for an integer tensor of exponents from -1022 to 1023."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def round_to_format(
    x: Tensor, fmt: Format | Tabulated, rule: Rule = NEAREST, random: Tensor | None = None
) -> Tensor:
    """Round float64 values to a format and return them as float64.

    Args:
        x: The values.
        fmt: A scalar format or a table.
        rule: The rounding mode and the overflow mode.
        random: 32 random bits for each element (int64), for stochastic rounding. The first `rule.bits` of them are
            used.
    """
    if isinstance(fmt, Tabulated):
        return round_to_table(x, fmt, rule, random)
    magnitude, is_negative = x.abs(), torch.signbit(x)
    quantum = power_of_two(_exponent(magnitude, fmt) - fmt.mantissa_bits)
    significand = magnitude / quantum  # below 2**(m + 1)
    significand = torch.where((significand == 0) & (magnitude != 0), SMALLEST, significand)
    digits = significand.floor()
    distance, is_odd = significand - digits, digits % 2 == 1
    # for m = 0, ties round to even in units of the quantum: 1.5 becomes 2, and 0.5 becomes 0, as IEEE 754 requires
    place = Place(distance > 0, distance > 0.5, distance == 0.5, is_odd, is_odd, is_negative, distance)
    result = (digits + goes_up(place, rule, random)) * quantum

    largest, infinity = fmt.max, infinite(fmt, rule)
    past = [infinity if rule.overflows(side, fmt.max_is_odd) else largest for side in (False, True)]
    past_largest = torch.where(is_negative, past[1], past[0]).double()
    result = torch.where(result > largest, past_largest, result)
    result = torch.where(magnitude == INFINITY, infinity, result)
    result = torch.copysign(result, x)
    if not fmt.is_signed:
        number, infinite_one = rule.below_zero(fmt.has_nan)
        result = torch.where(
            result < 0, torch.where(magnitude == INFINITY, infinite_one, number).double(), result
        )
    if not fmt.has_negative_zero:
        result = result + 0.0
    nan = float("nan") if fmt.has_nan else INFINITY if fmt.has_inf else largest
    return torch.where(x.isnan() | result.isnan(), nan, result)


def infinite(fmt: Format, rule: Rule) -> float:
    """Return the value that infinity is rounded to."""
    if rule.saturates or (rule.propagates and not fmt.has_inf):
        return fmt.max
    return INFINITY if fmt.has_inf else float("nan") if fmt.has_nan else fmt.max


def _exponent(magnitude: Tensor, fmt: Format) -> Tensor:
    """Return floor(log2(magnitude)), but at least the format's emin. This exponent determines the spacing of values."""
    exponent = torch.frexp(magnitude).exponent.to(torch.int64) - 1
    return torch.where(magnitude == 0, fmt.emin, exponent.clamp(fmt.emin, 1000))


def write(value: Tensor, out: Tensor) -> None:
    """Write float32 values to `out`. Every NaN gets the same bits, because GPUs and CPUs convert NaN differently."""
    out.copy_(value)
    out.masked_fill_(out.isnan(), float("nan"))


def quantize(x: Tensor, fmt: Format | Tabulated, rule: Rule, out: Tensor) -> None:
    write(_round(x.double(), fmt, rule), out)


def _round(x: Tensor, fmt: Format | Tabulated, rule: Rule, stream: int = 0) -> Tensor:
    """Round to a format. Stochastic rounding reads random words from rule.offset onward in the given stream."""
    random = None
    if rule.is_stochastic:
        assert rule.seed is not None
        random = random_words(x.numel(), stream, rule.seed, x.device, rule.offset).view(x.shape)
    return round_to_format(x, fmt, rule, random)


# ---- the random number generator ---------------------------------------------------------------------------


def philox4x32(counter: Sequence[Tensor], key: tuple[int, int], rounds: int = 7) -> list[Tensor]:
    """Return the words of Philox4x32-7 (Salmon et al., SC 2011): int64 tensors of 32-bit words."""
    mask = 0xFFFFFFFF
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        high_a, low_a = _wide_product(c0, 0xD2511F53)
        high_b, low_b = _wide_product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = k0 + 0x9E3779B9 & mask, k1 + 0xBB67AE85 & mask
    return [c0, c1, c2, c3]


def _wide_product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    high = ((a >> 16) * b + ((a & 0xFFFF) * b >> 16)) >> 16
    return high, a * b & 0xFFFFFFFF  # the int64 product wraps around, but its low half is correct


def random_words(n: int, stream: int, seed: int, device: torch.device, offset: int = 0) -> Tensor:
    """Return the 32-bit random words of elements offset to offset + n - 1 as int64, as csrc/philox.h defines them."""
    first, end = offset // 128, -(-(offset + n) // 128)
    upper, lower = (_random_halves(first, end, stream, half, seed, device) for half in (0, 1))
    return (upper << 16 | lower)[offset - 128 * first :][:n]


def _random_halves(first: int, end: int, stream: int, half: int, seed: int, device: torch.device) -> Tensor:
    """Return one 16-bit half of each element's random word, for groups first to end - 1 of 128 elements each."""
    counter = torch.arange(first * 16, end * 16, dtype=torch.int64, device=device)
    zero = torch.zeros_like(counter)
    words = philox4x32(
        (counter & 0xFFFFFFFF, counter >> 32, zero + stream, zero + half),
        (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF),
    )
    halves = [part for word in words for part in (word >> 16, word & 0xFFFF)]
    return torch.stack([part.view(end - first, 16) for part in halves], dim=1).reshape(-1)


# ---- sums --------------------------------------------------------------------------------------------------


def add_to_odd(a: Tensor, b: Tensor) -> Tensor:
    """Return a + b in float64, rounded to odd: truncated, and with the last bit set if the sum was not exact.

    Rounding this sum to a format equals rounding the exact sum (Boldo and Melquiond 2008, "Emulation of FMA and
    correctly rounded sums: proved algorithms using rounding to odd"). The error of the sum is computed with Knuth's
    TwoSum.
    """
    total = a + b
    b_part = total - a
    error = (a - (total - b_part)) + (b - b_part)
    inexact = (error != 0) & total.isfinite()
    away_from_zero = inexact & (torch.signbit(total) != torch.signbit(error))
    bits = total.view(torch.int64) - away_from_zero.long()
    return (bits | inexact.long()).view(torch.float64)


def accumulate(
    tensors: Sequence[Tensor], fmt: Format | Tabulated, kahan: bool, rule: Rule, out: Tensor
) -> None:
    """Add tensors in order: acc = +0, then acc = Q(acc + g_r) for r = 0 to N-1. Kahan summation also updates c.

    c is the part that rounding removed. In step r, rounding number j (from 0) reads random stream 4 r + j.
    """

    def rounded_sum(a: Tensor, b: Tensor, stream: int) -> Tensor:
        return _round(add_to_odd(a, b), fmt, rule, stream)

    acc = torch.zeros(out.shape, dtype=torch.float64, device=out.device)
    c = torch.zeros_like(acc)
    for r, tensor in enumerate(tensors):
        g = tensor.double()
        if not kahan:
            acc = rounded_sum(acc, g, 4 * r)
            continue
        y = rounded_sum(g, -c, 4 * r)
        t = rounded_sum(acc, y, 4 * r + 1)
        gained = rounded_sum(t, -acc, 4 * r + 2)
        c = rounded_sum(gained, -y, 4 * r + 3)
        c = torch.where(t.isfinite(), c, 0.0)
        acc = t
    write(acc, out)


def matmul(a: Tensor, b: Tensor, fmt: Format | Tabulated, kahan: bool, out: Tensor) -> None:
    """Multiply (B or 1, M, K) by (B or 1, K, N): acc = Q(acc + Q(a_k * b_k)) for ascending k."""

    def rounded_sum(x: Tensor, y: Tensor) -> Tensor:
        return round_to_format(add_to_odd(x, y), fmt)

    acc = torch.zeros(out.shape, dtype=torch.float64, device=out.device)
    c = torch.zeros_like(acc)
    for k in range(a.shape[-1]):
        product = a[:, :, k, None].double() * b[:, k, None, :].double()
        term = round_to_format(product, fmt)
        if not kahan:
            acc = rounded_sum(acc, term)
            continue
        y = rounded_sum(term, -c)
        t = rounded_sum(acc, y)
        c = rounded_sum(rounded_sum(t, -acc), -y)
        c = torch.where(t.isfinite(), c, 0.0)
        acc = t
    write(acc, out)


def hadamard(x: Tensor, size: int, seed: int | None, inverse: bool, out: Tensor) -> None:
    """Transform blocks along the middle axis of (outer, length, inner). A last partial block stays unchanged."""
    outer, length, inner = x.shape
    blocks = length // size
    y_OxBxSxI = x[:, : blocks * size].reshape(outer, blocks, size, inner)
    one = torch.ones((), device=x.device)
    signs_Sx1 = (
        one if seed is None else 1.0 - (random_words(size, HADAMARD, seed, x.device) >> 31 << 1)[:, None]
    )
    if not inverse:
        y_OxBxSxI = y_OxBxSxI * signs_Sx1
    apart = 1
    while apart < size:
        a, b = y_OxBxSxI.reshape(outer, blocks, -1, 2, apart, inner).unbind(3)
        y_OxBxSxI = torch.stack([a + b, a - b], 3).view(outer, blocks, size, inner)
        apart *= 2
    y_OxBxSxI = y_OxBxSxI * torch.tensor(size**-0.5, dtype=torch.float32)
    y_OxBxSxI = y_OxBxSxI * signs_Sx1 if inverse else y_OxBxSxI
    rest = x[:, blocks * size :]
    write(torch.cat([y_OxBxSxI.reshape(outer, -1, inner), rest], 1), out)


def clamp_shift(shift: int) -> int:
    """Clamp a shift to [-1300, 1300]. Shifts outside give the same result as the limit: infinity or zero."""
    return max(-1300, min(1300, shift))


def _times_power(x: Tensor, shift: int) -> Tensor:
    """Return x * 2**shift in float64. It multiplies twice because a single power of two could be out of range."""
    shift = clamp_shift(shift)
    return x.double() * 2.0 ** (shift // 2) * 2.0 ** (shift - shift // 2)


def _product_to_round(x: Tensor, shift: int) -> Tensor:
    """Return x * 2**shift in float64, or a float64 that is rounded to the same result if the product is out of range.

    The returned value is finite if x is finite, and zero only if x is zero.
    """
    product = _times_power(x, shift)
    largest, smallest = (
        torch.copysign(torch.full_like(product, end), product) for end in (LARGEST, SMALLEST)
    )
    product = torch.where(product.isinf() & ~x.isinf(), largest, product)
    return torch.where((product == 0) & (x != 0), smallest, product)


def scale_pow2(x: Tensor, shift: int, out: Tensor) -> None:
    write(_times_power(x, shift), out)


def max_exponent(x: Tensor) -> int | None:
    finite = x.double().abs()
    finite = finite[finite.isfinite()]
    largest = finite.max().item() if finite.numel() else 0.0
    if largest == 0.0:
        return None
    mantissa, exponent = torch.frexp(torch.tensor(largest, dtype=torch.float64))
    return int(exponent) - int(mantissa == 0.5)


# ---- codes -------------------------------------------------------------------------------------------------


def encode(x: Tensor, fmt: Format | Tabulated, out: Tensor) -> None:
    """Write the codes of x, rounded to nearest. A code consists of the sign, the exponent field and the mantissa."""
    _encode_values(round_to_format(x.double(), fmt), fmt, out)


def _encode_values(value: Tensor, fmt: Format | Tabulated, out: Tensor) -> None:
    if isinstance(fmt, Tabulated):
        out.copy_(codes_of_values(value, fmt))
        return
    magnitude = value.abs()
    exponent = _exponent(magnitude, fmt)
    digits = (magnitude / power_of_two(exponent - fmt.mantissa_bits)).nan_to_num(0, 0).long()
    code = ((exponent - fmt.emin) << fmt.mantissa_bits) + digits
    if fmt.inf_code is not None:
        code = torch.where(magnitude == INFINITY, fmt.inf_code, code)
    if fmt.nan_code is not None:
        code = torch.where(value.isnan(), fmt.nan_code, code)
    if fmt.is_signed:
        code = code | torch.signbit(value).long() << (fmt.bits - 1)
    out.copy_(code)


def decode(codes: Tensor, fmt: Format | Tabulated, out: Tensor) -> None:
    """Write the float32 values of codes. Bits of a code above the format's width are ignored."""
    code = codes.long() & (1 << fmt.code_bits) - 1
    if isinstance(fmt, Tabulated):
        write(values_of_codes(code, fmt), out)
        return
    m = fmt.mantissa_bits
    magnitude = code & (1 << fmt.exponent_bits + m) - 1
    field = magnitude >> m
    digits = (magnitude & (1 << m) - 1) + ((field > 0).long() << m)
    value = digits.double() * power_of_two(field.clamp(min=1) - fmt.bias - m)
    if fmt.nan_code is not None:
        is_nan = magnitude > fmt.max_code
        if fmt.is_signed and not fmt.has_negative_zero:
            is_nan = code == fmt.nan_code
        value = torch.where(is_nan, float("nan"), value)
    if fmt.inf_code is not None:
        value = torch.where(magnitude == fmt.inf_code, INFINITY, value)
    if fmt.is_signed:
        is_negative = (code >> (fmt.bits - 1)).bool() & ~value.isnan()
        value = torch.where(is_negative, -value, value)
    write(value, out)


def pack(x: Tensor, fmt: Format | Tabulated, shift: int, rule: Rule, out: Tensor) -> None:
    """Write the codes of x * 2**shift. Each 8 codes fill k bytes, and code j begins at bit j * k, little-endian."""
    k, n = fmt.code_bits, x.numel()
    codes = torch.zeros(-(-n // 8) * 8, dtype=torch.int64, device=x.device)
    scaled = _product_to_round(x.reshape(-1), shift)
    _encode_values(_round(scaled, fmt, rule), fmt, codes[:n])
    bits = codes[:, None] >> torch.arange(k, device=x.device) & 1
    weights = 1 << torch.arange(8, device=x.device)
    out.copy_((bits.view(-1, 8) * weights).sum(dim=1))


def unpack(data: Tensor, fmt: Format | Tabulated, shift: int, out: Tensor) -> None:
    k = fmt.code_bits
    bits = data.long()[:, None] >> torch.arange(8, device=data.device) & 1
    weights = 1 << torch.arange(k, device=data.device)
    codes = (bits.view(-1, k) * weights).sum(dim=1)[: out.numel()]
    values = torch.empty(codes.shape, dtype=torch.float32, device=data.device)
    decode(codes, fmt, values)
    scale_pow2(values.view(out.shape), shift, out)


def accumulate_packed(
    payloads: Sequence[Tensor], fmt: Format | Tabulated, n: int, kahan: bool, rule: Rule, out: Tensor
) -> None:
    values = [torch.empty(n, dtype=torch.float32, device=out.device) for _ in payloads]
    for payload, value in zip(payloads, values, strict=True):
        unpack(payload, fmt, 0, value)
    total = torch.empty(n, dtype=torch.float32, device=out.device)
    accumulate(values, fmt, kahan, rule, total)
    pack(total, fmt, 0, NEAREST, out)
