"""The description of a sum: its format, order and rounding.

The order matters, because low-precision addition is not associative. A `Sum` is an immutable value.
`cpdrun.comm.sums.summation_of` returns the object that computes the sum for a given number of workers.
"""

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from custom_fp.rounding import Overflow, is_stochastic, read_rounding
from custom_fp.rounding import words as all_words

from cpdrun.comm.sums.orders import AUTO, Level, Order, order_named


@dataclass(frozen=True)
class RandomStream:
    """The random numbers for the stochastic rounding of one tensor.

    The random number of an element depends on the key and on the index of the element in the layer. It does not depend
    on the process that rounds the element, or on the division of the layer into messages.

    Attributes:
        key: The key of the random numbers.
        start: The index in the layer of the tensor's first element.
    """

    key: tuple
    start: int = 0

    def seed(self) -> int:
        """Return a seed of 63 bits. The seeds of different keys are independent."""
        digest = hashlib.blake2b(repr(self.key).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1


FP32 = parse("fp32")
_CHOICES = {
    "kahan": (False, True),
    "error_feedback": (False, True),
    "overflow": tuple(Overflow),
    "requantise": (None, "hop", "once"),
    "compat": (None, "cpd"),
}
# The settings that compat=cpd allows.
_THEIRS = {"order": ("rank", "hierarchical"), "rounding": ("nearest_even",), "overflow": ("infinity",)}


@dataclass(frozen=True)
class Sum:
    """The settings of a sum of N tensors.

    Attributes:
        fmt: The number format.
        order: The order of addition (see `orders.py`).
        group_size: The number of workers per group, for orders that have groups.
        kahan: Whether to use Kahan summation, which carries the error of each addition in a second value of the format.
        rounding: The rounding mode, as in `custom_fp.quantize`.
        overflow: The treatment of overflow, as in `custom_fp.quantize`.
        error_feedback: Whether the rounding error of a worker's gradient is added to its next gradient (see
            `error_feedback.py`).
        requantise: With None, every partial sum is rounded to the format (see `rounded_sum.py`). With "hop" or "once",
            values are decoded, added in float32, and quantized again after each addition or once at the end (see
            `requantized_sum.py`). In formats with scales, None means "hop".
        compat: With "cpd", the sum is computed as in the APS authors' code (see `codec.py`).

    Raises:
        ValueError: The settings do not fit together.
    """

    fmt: NumberFormat
    order: str = "rank"
    group_size: int | str | None = AUTO
    kahan: bool = False
    rounding: str = "nearest_even"
    overflow: str = "infinity"
    error_feedback: bool = False
    requantise: str | None = None
    compat: str | None = None

    @classmethod
    def of(cls, what: "Sum | NumberFormat | str", **options: Any) -> "Sum":
        """Return a sum in a format, or a copy of a sum with some settings replaced."""
        return replace(what, **options) if isinstance(what, Sum) else cls(parse(what), **options)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fmt", parse(self.fmt))
        self.fmt.check_flat()
        for key, allowed in _CHOICES.items():
            if (value := getattr(self, key)) not in allowed:
                words = ", ".join("null" if choice is None else str(choice) for choice in allowed)
                raise ValueError(f"{key}={value!r}: choose one of {words}")
        try:
            read_rounding(self.rounding)
        except ValueError:
            raise ValueError(f"rounding={self.rounding!r}: choose one of {all_words()}") from None
        if order_named(self.order, self.group_size).accumulate_options and self.kahan:
            raise ValueError(
                f"kahan=true with order={self.order}: this order rounds only once, so Kahan summation has no effect. "
                "Set kahan=false"
            )
        if self.group_size is None:
            object.__setattr__(self, "group_size", AUTO)  # None also means "auto", which is stored instead.
        if self.compat:
            self._check_compat()

    @cached_property
    def is_stochastic(self) -> bool:
        """Whether the rounding is stochastic."""
        return is_stochastic(self.rounding)

    @cached_property
    def ordering(self) -> Order:
        """The order of addition."""
        return order_named(self.order, self.group_size)

    @property
    def requantization(self) -> str | None:
        """The effective value of `requantise`: "hop" in formats with scales if `requantise` is None."""
        return "hop" if self.requantise is None and self.fmt.has_scales else self.requantise

    @property
    def is_plain(self) -> bool:
        """Whether the sum of a single worker's gradient g is +0 + g, without any rounding or scaling."""
        return self == Sum(FP32, self.order, self.group_size) and self.ordering.keeps_float32

    def random_stream(self, *key: Any, start: int = 0) -> RandomStream | None:
        """Return the random numbers for rounding a tensor that begins at element `start` of its layer.

        The result is None if the rounding is not stochastic.
        """
        return RandomStream(key, start) if self.is_stochastic else None

    def in_full_precision(self) -> "Sum":
        """Return the same sum in fp32."""
        return replace(self, fmt=FP32, requantise=None)

    def at(self, level: Level) -> "Sum":
        """Return the sum for one level of the order. With compat=cpd, only the last level uses Kahan summation."""
        return replace(self, kahan=False) if self.compat and self.kahan and not level.last else self

    def _check_compat(self) -> None:
        """Raise ValueError for settings that the APS authors' code does not support."""
        for key, theirs in _THEIRS.items():
            if (value := getattr(self, key)) not in theirs:
                raise ValueError(
                    f"{key}={value} with compat={self.compat}: the value must be {' or '.join(theirs)}, because the "
                    "APS authors' code supports no other"
                )
        if self.error_feedback:
            raise ValueError(
                f"error_feedback=true with compat={self.compat}: the APS authors' code does not support error "
                "feedback. Set error_feedback=false"
            )
        if self.requantization:
            raise ValueError(
                f"compat={self.compat} does not support format={self.fmt} with requantise={self.requantization}, "
                "because the APS authors' code rounds every partial sum. Omit compat"
            )


def accepts_sum_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the settings of a `Sum` to the signature of a function that passes **options to it."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type
        )
        for option in fields(Sum)[1:]
        if option.name not in signature.parameters
    ]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function
