"""Random numbers of stochastic rounding.

What a sum is: format, order, rounding, since low-precision addition is not associative.

A `Sum` is a value; `summation_of` (summations/) makes of it what forms the sum of so many workers' gradients.
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
    """The random numbers of one stochastic rounding: a key, and where in its layer the tensor begins.

    An element's number depends on the key and on its place in the layer, not on the process that rounds it
    or on the pieces the layer is cut into.
    """

    key: tuple
    start: int = 0

    def seed(self) -> int:
        """63 bits, unrelated for unequal keys."""
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
# of compat=cpd
_THEIRS = {"order": ("rank", "hierarchical"), "rounding": ("nearest_even",), "overflow": ("infinity",)}


@dataclass(frozen=True)
class Sum:
    """One way to add N tensors. Raises ValueError where its parts do not fit together.

    order, group_size   who is added to whom, when: the files of orders/
    kahan               each addition's error is carried in a second value of the format
    rounding, overflow  as `custom_fp.quantize` has them
    error_feedback      what rounding takes from a worker's gradient is added to its next one (`feedback.py`)
    requantise          None: every partial sum is rounded to the format (`rounded.py`); "hop" or "once": decoded, added
                        in float32 and quantized again (`decoded.py`), as formats with scales are in any case, "hop"
    compat              "cpd": as the code of APS's authors adds (`compat.py`)
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
    def of(cls, what: "Sum | NumberFormat | str", **knobs: Any) -> "Sum":
        """The sum that is given, with these knobs in place of its own; or one in this format."""
        return replace(what, **knobs) if isinstance(what, Sum) else cls(what, **knobs)

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
                f"kahan=true with order={self.order}: it rounds once and leaves no errors to carry"
            )
        if self.group_size is None:
            object.__setattr__(self, "group_size", AUTO)  # one spelling of what has no effect
        if self.compat:
            self._check_compat()

    @cached_property
    def is_stochastic(self) -> bool:
        return is_stochastic(self.rounding)

    @cached_property
    def ordering(self) -> Order:
        return order_named(self.order, self.group_size)

    @property
    def again(self) -> str | None:
        """How often what was added in float32 is quantized again; None where it is not added so."""
        return "hop" if self.requantise is None and self.fmt.has_scales else self.requantise

    @property
    def is_plain(self) -> bool:
        """Whether a single worker's gradient comes out as it is, but for the definition's +0 + g."""
        return self == Sum(FP32, self.order, self.group_size) and self.ordering.keeps_float32

    def random_stream(self, *key: Any, start: int = 0) -> RandomStream | None:
        """The random numbers that rounding a tensor takes, which begins at element `start` of its layer."""
        return RandomStream(key, start) if self.is_stochastic else None

    def in_full_precision(self) -> "Sum":
        """The same in fp32."""
        return replace(self, fmt=FP32, requantise=None)

    def at(self, level: Level) -> "Sum":
        """How a level of the order adds: compat=cpd knows kahan in the last one alone."""
        return replace(self, kahan=False) if self.compat and self.kahan and not level.last else self

    def _check_compat(self) -> None:
        """Raises ValueError for what the code of APS's authors does not have."""
        for key, theirs in _THEIRS.items():
            if (value := getattr(self, key)) not in theirs:
                raise ValueError(
                    f"{key}={value} with compat={self.compat}: its code has only {' and '.join(theirs)}"
                )
        if self.error_feedback:
            raise ValueError(f"error_feedback=true with compat={self.compat}: its code has none")
        if self.again:
            raise ValueError(f"compat={self.compat}: its code has no formats with scales such as {self.fmt}")


def accepts_sum_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Spells the knobs of a Sum in the signature of a function that takes them as **knobs."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    knobs = [
        inspect.Parameter(
            knob.name, inspect.Parameter.KEYWORD_ONLY, default=knob.default, annotation=knob.type
        )
        for knob in fields(Sum)[1:]
        if knob.name not in signature.parameters
    ]
    function.__signature__ = signature.replace(parameters=[*own, *knobs])
    return function
