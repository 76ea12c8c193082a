"""Accumulators describe how a dot product is summed.

An accumulator specifies the format of each rounding, which terms are added together, and the order of the additions. A
plain format used as an accumulator rounds every product and every partial sum to this format. Hardware often works
differently. Tensor cores align blocks of exact products to the largest exponent and discard the digits below. Other
units multiply and add with one rounding, add in trees, round stochastically, or round only at the end.
`accumulators/reference.py` defines the result of each accumulator.

    >>> Accumulator.parse("h100_fp8")                        # a machine from accumulators/machines.py
    >>> Accumulator.parse("fp32-block_16-width_25-toward_zero")
    >>> Accumulator("fp16", product="exact", rounding="stochastic_8")

This module does not import torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from typing import Any, ClassVar, cast

from custom_fp.accumulators import block_scales, name_parts
from custom_fp.accumulators.machines import MACHINES
from custom_fp.formats.names import read as read_format
from custom_fp.formats.names import spelled as spelled_format
from custom_fp.formats.protocol import Backends, NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.rounding import Overflow, Rounding, Rule
from custom_fp.suggestions import did_you_mean

EXACT, FP32 = name_parts.EXACT, Format(8, 23)
MOST_TERMS, MOST_DIGITS = 1 << 16, 40  # limits of a block that keep its sums within 64-bit integers
_WORD_SEPARATOR = re.compile(
    r"-(?=[a-z])"
)  # a hyphen before a digit is part of a format's name, for example of its bias
Operand = Format | ScaledFormat
LOOKS_LIKE = (
    "a machine (h100_fp8, a100_bf16), or a format and how it sums (fp32-fused, e8m13-block_32-width_13)"
)


class Order(StrEnum):
    """The order in which terms are added."""

    SEQUENTIAL = "sequential"
    """Start with acc = +0 and add one block after another, in ascending order of k."""

    PAIRWISE = "pairwise"
    """Add neighboring terms in pairs, then neighboring sums in pairs, and so on. A term or sum without a neighbor moves
    to the next level unchanged. With blocks, the terms of each block are added in this way, and the sum of the block is
    added to acc."""

    EXACT = "exact"
    """Add all terms exactly and round once at the end."""


@dataclass(frozen=True)
class Accumulator:
    """How a dot product is summed. Accumulators can be compared and used as dictionary keys.

    NaN and infinity among the terms give the result that IEEE 754 defines for their sum. Subnormals are kept unless
    `flush` is set. If the sum of an aligned block is rounded to zero, the result is +0. All other sums treat -0 as IEEE
    754 does when rounding to nearest.

    Attributes:
        sum: The format of partial sums: eXmY of any family, or, without `width`, a table (posit16, takum8, lns4_3,
            hif8, p3109_k8p3se). Negative sums in a format without a sign, and -0 in a format without -0, are rounded as
            custom_fp.quantize rounds them. posit16 with order "exact" is its quire: all products are added exactly, and
            their sum is rounded once.
        product: The format to which each product is rounded, or "exact". If None, products are exact in blocks and in
            exact sums. If terms are added one by one or in trees, products are rounded to `sum`.
        operands: The formats of the two factors, or one format for both. If None, both are fp32. Factors are not
            rounded to these formats. The formats determine the exponent by which subnormal factors are aligned, which
            is the exponent of the smallest normal value, and the magnitudes that `flush` replaces by zero. For formats
            with scales (mxfp8_e4m3, nvfp4), the product recovers codes and scales from the values, in blocks along the
            dimension that is summed over, and raises ValueError for values that the format cannot represent. A code,
            even a zero, is then aligned by its exponent plus the exponent of its scale. The scales of whole tensors
            multiply the result, which is then rounded to nearest even again.
        block: The number of terms that are added to acc with one rounding: acc + p_1 + ... + p_block. The last block
            may be shorter.
        width: Align each block. The terms of the block and acc are truncated (toward zero) below 2**(E - width), where
            E is their largest exponent. The exponent of an exact product is the sum of the exponents of its factors,
            without normalization. The exponent of a zero factor or of a zero acc is -126. If None, nothing is
            truncated.
        join: The numbers of bits (bits, acc_bits). The aligned terms of a block are added up first, without acc, and
            this sum is then aligned with acc. E is the larger of the exponent of acc and the largest exponent of the
            terms. The sum is rounded down to a multiple of 2**(E - bits), and acc to a multiple of 2**(E - acc_bits).
            A product of 2**128 or more becomes infinity. If None, acc is aligned together with the terms.
        split: Divide the terms of a block into this number of parts. Part i has the terms i, i + split, and so on. Each
            part is aligned by its own largest exponent. The sum of a part is rounded down to a multiple of
            2**(E - width), where E is the largest exponent of the block, before acc is added. An acc with an exponent
            below E - acc_bits - 1 counts as 0.
        group: The number of products that share a pair of scales, are added exactly, and are then aligned as one term,
            by the sum of the exponents of both scales. Only for elements in e2m1fn (mxfp4, nvfp4).
        flush: Replace subnormals by zero. A subnormal factor becomes +0. A subnormal product or sum becomes a zero with
            the same sign.
        order: The order of summation.
        rounding: The rounding mode of sums and products, one of `Rounding`.
        overflow: The overflow mode of sums and products, one of `Overflow`. With "infinity" and toward_zero, a value
            that exceeds the largest one even after truncation becomes infinity. custom_fp.quantize returns the largest
            value in this case, and so does an accumulator whose format is a table.
        kahan: Use Kahan's compensated addition, as custom_fp.accumulate does.
        chunk: Add acc to a total after this number of terms, and start again with acc = +0. If None, there is no total.
        total: The format of the total. Additions to the total round to nearest even.

    Raises:
        ValueError: A value is not allowed, or some values cannot be combined.
    """

    BACKENDS: ClassVar = Backends(
        "custom_fp.accumulators.reference",
        "custom_fp.accumulators.native",
        "custom_fp.accumulators.cuda",
    )
    backends: ClassVar = BACKENDS

    sum: Format | Tabulated | str = "fp32"
    product: Format | Tabulated | str | None = None
    operands: tuple[Operand | str, Operand | str] | Operand | str | None = None
    block: int = 1
    width: int | None = None
    join: tuple[int, int] | None = None
    split: int = 1
    group: int = 1
    flush: bool = False
    order: Order | str = Order.SEQUENTIAL
    rounding: str = "nearest_even"
    overflow: str = "infinity"
    kahan: bool = False
    chunk: int | None = None
    total: Format | Tabulated | str = "fp32"
    rule: Rule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_attribute = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        set_attribute("sum", _read_format("sum", self.sum))
        set_attribute("total", _read_format("total", self.total))
        set_attribute("order", _order(self.order))
        set_attribute(
            "rule", Rule(cast(Rounding, self.rounding), cast(Overflow, self.overflow))
        )  # Rule also accepts names
        set_attribute("rounding", str(self.rounding))
        set_attribute("overflow", str(self.rule.overflow))
        self._check_numbers()
        together = self.block > 1 or self.width is not None or self.order is Order.EXACT
        if self.product is None:
            exact = together and self.order is not Order.PAIRWISE
            set_attribute("product", EXACT if exact else self.sum)
        elif self.product != EXACT:
            set_attribute("product", _read_format("product", self.product))
        if self.operands is not None:
            operands: Any = self.operands
            given = (operands,) * 2 if isinstance(operands, str | NumberFormat) else tuple(operands)
            if len(given) != 2:
                raise ValueError(
                    f"operands has {len(given)} formats; allowed: one format, or a pair of formats"
                )
            set_attribute("operands", tuple(_read_format("operands", name, kinds=Operand) for name in given))
        self._check_together()

    def _check_numbers(self) -> None:
        limits = {
            "block": MOST_TERMS,
            "width": MOST_DIGITS,
            "split": MOST_TERMS,
            "group": MOST_TERMS,
            "chunk": 1 << 31,
        }
        for what, most in limits.items():
            value = getattr(self, what)
            if (value is not None or what in ("block", "split", "group")) and not _counts(value, most):
                raise ValueError(f"{what} is {value!r}; allowed: 1 to {most}")
        if self.join is not None:
            object.__setattr__(self, "join", tuple(self.join))
            if len(self.join) != 2 or not all(_counts(bits, MOST_DIGITS) for bits in self.join):
                raise ValueError(f"join is {self.join}; allowed: two numbers from 1 to {MOST_DIGITS}")
            if self.join[1] > self.join[0]:
                raise ValueError(f"join is {self.join}; the second number must not be larger than the first")

    def _check_together(self) -> None:
        if self.width is not None and self.product != EXACT:
            raise ValueError(f"width={self.width} requires exact products; remove product={self.product}")
        if self.width is not None and self.order is not Order.SEQUENTIAL:
            raise ValueError(f"width={self.width} requires order=sequential, not order={self.order}")
        if self.width is not None and not isinstance(self.sum, Format):
            raise ValueError(
                f"width={self.width} requires a binary floating-point sum, but {self.sum} is a table"
            )
        if self.operands is not None and self.width is None and not self.flush:
            raise ValueError(
                "operands has no effect without width or flush; set one of them, or remove operands"
            )
        if (self.join is not None or self.split > 1) and self.width is None:
            raise ValueError("join and split require width, because they change how products are aligned")
        if self.split > 1 and (self.join is None or self.block % self.split):
            raise ValueError(
                f"split={self.split} requires join, and block={self.block} must be a multiple of split"
            )
        aligned = self.width is not None and self.join is None
        if problem := block_scales.problem(self.operand_formats, self.group, self.block, aligned):
            raise ValueError(problem)
        if self.flush:
            self._check_flush()
        if self.order is Order.EXACT and self.block > 1:
            raise ValueError(f"order=exact adds all terms at once; remove block={self.block}")
        one_by_one = self.order is Order.SEQUENTIAL and self.block == 1 and self.width is None
        if self.kahan and not (one_by_one and self.chunk is None):
            raise ValueError("kahan requires terms that are added one by one, without chunk")
        if self.chunk is not None and self.chunk % self.block:
            raise ValueError(f"chunk={self.chunk} must be a multiple of block={self.block}")
        if self.chunk is None and not self.total_format.is_fp32:
            raise ValueError(f"total={self.total} requires chunk")

    def _check_flush(self) -> None:
        if self.width is not None or self.order is Order.EXACT:
            raise ValueError(
                "flush requires terms that are added one by one, in trees or in blocks, without width"
            )
        for fmt in (self.sum, self.product, *self.operand_formats):
            if fmt != EXACT and (not isinstance(fmt, Format) or fmt.smallest_normal is None):
                raise ValueError(
                    f"flush requires binary floating-point formats with normal values, and {fmt} is not one"
                )

    @classmethod
    def parse(cls, name: str | Accumulator) -> Accumulator:
        """Return the accumulator with the given name. If `name` is an accumulator, return it unchanged.

        Args:
            name: The name of a machine (h100_fp8), or a `spelling` (fp32-block_16-width_25).

        Raises:
            ValueError: There is no such accumulator. The message says what is allowed.
        """
        return name if isinstance(name, cls) else _parsed(name)

    @cached_property
    def name(self) -> str:
        """The name that `parse` reads: the name of a machine with this arithmetic, or `spelling` if there is none."""
        return _NAMES.get(self) or self.spelling

    @cached_property
    def spelling(self) -> str:
        """A name that `parse` reads: the format of sums, then a word for each value that is not the default.

        The name contains no characters with a special meaning on a command line or in a file name.
        """
        parts = [self.sum_format.name]
        default = replace(self, product=None).product
        if self.product != default:
            parts.append("fused" if self.product == EXACT else f"product_{self.product}")
        if self.operands:
            parts.append("_".join(["of", *dict.fromkeys(fmt.name for fmt in self.operand_formats)]))
        parts += [f"block_{self.block}"] if self.block > 1 else []
        parts += [f"width_{self.width}"] if self.width is not None else []
        parts += [f"join_{self.join[0]}_{self.join[1]}"] if self.join is not None else []
        parts += [f"split_{self.split}"] if self.split > 1 else []
        parts += [f"group_{self.group}"] if self.group > 1 else []
        parts += ["flush"] if self.flush else []
        parts += [str(self.order)] if self.order is not Order.SEQUENTIAL else []
        parts += [self.rounding] if self.rounding != Rounding.NEAREST_EVEN else []
        parts += [self.overflow] if self.rule.overflow is not Overflow.INFINITY else []
        parts += ["kahan"] if self.kahan else []
        if self.chunk is not None:
            parts.append(f"chunk_{self.chunk}" + ("" if self.total_format.is_fp32 else f"_{self.total}"))
        return "-".join(parts)

    @cached_property
    def is_plain(self) -> bool:
        """Whether the accumulator sums exactly as its format of sums does on its own, with or without kahan."""
        return replace(self, kahan=False) == Accumulator(self.sum)

    @property
    def is_stochastic(self) -> bool:
        return self.rule.is_stochastic

    @cached_property
    def nearest(self) -> Accumulator:
        """This accumulator with nearest_even instead of stochastic rounding. Layers use it for evaluation."""
        return replace(self, rounding="nearest_even") if self.is_stochastic else self

    @cached_property
    def elements(self) -> tuple[Format, Format]:
        """The formats of the two factors. For a format with scales, this is the format of its elements."""
        a, b = self.operand_formats or (FP32, FP32)
        return block_scales.elements_of(a), block_scales.elements_of(b)

    @cached_property
    def scales(self) -> int:
        """The number of terms that share a scale, or 0 if there are no scales."""
        first = next(iter(self.operand_formats), FP32)
        return block_scales.size_of(first) or 0 if isinstance(first, ScaledFormat) else 0

    @cached_property
    def flat(self) -> tuple[int, ...]:
        """The numbers that are passed to kernels: the first members of `Summing` in csrc/accumulators/dot.h."""
        emins = [fmt.emin for fmt in self.elements]
        specs = [getattr(fmt, "spec", FP32.spec) for fmt in self.roundings]
        specs[1] *= self.product != EXACT
        width, chunk = -1 if self.width is None else self.width, self.chunk or 0
        order, join = list(Order).index(Order(self.order)), self.join or (0, 0)
        summation = order, self.block, width, *emins, self.kahan, chunk
        return (*specs, *summation, self.flush, *join, self.split, self.group, self.scales)

    # The constructor also accepts names for these attributes and replaces them by formats.

    @property
    def sum_format(self) -> Format | Tabulated:
        return cast(Format | Tabulated, self.sum)

    @property
    def total_format(self) -> Format | Tabulated:
        return cast(Format | Tabulated, self.total)

    @property
    def product_format(self) -> Format | Tabulated | None:
        """The format to which products are rounded, or None if products are exact."""
        return None if self.product == EXACT else cast(Format | Tabulated, self.product)

    @property
    def operand_formats(self) -> tuple[Operand, ...]:
        """The formats of the two factors, or an empty tuple if `operands` is None."""
        return cast(tuple[Operand, ...], self.operands or ())

    @property
    def roundings(self) -> tuple[Format | Tabulated, ...]:
        """The formats of sums, products and the total. Exact products have fp32 here, which is not used."""
        return self.sum_format, self.product_format or FP32, self.total_format

    def __str__(self) -> str:
        return self.name


def read(
    how: Accumulator | NumberFormat | str, kahan: bool = False
) -> tuple[NumberFormat | Accumulator, bool]:
    """Return the format or the accumulator of a matrix product, and whether it uses Kahan summation.

    Args:
        how: A format, an accumulator, or the name of either.
        kahan: Whether to use Kahan's compensated addition.

    Returns:
        Either a format and `kahan`, or an accumulator and False, because an accumulator has its own `kahan`. An
        accumulator that sums as its format alone does (`is_plain`) is returned as that format.

    Raises:
        ValueError: No format or accumulator has this name, or the accumulator cannot be combined with `kahan`.
    """
    if isinstance(how, str) and not is_name(how):
        try:
            return read_format(how), kahan
        except ValueError as error:
            raise ValueError(f"{error}; or {LOOKS_LIKE}{near(how)}") from None
    if isinstance(how, NumberFormat):
        return how, kahan
    how = Accumulator.parse(how)
    if kahan and not how.kahan:
        how = replace(how, kahan=True)
    return (how.sum_format, how.kahan) if how.is_plain else (how, False)


def is_name(name: str) -> bool:
    """Return whether a string is spelled like the name of an accumulator. Names of formats are spelled differently."""
    return name in MACHINES or _WORD_SEPARATOR.search(name) is not None


def spelled(how: Accumulator | NumberFormat | str) -> str:
    """Return the name from which `read` creates the same format or accumulator in any process."""
    if isinstance(how, str) and is_name(how):
        how = Accumulator.parse(how)
    return how.name if isinstance(how, Accumulator) else spelled_format(read_format(how))


def near(name: str) -> str:
    """Return ` (did you mean 'h100_fp8'?)` for the machine with the most similar name, or "" if none is similar."""
    return did_you_mean(name, MACHINES)


def _read_format(what: str, fmt: Any, kinds: Any = Format | Tabulated) -> NumberFormat:
    try:
        found = read_format(fmt)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    if not isinstance(found, kinds):
        allowed = (
            "eXmY, or a table such as posit16" if kinds == Format | Tabulated else "eXmY, mxfp8_e4m3, nvfp4"
        )
        raise ValueError(f"{what} is {found}; allowed: {allowed}")
    return found


def _counts(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _order(word: Any) -> Order:
    try:
        return Order(word)
    except ValueError:
        raise ValueError(f"order is {word!r}; allowed: {', '.join(Order)}") from None


@cache
def _parsed(name: str) -> Accumulator:
    text = MACHINES[name].text if name in MACHINES else name
    if not isinstance(text, str):
        raise ValueError(f"unknown accumulator {name!r}; allowed: {LOOKS_LIKE}")
    first, *rest = _WORD_SEPARATOR.split(text)
    parts: dict[str, Any] = {}
    try:
        for word in rest:
            for key, value in name_parts.read_part(word).items():
                if key in parts:
                    raise ValueError(f"{word!r} sets {key} a second time")
                parts[key] = value
        return Accumulator(first, **parts)
    except ValueError as error:
        raise ValueError(f"unknown accumulator {name!r}: {error}") from None


# If several machines have the same arithmetic, the first one in MACHINES provides the name.
_NAMES = {_parsed(machine): machine for machine in reversed(MACHINES)}
