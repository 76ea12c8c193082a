"""Scaled formats as values: small elements under shared scales, as MX, NVFP4 and FP8 training have them. Standard
library only. Every step is in float32 and rounded to nearest even; x is a block, amax its largest magnitude:

    1  t = max(AMAX / (e * s_max), 2**-126)   the scale of the tensor, where it has one; AMAX: the largest finite
                                              magnitude of all of it
    2  s = the block's scale                  by a rule, below; a value of the scale's format (scale.py)
    3  r = (1 / t) / s                        1 / s without a scale of the tensor; held at the largest float32
    4  q = x * r                              held within the least and the largest value, max, of an element
    5  element = q rounded                    nearest_even, toward_zero or stochastic, index-keyed (rounding.py)
    6  value = element * (s * t)              element * s without a scale of the tensor

e is max / 2**margin, s_max the largest scale. Rules:

    floor     2**(floor(log2 amax) - emax)    OCP MX 1.0, section 6.3; emax: exponent of max. What is past max saturates
    ceil      2**(ceil(log2 amax) - emax)
    nearest   amax to the nearest power of two first, 1.5 * 2**n up
    even      amax to as many digits as an element has first, halves up, then floor: torchao's EVEN
    rceil     amax / max to the next power of two above, so that nothing saturates: torchao's RCEIL
    amax      w = (amax / e) / t, held within the smallest and the largest scale, to nearest even; of e8m0, halves up
    4over6    of the scales for w and for 1.5 * w, which put amax at 6 and at 4, the one with the smaller sum of squared
              errors, the first where they are equal; s_max is then the largest power of two up to s_max / 1.5, 256 for
              e4m3fn

floor, ceil, nearest, even and rceil are of scales in e8m0, and held within 2**-127 .. 2**127. 4over6: an error is taken
in float32, squared and added in float64: eight sums, over every eighth element of the block, then pairwise, 4 apart
first. A block with NaN or inf has the scale NaN and decodes to NaN; a block of zeros has the smallest scale.

A name is a base and options, which may stand in any order; parsing gives each format its one name:

    mxfp8_e4m3 mxfp8_e5m2 mxfp6_e3m2 mxfp6_e2m3 mxfp4 mxint8   blocks of 32, e8m0, floor: OCP MX 1.0, table 1
    mxint4            the same of int4, -7 .. 7
    nvfp4             e2m1fn, blocks of 16, scales in e4m3fn, amax, a scale of the tensor (arXiv 2509.25149)
    nvfp4_2d          the same in tiles of 16x16
    nvint4            as nvfp4, of int4, -7 .. 7 (arXiv 2510.25602)
    fp8_* fp8_e5m2_*  e4m3fn, e5m2; scales in fp32, amax. What shares a scale has to be said: fp8_tensor, fp8_b128 ...
    int8_* int4_*     the same of -127 .. 127 and -7 .. 7: int8_tensor, int8_channel, int4_b32

    _b32                                  so many along the axis
    _2d _block128 _64x32                  tiles, of 16x16, 128x128, 64x32, of the last two dimensions
    _row (_channel) _column               all of the axis, which is the last, the last but one, where none is given
    _tensor                               one scale for all
    _e8m0 _e4m3fn _ue4m3 _ue5m3 _fp32     scales; e8m0 and fp32 leave the scale of the tensor out
    _floor _ceil _nearest _even _rceil _amax _4over6     the rule
    _margin1                              amax is put at max / 2, with 2 at max / 4 ...
    _1level                               without the scale of the tensor

Over the wire tensors are flat: all of one is a row then, and tiles and columns are refused.

nvfp4 is what torchao's nvfp4_quantize(x, 16, per_tensor_amax_to_scale(amax)) makes of x on the CPU, but that torchao
holds s at 2**-6 and above, where here subnormal scales are kept; that its t and r can be 0 or inf (AMAX below 2**-110);
and that a NaN of x makes all of its result NaN. 4over6 is arXiv 2512.02010's, whose authors' code takes for w
amax / 6 * (6 * 256 / AMAX), which is another float32 now and then. Delayed scaling takes scales from a history: that is
state, and belongs to what rounds step after step, not to a format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, ClassVar

from custom_fp.formats.layout import WHOLE, Block
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.formats.scale import (
    ALIASES as SCALE_ALIASES,
)
from custom_fp.formats.scale import (
    SCALES,
    Integer,
    ScaleFormat,
    element,
    power_of_two_at_most,
)

POWERS = ("floor", "ceil", "nearest", "even", "rceil")  # rules for scales that are powers of two
RULES = (*POWERS, "amax", "4over6")
BLOCK = 32
_BY_SCALE: Any = None  # the rule where none is given

_NV = {"block": 16, "scale": "e4m3fn", "rule": "amax", "tensor_scale": "fp32"}
_FP32 = {"block": None, "scale": "fp32", "rule": "amax"}
BASES: Mapping[str, Mapping[str, Any]] = {
    "mxfp8_e4m3": {"element": "e4m3fn"},
    "mxfp8_e5m2": {"element": "e5m2"},
    "mxfp6_e3m2": {"element": "e3m2fn"},
    "mxfp6_e2m3": {"element": "e2m3fn"},
    "mxfp4": {"element": "e2m1fn"},
    "mxint8": {"element": None},
    "mxint4": {"element": "int4"},
    "nvfp4": {"element": "e2m1fn", **_NV},
    "nvint4": {"element": "int4", **_NV},
    "fp8": {"element": "e4m3fn", **_FP32},
    "fp8_e5m2": {"element": "e5m2", **_FP32},
    "int8": {"element": "int8", **_FP32},
    "int4": {"element": "int4", **_FP32},
}
ALIASES = {"mxfp4_e2m1": "mxfp4"}
_TILES = {"2d": (16, 16), "block128": (128, 128)}
_OPTION = re.compile(
    r"b(?P<along>[1-9]\d*)|(?P<height>[1-9]\d*)x(?P<width>[1-9]\d*)|margin(?P<margin>[1-9]\d?)|(?P<word>\w+)"
)
OPTIONS = (
    "_b<n> _<a>x<b> _2d _block128 _row _channel _column _tensor, "
    f"{' '.join('_' + name for name in (*SCALES, *SCALE_ALIASES))}, {' '.join('_' + rule for rule in RULES)}, "
    "_margin<n>, _1level"
)


@dataclass(frozen=True)
class BlockFormat(NumberFormat):
    """Elements in blocks under scales; `parse` makes those that have names.

    element: a Format of at most 8 bits, an Integer (scale.py), or the name of one (e2m1fn, int4); None: MX's int8.
    block: n along the axis, (a, b) for tiles, "row", "column" or "tensor" (layout.py). scale: a name of scale.py's.
    rule: see above; None: floor for e8m0, else amax. tensor_scale: fp32 or None. Raises ValueError for anything else,
    and where they do not go together.
    """

    LOOKS_LIKE: ClassVar = f"{next(iter(BASES))}, nvfp4 ..."
    PURPOSE: ClassVar = (
        "small floats and integers under shared scales (MX, NVFP4, FP8 training): operands of products"
    )
    EXAMPLES: ClassVar = (
        *(base for base, parts in BASES.items() if parts.get("block", BLOCK) is not None),
        *("nvfp4_2d", "nvfp4_4over6", "fp8_tensor", "fp8_row", "fp8_b128", "fp8_block128"),
        *("fp8_e5m2_tensor", "int8_channel", "int4_b32"),
    )
    BACKENDS: ClassVar = {
        "cpu": "custom_fp.scaled.tiles_native:backend",
        "cuda": "custom_fp.scaled.tiles_on_cuda:backend",
        "any": "custom_fp.scaled.tiles:backend",
    }
    exponent_bits: ClassVar = None
    has_inf: ClassVar = False  # a block that holds one is NaN
    has_nan: ClassVar = True  # of the scale
    is_signed: ClassVar = True
    takes_rounding: ClassVar = True

    name: str
    element: Format | Integer | None
    block: Block = BLOCK
    scale: str = "e8m0"
    rule: str = _BY_SCALE
    tensor_scale: str | None = None
    margin: int = 0

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # it keys the caches of every call
        return hash((self.name, self.block, self.scale, self.rule, self.tensor_scale, self.margin))

    def __getstate__(self) -> dict[str, Any]:
        """Without what was cached: another process hashes texts otherwise."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __post_init__(self) -> None:
        put = lambda key, value: object.__setattr__(self, key, value)  # noqa: E731
        if self.element is not None:
            put("element", element(self.element))
        put("scale", ScaleFormat.parse(self.scale).name)
        if isinstance(self.block, list):
            put("block", tuple(self.block))
        if self.rule is _BY_SCALE:
            put("rule", "floor" if self.scale == "e8m0" else "amax")
        for problem in self._problems():
            raise ValueError(f"block format {self.name!r} {problem}")

    def _problems(self):
        """What does not go, in words."""
        if self.of.bits > 8:
            kinds = "formats of at most 8 bits, or None for int8"
            yield f"with elements of {self.of}, {self.of.bits} bits; allowed: {kinds}"
        if not (self.is_integer or self.of.has_negative_zero):
            yield f"with elements of {self.of}; allowed: formats with a sign and a -0 (e4m3, e4m3fn, e4m3fo)"
        sizes = self.block if isinstance(self.block, tuple) else (self.block,)
        is_size = all(type(size) is int and size >= 1 for size in sizes) and len(sizes) == 1 + isinstance(
            self.block, tuple
        )
        if not is_size and self.block not in WHOLE:
            yield f"with block={self.block!r}; allowed: a whole number from 1, two of them, {', '.join(WHOLE)}"
        if self.rule not in RULES:
            yield f"with rule={self.rule!r}; allowed: {', '.join(RULES)}"
        if self.rule in POWERS and self.scale != "e8m0":
            yield f"with rule={self.rule} and scales in {self.scale}; that rule is e8m0's; allowed: amax, 4over6"
        if self.rule == "4over6" and str(self.of) != "e2m1fn":
            yield f"with rule=4over6 and elements of {self.of}; that rule is e2m1fn's, whose values are 4 and 6"
        if self.tensor_scale not in (None, "fp32"):
            yield f"with tensor_scale={self.tensor_scale!r}; allowed: None, fp32"
        if self.tensor_scale and self.scale in ("e8m0", "fp32"):
            yield f"with a scale of the tensor and others in {self.scale}, which need none; allowed: e4m3fn, ue5m3"
        if (
            type(self.margin) is not int
            or not 0 <= self.margin < 100
            or (self.margin and self.rule in POWERS)
        ):
            yield f"with margin={self.margin!r} and rule={self.rule}; allowed: 0 .. 99, with amax and 4over6"

    @classmethod
    def parse(cls, name: str | BlockFormat) -> BlockFormat:
        """The scaled format called `name`. Raises ValueError, which tells what is allowed."""
        found = name if isinstance(name, cls) else cls.named(name) if isinstance(name, str) else None
        if found is None:
            raise ValueError(f"unknown block format {name!r}; allowed: {', '.join(BASES)}, with {OPTIONS}")
        return found

    @classmethod
    def named(cls, name: str) -> BlockFormat | None:
        return _named(name)

    # what it is made of

    @cached_property
    def of(self) -> Format | Integer:
        """The elements' format."""
        return element(self.element)

    @cached_property
    def scaled_by(self) -> ScaleFormat:
        return SCALES[self.scale]

    @cached_property
    def is_integer(self) -> bool:
        return isinstance(self.of, Integer)

    @cached_property
    def least(self) -> float:
        """Of an element."""
        return self.of.least if isinstance(self.of, Integer) else -self.of.max

    @cached_property
    def target(self) -> float:
        """What the rules amax and 4over6 put a block's largest magnitude at: e above."""
        return self.of.max * 2.0**-self.margin

    @cached_property
    def largest_scale(self) -> float:
        """Of the block that holds the tensor's largest magnitude, where the tensor has a scale: s_max above."""
        largest = self.scaled_by.largest
        return power_of_two_at_most(largest / 1.5) if self.rule == "4over6" else largest

    @cached_property
    def added(self) -> int:
        """What rules for powers of two add to a float32's bits before the mantissa is cut off."""
        half = {"floor": 0, "ceil": 0x7FFFFF, "rceil": 0x7FFFFF, "even": 0x400000 >> self.of.mantissa_bits}
        return half.get(self.rule, 0x400000)

    @cached_property
    def parts(self) -> tuple[int | float | bool, ...]:
        """The members of `Scaling` in csrc/tiles/tiles.h, in their order: 4 bytes each."""
        of, scale = self.of, self.scaled_by
        return (
            of.spec,
            of.bits,
            self.is_integer,
            float(self.least),
            float(of.max),
            of.unit if isinstance(of, Integer) else 1.0,
            0 if scale.is_power_of_two else 1 if scale.magnitudes else 2,
            scale.magnitudes.spec if scale.magnitudes else of.spec,
            0x7FC00000 if scale.nan_code is None else scale.nan_code,
            scale.smallest,
            scale.largest,
            {"rceil": 1, "amax": 2, "4over6": 3}.get(self.rule, 0),
            self.added,
            self.emax,
            float(self.target),
            float(self.target * self.largest_scale) if self.has_tensor_scale else 0.0,
        )

    # facts

    @property
    def synonyms(self) -> tuple[str, ...]:
        return tuple(short for short, name in ALIASES.items() if name == self.name)

    def code_values(self) -> list[float]:
        return self.of.values()

    @cached_property
    def code_bits(self) -> int:
        return self.of.bits

    @cached_property
    def scale_bits(self) -> int:
        return self.scaled_by.bits

    @property
    def has_tensor_scale(self) -> bool:
        return self.tensor_scale is not None

    @property
    def has_negative_zero(self) -> bool:
        return not self.is_integer

    @property
    def emax(self) -> int:
        """Exponent of the largest power of two that an element holds."""
        return self.of.emax


@cache
def _named(name: str) -> BlockFormat | None:
    """None where a word is none of ours: another kind may know it."""
    known = ALIASES.get(name, name)
    base = next(
        (b for b in sorted(BASES, key=len, reverse=True) if known == b or known.startswith(b + "_")), None
    )
    if base is None:
        return None
    given: dict[str, Any] = {}
    for word in known[len(base) + 1 :].split("_") if known != base else ():
        match = _OPTION.fullmatch(word)
        option = _option(match) if match else None
        if option is None and base.startswith("int"):
            return None
        if option is None:
            raise ValueError(f"no format {name!r}: {word!r} is none of the options; allowed: {OPTIONS}")
        for key, value in option.items():
            if key in given:
                raise ValueError(f"no format {name!r}: it says {key} twice")
            given[key] = value
    values = {
        "block": BLOCK,
        "scale": "e8m0",
        "rule": _BY_SCALE,
        "tensor_scale": None,
        "margin": 0,
        **BASES[base],
    }
    if given.get("scale", values["scale"]) != "e8m0" and values["rule"] is _BY_SCALE:
        values["rule"] = "amax"
    if given.get("scale") in ("e8m0", "fp32"):
        values["tensor_scale"] = None
    values |= given
    if values["block"] is None:
        if known == base:
            return None
        allowed = f"{base}_tensor, {base}_row, {base}_b128 ..."
        raise ValueError(f"no format {name!r}: it does not say what shares a scale; allowed: {allowed}")
    try:
        fmt = BlockFormat(name=name, **values)
    except ValueError as error:
        raise ValueError(f"no format {name!r}: {error}") from None
    return replace(fmt, name=_canonical(base, fmt))


def _option(match: re.Match) -> dict[str, Any] | None:
    if match["along"]:
        return {"block": int(match["along"])}
    if match["height"]:
        height, width = int(match["height"]), int(match["width"])
        return {"block": (height, width) if height > 1 else width}
    if match["margin"]:
        return {"margin": int(match["margin"])}
    word = match["word"]
    if word in _TILES:
        return {"block": _TILES[word]}
    if word in (*WHOLE, "channel"):
        return {"block": "row" if word == "channel" else word}
    if word in SCALES or word in SCALE_ALIASES:
        return {"scale": SCALE_ALIASES.get(word, word)}
    if word in RULES:
        return {"rule": word}
    return {"tensor_scale": None} if word == "1level" else None


def _canonical(base: str, fmt: BlockFormat) -> str:
    """The base, then what it does not say: block, scale, rule, margin, levels."""
    own = {"block": BLOCK, "scale": "e8m0", "tensor_scale": None, **BASES[base]}
    said = [base]
    if fmt.block != own["block"]:
        said.append(_block_word(base, fmt.block))
    if fmt.scale != own["scale"]:
        said.append(fmt.scale)
    if fmt.rule != own.get("rule", "floor" if fmt.scale == "e8m0" else "amax"):
        said.append(fmt.rule)
    if fmt.margin:
        said.append(f"margin{fmt.margin}")
    if fmt.tensor_scale != own["tensor_scale"] and fmt.scale not in ("e8m0", "fp32"):
        said.append("1level")
    return "_".join(said)


def _block_word(base: str, block: Block) -> str:
    if isinstance(block, int):
        return f"b{block}"
    if isinstance(block, tuple):
        known = next((word for word, tile in _TILES.items() if tile == block), None)
        return known or f"{block[0]}x{block[1]}"
    return "channel" if block == "row" and base.startswith("int") else block
