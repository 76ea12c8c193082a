"""The definition of every accumulator, in PyTorch with float64 and 64-bit integers. It is slow, but readable and exact.

Each element of a matrix product is a sum of products. `Dot` computes all elements together, term by term. The kernels
in csrc/accumulators return the same bits. This code also runs on devices for which there are no kernels.

Shapes: B matrices, M rows, N columns, K terms. Q rounds to the format of sums with the accumulator's rounding mode.

Stochastic rounding numbers the results. The result in row r (of all B * M rows) and column j has the index
r * (N rounded up to a multiple of 128) + j. Product k uses random stream 2 k, and rounding number n of a sum (from 0)
uses random stream 2 n + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from custom_fp.accumulator import Accumulator, Order
from custom_fp.accumulators.block_scales import GROUP_DIGITS
from custom_fp.accumulators.encodings import Operands, multiply
from custom_fp.formats.scalar import Format
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.reference import (
    INFINITY,
    add_to_odd,
    infinite,
    power_of_two,
    random_words,
    round_to_format,
    write,
)
from custom_fp.rounding import Overflow, Rounding, Rule

ROW = 128
"""The number of columns is rounded up to a multiple of this number when results are numbered for random words."""

ZERO = -126
"""The exponent by which a factor or a partial sum of zero is aligned."""

# Exact sums have 660 bits. The lowest bit is the smallest product of two float32 values, 2**-298.
_LIMB, _LIMBS, _LOWEST = 30, 22, -298


def matmul(a: Tensor, b: Tensor, how: Accumulator, rule: Rule, out: Tensor) -> None:
    """Multiply tensors of shapes (B or 1, M, K) and (B or 1, K, N). `rule` is `how.rule` with a seed."""
    multiply(product, a, b, how, rule, out)


def product(operands: Operands, how: Accumulator, rule: Rule, out: Tensor) -> None:
    write(Dot(operands, how, rule, out).result(), out)


class Dot:
    """All dot products of a matrix product, computed with one accumulator."""

    def __init__(self, operands: Operands, how: Accumulator, rule: Rule, out: Tensor):
        self.how, self.rule, self.out = how, rule, out
        self.a, self.b, self.a_scales, self.b_scales = operands
        if how.flush:
            self.a, self.b = (flushed(x, fmt) for x, fmt in zip(operands[:2], how.elements, strict=True))
        self.sums = 0  # the number of sums that have been rounded so far
        self.width = how.width or 0  # used only if blocks are aligned
        self.emin = (
            how.sum_format.emin if isinstance(how.sum_format, Format) else 0
        )  # used only if blocks are aligned

    def result(self) -> Tensor:
        depth, total = self.a.shape[-1], self.zeros()
        if self.how.chunk is None:
            return self.segment(0, depth)
        for start in range(0, depth, self.how.chunk):
            acc = self.segment(start, min(depth, start + self.how.chunk))
            total = round_to_format(add_to_odd(total, acc), self.how.total_format)
        return total

    def segment(self, begin: int, end: int) -> Tensor:
        """Return the sum of terms begin to end - 1."""
        how = self.how
        if how.order is Order.EXACT:
            return self.rounded(exact_sum([self.term(k) for k in range(begin, end)], self.zeros()))
        if how.order is Order.PAIRWISE and how.block == 1:
            return self.tree(begin, end) if end > begin else self.zeros()
        if how.kahan:
            return self.compensated(begin, end)
        acc = self.zeros()
        for first in range(begin, end, how.block):
            last = min(end, first + how.block)
            if how.order is Order.PAIRWISE:
                acc = self.rounded(add_to_odd(acc, self.tree(first, last)))
            elif how.width is not None:
                acc = self.aligned(acc, range(first, last))
            elif how.block == 1:
                acc = self.rounded(add_to_odd(acc, self.term(first)))
            else:
                acc = self.rounded(exact_sum([acc, *(self.term(k) for k in range(first, last))], acc))
        return acc

    # ---- rounding

    def zeros(self) -> Tensor:
        return torch.zeros(self.out.shape, dtype=torch.float64, device=self.out.device)

    def term(self, k: int) -> Tensor:
        """Return the k-th product of each dot product, rounded if the accumulator rounds products."""
        product = self.a[:, :, k, None].double() * self.b[:, k, None, :].double()
        product = product.expand(self.out.shape)
        fmt = self.how.product_format
        return product if fmt is None else self.to(product, fmt, 2 * k)

    def rounded(self, x: Tensor) -> Tensor:
        """Return Q(x)."""
        self.sums += 1
        return self.to(x, self.how.sum_format, 2 * self.sums - 1)

    def to(self, x: Tensor, fmt: Format | Tabulated, stream: int) -> Tensor:
        random = None
        if self.rule.is_stochastic:
            assert self.rule.seed is not None
            batch, rows, columns = self.out.shape
            wide = -(-columns // ROW) * ROW
            words = random_words(batch * rows * wide, stream, self.rule.seed, x.device)
            random = words.view(batch, rows, wide)[..., :columns]
        result = self.past_the_largest(x, round_to_format(x, fmt, self.rule, random), fmt)
        return flushed(result, fmt, sign=result) if self.how.flush else result

    def past_the_largest(self, x: Tensor, result: Tensor, fmt: Format | Tabulated) -> Tensor:
        """Return `result`, or infinity if x exceeds the largest value even after truncation."""
        cuts = self.rule.rounding is Rounding.TOWARD_ZERO and self.rule.overflow is Overflow.INFINITY
        if isinstance(fmt, Tabulated) or not cuts:
            return result
        quantum = 2.0 ** (max(fmt.emax, fmt.emin) - fmt.mantissa_bits)
        beyond = (x.abs() >= fmt.max + quantum) & x.isfinite() & (fmt.is_signed | (x > 0))
        there = torch.copysign(torch.full_like(x, infinite(fmt, self.rule)), x)
        return torch.where(beyond, there, result)

    # ---- orders

    def tree(self, begin: int, end: int) -> Tensor:
        """Add terms in a tree. Two sums of equally many terms are added as soon as both exist. Round a single term."""
        waiting = []
        for k in range(begin, end):
            waiting.append(self.term(k))
            n = k - begin
            while n & 1:
                waiting[-2:] = [self.rounded(add_to_odd(*waiting[-2:]))]
                n >>= 1
        if end - begin == 1:
            return self.rounded(waiting[0])
        while len(waiting) > 1:
            waiting[-2:] = [self.rounded(add_to_odd(*waiting[-2:]))]
        return waiting[0]

    def compensated(self, begin: int, end: int) -> Tensor:
        """Compute y = Q(p - c); t = Q(acc + y); c = Q(Q(t - acc) - y); acc = t. If t is not finite, set c = 0."""
        acc = c = self.zeros()
        for k in range(begin, end):
            y = self.rounded(add_to_odd(self.term(k), -c))
            t = self.rounded(add_to_odd(acc, y))
            c = self.rounded(add_to_odd(self.rounded(add_to_odd(t, -acc)), -y))
            c = torch.where(t.isfinite(), c, 0.0)
            acc = t
        return acc

    def aligned(self, acc: Tensor, terms: range) -> Tensor:
        """Return Q(acc + exact products), where all terms are truncated below 2**(E - width).

        E is the largest exponent (see `width` and `join` of `Accumulator`). A sum of zero is +0.
        """
        plain, past = acc, torch.zeros_like(acc)
        for k in terms:
            plain = plain + self.term(k)  # infinite or NaN only if a term is; finite sums stay below 2**300
            if self.how.join:
                past = past + torch.where(self.term(k).abs() >= 2.0**128, self.term(k) * INFINITY, 0.0)
        plain = torch.where(plain.isfinite() & (past != 0), past, plain)
        value = self.joined(acc, terms, *self.how.join) if self.how.join else self.together(acc, terms)
        return self.rounded(torch.where(plain.isfinite(), value, plain)) + 0.0

    def together(self, acc: Tensor, terms: range) -> Tensor:
        """Align acc and the terms, or the sums of groups of terms, to one exponent, and add them."""
        significand, unit, exponent = digits(acc, self.emin)
        groups = terms[:: self.how.group]
        largest = torch.maximum(exponent, self.largest(groups))
        total = _cut(significand, unit - (largest - self.width))
        if self.how.group == 1:
            total = total + self.cut_off(terms, largest)
        else:
            for k in groups:
                total = total + self.cut_group(range(k, min(k + self.how.group, terms.stop)), largest)
        return to_odd(total, largest - self.width)

    def joined(self, acc: Tensor, terms: range, bits: int, bits_of_acc: int) -> Tensor:
        """Align and add the terms, in several parts if `split` is set, and then align and add their sum and acc."""
        split, top = self.how.split, self.largest(terms)
        total = torch.zeros_like(top)
        for part in [terms[i::split] for i in range(min(split, len(terms)))]:
            largest = self.largest(part)
            total = total + _lowered(self.cut_off(part, largest), largest - top)
        significand, unit, exponent = digits(acc, self.emin)
        largest = torch.maximum(top, exponent)
        kept = _lowered(significand, unit - (largest - bits_of_acc)) << bits - bits_of_acc
        if split > 1:
            kept = torch.where(exponent >= largest - bits_of_acc - 1, kept, 0)
        return to_odd(_lowered(total, top - self.width - largest + bits) + kept, largest - bits)

    def factors(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return s, u and e of product k, which equals s * 2**u and is aligned by the exponent e.

        If products are grouped, e is the exponent by which the group that contains product k is aligned.
        """
        of_a, of_b = self.how.elements
        a_scale, b_scale = self.scales_of(k)
        a_digits, a_unit, a_exponent = digits(self.a[:, :, k, None], of_a.emin, a_scale)
        b_digits, b_unit, b_exponent = digits(self.b[:, k, None, :], of_b.emin, b_scale)
        exponent = a_exponent + b_exponent if self.how.group == 1 else torch.as_tensor(a_scale + b_scale)
        return a_digits * b_digits, a_unit + b_unit, exponent

    def scales_of(self, k: int) -> tuple[Tensor | int, Tensor | int]:
        """Return the exponents of the scales of both factors of product k, or zeros if there are no scales."""
        if self.a_scales is None or self.b_scales is None:
            return 0, 0
        at = k // self.how.scales
        return self.a_scales[:, :, at, None].long(), self.b_scales[:, at, None, :].long()

    def largest(self, terms: range) -> Tensor:
        """Return the largest exponent of the given products, or that of a product of zeros if there are none."""
        found = torch.full(self.out.shape, 2 * ZERO, device=self.out.device)
        for k in terms:
            found = torch.maximum(found, self.factors(k)[2])
        return found

    def cut_off(self, terms: range, largest: Tensor) -> Tensor:
        """Truncate products below 2**(largest - width) and return their sum in this unit."""
        total = torch.zeros_like(largest)
        for k in terms:
            significand, unit, _ = self.factors(k)
            total = total + _cut(significand, unit - (largest - self.width))
        return total

    def cut_group(self, terms: range, largest: Tensor) -> Tensor:
        """Add a group of products exactly, truncate the sum below 2**(largest - width), and return it in this unit."""
        total, exact = torch.zeros_like(largest), sum(self.scales_of(terms.start)) - GROUP_DIGITS
        for k in terms:
            significand, unit, _ = self.factors(k)
            total = total + _cut(significand, unit - exact)
        return _cut(total, exact - (largest - self.width))


def flushed(x: Tensor, fmt: Format | Tabulated, sign: Tensor | None = None) -> Tensor:
    """Replace subnormal values by zeros with the sign of `sign`, or by +0 if `sign` is None."""
    assert isinstance(fmt, Format) and fmt.smallest_normal is not None  # Accumulator checks both
    zero = torch.zeros_like(x)
    return torch.where(x.abs() < fmt.smallest_normal, zero if sign is None else torch.copysign(zero, sign), x)


def to_odd(whole: Tensor, unit: Tensor) -> Tensor:
    """Return whole * 2**unit, rounded to odd. If `whole` has more than 53 bits, a bit replaces its last eight bits."""
    wide = whole.abs() >= 1 << 53
    inexact = (wide & ((whole & 0xFF) != 0)).long()
    value = torch.where(wide, (whole >> 8) | inexact, whole).double()
    return value * power_of_two(unit + 8 * wide.long())


def fused_sum(tensors: Sequence[Tensor], width: int | None, emin: int, out: Tensor) -> None:
    """Write the exact sum of float32 tensors of the same shape, rounded to odd (see `exact_sum`), as float64.

    With a width, each value is first truncated below 2**(E - width), where E is the largest exponent among the values
    of an element. Exponents below `emin` are replaced by `emin`. Zero has the exponent of the smallest normal float32.
    A sum of zero is +0.
    """
    values = [tensor.double() for tensor in tensors]
    if width is None:
        out.copy_(exact_sum(values, out))
        return
    exponents = [torch.frexp(x.nan_to_num(0, 0, 0)).exponent.long() - 1 for x in values]
    of_zero = torch.full_like(exponents[0], ZERO)
    largest = of_zero
    for x, exponent in zip(values, exponents, strict=True):
        largest = torch.maximum(largest, torch.where(x == 0, of_zero, exponent.clamp(min=max(emin, ZERO))))
    total = plain = torch.zeros_like(out)
    for x in values:
        total = total + (x * power_of_two(width - largest)).trunc()
        plain = plain + x
    total = total * power_of_two(largest - width)
    out.copy_(torch.where(plain.isfinite(), total + 0.0, plain))


def digits(x: Tensor, emin: int, scale: Tensor | int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return s, u and e as int64 for finite float32 values x = s * 2**u, where |s| < 2**24.

    e is the exponent of x, but at least `emin`, the exponent of the smallest normal value of its format. If x is a code
    times a scale, `scale` is the exponent of this scale, and u and e include it.
    """
    x = x.double()
    exponent = torch.where(x == 0, ZERO, (torch.frexp(x).exponent.long() - 1).clamp(-200, 200))
    unit = exponent - 23
    significand = (x / power_of_two(unit)).nan_to_num(0, 0, 0).long()
    pinned = torch.where(x == 0, ZERO + scale, torch.maximum(exponent, torch.as_tensor(emin + scale)))
    return significand, unit, pinned


def _cut(significand: Tensor, shift: Tensor) -> Tensor:
    """Return trunc(significand * 2**shift)."""
    magnitude = significand.abs()
    left = magnitude << shift.clamp(0, 38)
    right = magnitude >> (-shift).clamp(0, 62)
    return torch.where(shift > 0, left, right) * significand.sign()


def _lowered(whole: Tensor, shift: Tensor) -> Tensor:
    """Return floor(whole * 2**shift)."""
    return torch.where(shift > 0, whole << shift.clamp(0, 38), whole >> (-shift).clamp(0, 62))


def exact_sum(terms: list[Tensor], like: Tensor) -> Tensor:
    """Add float64 values exactly, and round the sum once to 53 bits, to odd.

    The values must be multiples of 2**-298 below 2**256. The sum is a long fixed-point number (Kulisch) that consists
    of 30-bit limbs. NaN and infinity are added as in IEEE 754. The sum of no terms is +0.
    """
    limbs = torch.zeros(*like.shape, _LIMBS, dtype=torch.int64, device=like.device)
    plain = torch.zeros_like(like)
    for i, x in enumerate(terms):
        plain = plain + x
        mantissa, exponent = torch.frexp(x.nan_to_num(0, 0, 0))
        number = (mantissa * 2.0**53).long()
        place = (
            exponent.long() - 53 - _LOWEST
        )  # position of the last bit; bits at negative positions are zero
        number = torch.where(place < 0, number >> (-place).clamp(0, 62), number)
        place = torch.where(number == 0, 0, place.clamp(min=0))
        for part in range(3):  # parts of 18 bits still fit in 64 bits after they are shifted
            piece = ((number.abs() >> 18 * part) & 0x3FFFF) * number.sign()
            at = place + 18 * part
            limbs.scatter_add_(-1, (at // _LIMB)[..., None], (piece << at % _LIMB)[..., None])
        if i % 4096 == 4095:
            _carry(limbs)
    _carry(limbs)
    negative = limbs[..., -1] < 0
    limbs = torch.where(negative[..., None], -limbs, limbs)
    _carry(limbs)
    value = torch.zeros_like(like)
    one = torch.ones_like(limbs[..., 0])
    rest = one * 0  # sticky bit: whether any limb below the first three is nonzero
    for i in range(_LIMBS):
        below = [limbs[..., i - 1] if i > 0 else rest * 0, limbs[..., i - 2] if i > 1 else rest * 0]
        rest = rest | (limbs[..., i - 3] != 0).long() if i > 2 else rest
        top = (limbs[..., i] << _LIMB) | below[0]  # at least 31 bits if limb i is the first nonzero limb
        more = (
            53 - _LIMB - torch.frexp(limbs[..., i].double()).exponent.long()
        )  # number of bits that `top` lacks; negative if it has too many
        room, drop = more.clamp(min=0), (-more).clamp(min=0)
        kept = (top << room | below[1] >> _LIMB - room) >> drop
        lost = top & (one << drop) - 1 | below[1] & (one << _LIMB - room) - 1 | rest
        here = (kept | (lost != 0).long()).double() * power_of_two(_LIMB * (i - 1) + _LOWEST + drop - room)
        value = torch.where(limbs[..., i] != 0, here, value)
    first = torch.where(negative, -value, value)
    return torch.where(plain.isfinite(), first, plain)


def _carry(limbs: Tensor) -> None:
    """Propagate carries so that every limb except the last is between 0 and 2**30 - 1."""
    for i in range(_LIMBS - 1):
        limbs[..., i + 1] += limbs[..., i] >> _LIMB
        limbs[..., i] &= (1 << _LIMB) - 1
