"""How a dot product is summed, as a value: what each rounding is to, which terms are added together, and in what order.

A plain format as an accumulator rounds every product and every partial sum to it. Hardware does other things: tensor
cores align blocks of exact products to their largest exponent and cut them off; others multiply and add in one
rounding, add in trees, round stochastically, or not before the end. `accumulators/reference.py` defines what each
computes.

    >>> Accumulator.parse("h100_fp8")                        # of machines whose arithmetic is published: machines.py
    >>> Accumulator.parse("fp32-block_16-width_25-toward_zero")
    >>> Accumulator("fp16", product="exact", rounding="stochastic_8")

Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from typing import Any, ClassVar

from custom_fp.accumulators import block_scales, words
from custom_fp.accumulators.machines import MACHINES
from custom_fp.formats.names import read as read_format
from custom_fp.formats.names import spelled as spelled_format
from custom_fp.formats.protocol import Backends, NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.formats.scaled import ScaledFormat
from custom_fp.formats.tabulated import Tabulated
from custom_fp.rounding import Overflow, Rounding, Rule
from custom_fp.suggestions import did_you_mean

EXACT, FP32 = words.EXACT, Format(8, 23)
MOST_TERMS, MOST_DIGITS = 1 << 16, 40  # of a block: 64-bit integers hold sums of so many such terms
_WORD = re.compile(r"-(?=[a-z])")  # a bias is a hyphen and digits
LOOKS_LIKE = "a machine (h100_fp8, a100_bf16), a format and how it sums (fp32-fused, e8m13-block_32-width_13)"


class Order(StrEnum):
    """Which terms are added to which."""

    SEQUENTIAL = "sequential"
    """acc = +0, and then one block after the other is added to it, k ascending."""

    PAIRWISE = "pairwise"
    """Pairs of neighbours, then pairs of those; what has no neighbour goes up as it is. With blocks each is such a
    tree, whose sum is added to acc."""

    EXACT = "exact"
    """All terms exactly, and one rounding at the end."""


@dataclass(frozen=True)
class Accumulator:
    """Equal ones are one value, and it can be a key. Raises ValueError for parts that do not go together.

    sum        format of partial sums: eXmY of any family, or a table (posit16, takum8, lns4_3, hif8, p3109_k8p3se), but
               for width. One without a sign takes what is below zero as custom_fp.quantize does, and one without a -0
               has +0. posit16-exact is a quire: all products exactly, one rounding at the end
    product    format that each product is rounded to first, or "exact"; None: `sum` where terms are added one by one or
               in trees, exact in blocks and in exact sums
    operands   formats of the two factors, whose subnormals have the smallest normal exponent where blocks are aligned,
               and are zero where flushed; nothing is rounded to them. None: fp32. With scales (mxfp8_e4m3, nvfp4) the
               codes and scales of their values are found again, along the terms; a code, a zero too, then has its
               exponent and that of its scale. ValueError for other values. Scales of the whole tensor multiply the
               result, which is rounded to nearest even once more
    block      terms that are added to acc in one rounding, sum(acc + p_1 + ... + p_block); the last may be short
    width      such a block's terms, acc among them, are cut off (toward zero) below 2**(E - width), E the largest of
               their exponents; an exact product's is the sum of its factors' (not normalised), that of zero is -126 (a
               factor's, acc's). None: nothing is cut off
    join       (bits, bits of acc): acc is not aligned with the block's terms, but with what they add up to, E being the
               larger of its exponent and their largest: both are rounded down, to multiples of 2**(E - bits). A product
               of 2**128 or more is infinity. None: acc is one of the terms
    split      terms k, k + split ... are aligned to an exponent of their own, and these sums to the largest, rounded
               down below 2**(E - width), before acc joins; acc is then 0 where it is below 2**(E - bits of acc - 1)
    group      so many exact products under one scale of either operand are one term, whose exponent is that of both
               scales together; e2m1fn alone (mxfp4, nvfp4)
    flush      subnormals are zero: +0 for factors, -0 too; of their sign where a product, not an exact one, or a sum is
               rounded to one
    order      see `Order`
    rounding   of sums and products, a word of `Rounding`
    overflow   a word of `Overflow`, of sums and products. With infinity, what toward_zero cuts off beyond the largest
               value is infinity, too (custom_fp.quantize has the largest value there, and here tables have)
    kahan      additions carry their error along, as in custom_fp.accumulate
    chunk      after so many terms acc is added to a total, and is +0 again; None: there is none
    total      format of that total, whose additions round to nearest even

    NaN and infinity among terms give what IEEE 754 has for their sum. Subnormals are kept. What an aligned
    block leaves of zero, rounded, is +0; elsewhere -0 is what IEEE 754 has for sums that round to nearest.
    """

    BACKENDS: ClassVar = Backends(
        "custom_fp.accumulators.reference",
        "custom_fp.accumulators.native",
        "custom_fp.accumulators.cuda",
    )
    backends: ClassVar = BACKENDS

    sum: Format | Tabulated | str = "fp32"
    product: Format | Tabulated | str | None = None
    operands: tuple[Format, Format] | tuple[str, str] | str | None = None
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
        fix = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        fix("sum", _scalar("sum", self.sum))
        fix("total", _scalar("total", self.total))
        fix("order", _order(self.order))
        fix("rule", Rule(self.rounding, self.overflow))
        fix("rounding", str(self.rounding))
        fix("overflow", str(self.rule.overflow))
        self._check_numbers()
        together = self.block > 1 or self.width is not None or self.order is Order.EXACT
        if self.product is None:
            exact = together and self.order is not Order.PAIRWISE
            fix("product", EXACT if exact else self.sum)
        elif self.product != EXACT:
            fix("product", _scalar("product", self.product))
        if self.operands is not None:
            one = isinstance(self.operands, str | NumberFormat)
            given = (self.operands,) * 2 if one else tuple(self.operands)
            if len(given) != 2:
                raise ValueError(f"operands is {self.operands!r}; one format is needed, or two")
            fix("operands", tuple(_scalar("operands", name, kinds=Format | ScaledFormat) for name in given))
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
                raise ValueError(f"{what} is {value!r}; allowed: 1..{most}")
        if self.join is not None:
            object.__setattr__(self, "join", tuple(self.join))
            if len(self.join) != 2 or not all(_counts(bits, MOST_DIGITS) for bits in self.join):
                raise ValueError(f"join is {self.join}; two numbers are needed, of 1..{MOST_DIGITS}")
            if self.join[1] > self.join[0]:
                raise ValueError(f"join is {self.join}; the second is not to be above the first")

    def _check_together(self) -> None:
        if self.width is not None and self.product != EXACT:
            raise ValueError(f"width={self.width} aligns exact products; leave product={self.product} out")
        if self.width is not None and self.order is not Order.SEQUENTIAL:
            raise ValueError(f"width={self.width} goes with order=sequential, not {self.order}")
        if self.width is not None and not isinstance(self.sum, Format):
            raise ValueError(f"width={self.width} aligns binary floating point; sum={self.sum} is a table")
        if self.operands is not None and self.width is None and not self.flush:
            raise ValueError(
                "operands says how products are aligned, or flushed; it goes with width, or flush"
            )
        if (self.join is not None or self.split > 1) and self.width is None:
            raise ValueError("join and split say how products are aligned; they go with width")
        if self.split > 1 and (self.join is None or self.block % self.split):
            raise ValueError(f"split={self.split} goes with join, and divides block={self.block}")
        aligned = self.width is not None and self.join is None
        if problem := block_scales.problem(self.operands or (), self.group, self.block, aligned):
            raise ValueError(problem)
        if self.flush:
            self._check_flush()
        if self.order is Order.EXACT and self.block > 1:
            raise ValueError(f"order=exact adds all terms at once; leave block={self.block} out")
        one_by_one = self.order is Order.SEQUENTIAL and self.block == 1 and self.width is None
        if self.kahan and not (one_by_one and self.chunk is None):
            raise ValueError("kahan goes with terms that are added one by one, without chunks")
        if self.chunk is not None and self.chunk % self.block:
            raise ValueError(f"chunk={self.chunk} must be a multiple of block={self.block}")
        if self.chunk is None and not self.total.is_fp32:
            raise ValueError(f"total={self.total} goes with chunk")

    def _check_flush(self) -> None:
        if self.width is not None or self.order is Order.EXACT:
            raise ValueError(
                "flush goes with terms that are added one by one, in trees or in blocks, without width"
            )
        for fmt in (self.sum, self.product, *(self.operands or ())):
            if fmt != EXACT and (not isinstance(fmt, Format) or fmt.smallest_normal is None):
                raise ValueError(f"flush is of binary floating point with normal values; {fmt} is none")

    @classmethod
    def parse(cls, name: str | Accumulator) -> Accumulator:
        """The accumulator of that name, a machine's or words as `name` has them. ValueError tells what is allowed."""
        return name if isinstance(name, cls) else _parsed(name)

    @cached_property
    def name(self) -> str:
        """What `parse` reads back: a machine's where it is one."""
        return _NAMES.get(self) or self.spelling

    @cached_property
    def spelling(self) -> str:
        """In words; those that change nothing are left out. It has no character that a command line or a file name
        would take for another thing."""
        said = [self.sum.name]
        default = replace(self, product=None).product
        if self.product != default:
            said.append("fused" if self.product == EXACT else f"product_{self.product}")
        if self.operands:
            said.append("_".join(["of", *dict.fromkeys(fmt.name for fmt in self.operands)]))
        said += [f"block_{self.block}"] if self.block > 1 else []
        said += [f"width_{self.width}"] if self.width is not None else []
        said += [f"join_{self.join[0]}_{self.join[1]}"] if self.join is not None else []
        said += [f"split_{self.split}"] if self.split > 1 else []
        said += [f"group_{self.group}"] if self.group > 1 else []
        said += ["flush"] if self.flush else []
        said += [str(self.order)] if self.order is not Order.SEQUENTIAL else []
        said += [self.rounding] if self.rounding != Rounding.NEAREST_EVEN else []
        said += [self.overflow] if self.rule.overflow is not Overflow.INFINITY else []
        said += ["kahan"] if self.kahan else []
        if self.chunk is not None:
            said.append(f"chunk_{self.chunk}" + ("" if self.total.is_fp32 else f"_{self.total}"))
        return "-".join(said)

    @cached_property
    def is_plain(self) -> bool:
        """Whether it is what its format alone means, with kahan or without."""
        return replace(self, kahan=False) == Accumulator(self.sum)

    @property
    def is_stochastic(self) -> bool:
        return self.rule.is_stochastic

    @cached_property
    def nearest(self) -> Accumulator:
        """Without draws, as layers that are evaluated sum."""
        return replace(self, rounding="nearest_even") if self.is_stochastic else self

    @cached_property
    def elements(self) -> tuple[Format, Format]:
        """The formats of the two factors. For a format with scales, it is the format of its elements."""
        a, b = self.operands or (FP32, FP32)
        return block_scales.elements_of(a), block_scales.elements_of(b)

    @cached_property
    def scales(self) -> int:
        """Terms under one scale; 0: there are none."""
        first = (self.operands or (FP32,))[0]
        return block_scales.size_of(first) if first.has_scales else 0

    @cached_property
    def flat(self) -> tuple[int, ...]:
        """(sum, product, total, order, block, width, emin of the factors, kahan, chunk, flush, join, split, group,
        scales), as the kernels take them: see `Summing` in csrc/accumulators/dot.h."""
        emins = [fmt.emin for fmt in self.elements]
        specs = [getattr(fmt, "spec", FP32.spec) for fmt in self.roundings]
        specs[1] *= self.product != EXACT
        width, chunk = -1 if self.width is None else self.width, self.chunk or 0
        order, join = list(Order).index(self.order), self.join or (0, 0)
        ways = order, self.block, width, *emins, self.kahan, chunk
        return (*specs, *ways, self.flush, *join, self.split, self.group, self.scales)

    @property
    def roundings(self) -> tuple[Format | Tabulated, ...]:
        """What sums, products and the total are rounded to; of exact products fp32 stands for nothing."""
        return self.sum, FP32 if self.product == EXACT else self.product, self.total

    def __str__(self) -> str:
        return self.name


def read(
    how: Accumulator | NumberFormat | str, kahan: bool = False
) -> tuple[NumberFormat | Accumulator, bool]:
    """What a matrix product is asked to sum by, as it is computed: a plain format, with kahan or without, or an
    Accumulator, which says that itself. Raises ValueError for a name that is neither's."""
    if isinstance(how, str) and not is_name(how):
        try:
            how = read_format(how)
        except ValueError as error:
            raise ValueError(f"{error}; or {LOOKS_LIKE}{near(how)}") from None
    if isinstance(how, NumberFormat):
        return how, kahan
    how = Accumulator.parse(how)
    if kahan and not how.kahan:
        how = replace(how, kahan=True)
    return (how.sum, how.kahan) if how.is_plain else (how, False)


def is_name(name: str) -> bool:
    """Return True if a string has the form of an accumulator's name, which no format's name has."""
    return name in MACHINES or _WORD.search(name) is not None


def spelled(how: Accumulator | NumberFormat | str) -> str:
    """A text that `read` makes the same of, in any process."""
    if isinstance(how, str) and is_name(how):
        how = Accumulator.parse(how)
    return how.name if isinstance(how, Accumulator) else spelled_format(read_format(how))


def near(name: str) -> str:
    """` (did you mean 'h100_fp8'?)`, or nothing."""
    return did_you_mean(name, MACHINES)


def _scalar(what: str, fmt: Any, kinds: type = Format | Tabulated) -> Format | Tabulated:
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
    first, *rest = _WORD.split(text)
    parts: dict[str, Any] = {}
    try:
        for word in rest:
            for key, value in words.part(word).items():
                if key in parts:
                    raise ValueError(f"{word!r} says {key} again")
                parts[key] = value
        return Accumulator(first, **parts)
    except ValueError as error:
        raise ValueError(f"unknown accumulator {name!r}: {error}") from None


_NAMES: dict[Accumulator, str] = {}
_NAMES.update((_parsed(machine), machine) for machine in reversed(MACHINES))
