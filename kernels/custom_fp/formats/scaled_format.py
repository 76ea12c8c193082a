"""Scaled formats: formats whose elements are multiplied by a scale that they share. Does not import torch.

A scaled format consists of an element format (formats/elements.py), scales (formats/scale.py), and optionally a zero
point for each scale. MX, NVFP4, the formats of FP8 training, codebooks and affine integers differ only in these parts.
A tensor is rounded in six steps. Each step is computed in float32, rounded to nearest even. x is a block, and amax is
the largest magnitude in the block:

    1  t = max(AMAX / (e * s_max), 2**-126)   The scale of the tensor, if the format has one. AMAX is the largest finite
                                              magnitude in the tensor.
    2  s = the scale of the block             Chosen by one of the rules below, and rounded to the scale's format.
    3  r = (1 / t) / s                        Without a scale of the tensor, 1 / s. At most the largest float32.
    4  q = x * r                              Clamped to the range of the elements.
    5  element = q rounded                    By the given rounding mode, with a random number for each element.
    6  value = element * (s * t)              Without a scale of the tensor, element * s.

Here, e is target / 2**margin, and s_max is the largest scale. The target is the largest element. For tapered elements
(posits, takums), it is 2**emax, the end of the range in which they are precise. The rules are:

    floor     2**(floor(log2 amax) - emax), as in OCP MX 1.0, section 6.3. emax is the exponent of the largest element.
              Values past the largest element saturate.
    ceil      2**(ceil(log2 amax) - emax).
    nearest   Like floor, after amax is rounded to the nearest power of two. 1.5 * 2**n is rounded up.
    even      Like floor, after amax is rounded to as many digits as an element has, with ties up. This is torchao's
              EVEN.
    rceil     amax / target, rounded up to a power of two, so that nothing saturates. This is torchao's RCEIL.
    amax      w = (amax / e) / t, clamped to the range of the scales and rounded to nearest even. With e8m0, ties are
              rounded up.
    4over6    Try two scales, w and 1.5 * w, which map amax to 6 and to 4. Choose the scale with the smaller sum of
              squared errors, and w if the sums are equal. s_max is then the largest power of two that does not exceed
              the largest scale / 1.5, which is 256 for e4m3fn.
    absmax    s = amax, and q = x / s, or q = x for a block of zeros. This is the rule of codebooks.
    minmax    The rule of formats with zero points. With low = min(x, 0) and high = max(x, 0) over the block:
                  s       = max((high - low) / (2**k - 1), 2**-126)
                  zero    = 0 - round(low / s)                     clamped to 0 to 2**k - 1
                  code    = round(x * (1 / s)) + zero              clamped to 0 to 2**k - 1
                  value   = (code - zero) * s

The rules floor, ceil, nearest, even and rceil are for scales in e8m0, which range from 2**-127 to 2**127. 4over6
computes each error in float32, squares it, and adds the squares in float64. It computes eight sums, each over every
eighth element of the block, and adds these sums in pairs, beginning with sums that are 4 apart.

If a block contains NaN or infinity, its scale is NaN, and all of its values become NaN. A block of zeros has the
smallest scale (with absmax, 0) and stays zero. -0 stays -0 if the element format has -0. With minmax, a range larger
than the largest float32 makes the whole block NaN. Its round() is to nearest even, but the code can also be rounded
toward zero or stochastically. With minmax, magnitudes of at most half of 2**-126 become 0.

A name consists of a base and options. The options can be given in any order, but each format has only one canonical
name:

A name is a base and options. Options may stand in any order; parsing gives each format one name:

    mxfp8_e4m3 mxfp8_e5m2 mxfp6_e3m2 mxfp6_e2m3 mxfp4 mxint8   Blocks of 32, e8m0, floor: OCP MX 1.0, table 1.
    mxint4            The same with int4, from -7 to 7.
    nvfp4             e2m1fn in blocks of 16, scales in e4m3fn, rule amax, and a scale of the tensor (arXiv 2509.25149).
    nvfp4_2d          The same in tiles of 16x16.
    nvint4            Like nvfp4, but with int4, from -7 to 7 (arXiv 2510.25602).
    fp8_* fp8_e5m2_*  e4m3fn and e5m2 with scales in fp32 and rule amax. The name must include the block: fp8_tensor,
                      fp8_b128 ...
    int8_* int4_*     The same with integers from -127 to 127 and from -7 to 7: int8_tensor, int8_channel, int4_b32.
    posit8_* e3m4_*   The same with any other element of at most 8 bits: posit8_b32, hif8_b128, e3m4_b64_ue5m3.
    mxposit8 nvnf4    MX or NVFP4 scales with any element of at most 8 bits: mx or nv, followed by the element's name.
    nf4 dynamic_tree  Codebooks (formats/tables.py) with rule absmax and a float32 scale for the tensor, or for each
                      block (nf4_b64).
    int8_affine       2 to 8 bits with a float32 scale and a one-byte zero point for the tensor, or for each block or
                      row (int4_affine_b32, int8_affine_channel).

    _b32                                  Every 32 elements along the axis share a scale.
    _2d _block128 _64x32                  Tiles of 16x16, 128x128 or 64x32 of the last two dimensions share a scale.
    _row (_channel) _column               All elements along the axis share a scale. Without an axis, the last
                                          dimension (_row) or the second to last one (_column) is used.
    _tensor                               The whole tensor shares a scale.
    _e8m0 _e4m3fn _ue4m3 _ue5m3 _fp32     The format of the scales. With e8m0 or fp32, the tensor has no scale.
    _floor _ceil _nearest _even _rceil _amax _4over6     The rule.
    _margin1                              amax is mapped to target / 2, or with _margin2 to target / 4.
    _1level                               The tensor has no scale.

Gradients that workers send are flat. A row is then the whole tensor, and tiles and columns are rejected.

Sources and differences:

- nvfp4 gives the same results as torchao's nvfp4_quantize(x, 16, per_tensor_amax_to_scale(amax)) on the CPU, with three
  exceptions. torchao does not use scales s below 2**-6, but this package keeps subnormal scales. For AMAX below
  2**-110, torchao's t and r can be 0 or infinity. In torchao, a NaN in x makes the whole result NaN.
- 4over6 is from arXiv 2512.02010. The authors' code computes w as amax / 6 * (6 * 256 / AMAX), which sometimes gives a
  different float32.
- minmax gives the same results as torch's min-max observers, quantize_per_tensor and quantize_per_channel with
  torch.quint8, and fake_quantize_*_affine. The exception is that torch's observers do not use scales below 2**-23,
  which would turn small gradients into zeros.
- Delayed scaling computes scales from a history. This state is not part of a format. See recipe/delayed_scaling.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, ClassVar

from custom_fp.formats import elements
from custom_fp.formats.elements import MXINT8, Element, Integer, ValueTable
from custom_fp.formats.layout import WHOLE, Block
from custom_fp.formats.protocol import Backends, NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.formats.scale import ALIASES as SCALE_ALIASES
from custom_fp.formats.scale import BY_FORMAT, RULES, SCALES, Scale, ScaleFormat
from custom_fp.formats.tables import TABLES

_MX = Scale(SCALES["e8m0"], 32)
_NV = Scale(SCALES["e4m3fn"], 16, "amax", has_tensor_scale=True)
_FP32 = Scale(SCALES["fp32"], "tensor", "amax")
_CODEBOOK = Scale(SCALES["fp32"], "tensor", "absmax")
_AFFINE = Scale(SCALES["fp32"], "tensor", "minmax")


@dataclass(frozen=True)
class _Base:
    """The element and scales that the beginning of a name stands for.

    `needs_block` says whether the name must also include the block, as in fp8_b128.
    """

    element: Element
    scale: Scale
    zero_point: bool = False
    needs_block: bool = False


_E4M3, _E5M2, _E2M1, _INT4 = Format(4, 3, family="fn"), Format(5, 2), Format(2, 1, family="fn"), Integer(4)
BASES: Mapping[str, _Base] = {
    "mxfp8_e4m3": _Base(_E4M3, _MX),
    "mxfp8_e5m2": _Base(_E5M2, _MX),
    "mxfp6_e3m2": _Base(Format(3, 2, family="fn"), _MX),
    "mxfp6_e2m3": _Base(Format(2, 3, family="fn"), _MX),
    "mxfp4": _Base(_E2M1, _MX),
    "mxint8": _Base(MXINT8, _MX),
    "mxint4": _Base(_INT4, _MX),
    "nvfp4": _Base(_E2M1, _NV),
    "nvint4": _Base(_INT4, _NV),
    "fp8": _Base(_E4M3, _FP32, needs_block=True),
    "fp8_e5m2": _Base(_E5M2, _FP32, needs_block=True),
    **{name: _Base(ValueTable(name, tuple(table())), _CODEBOOK) for name, table in TABLES.items()},
    **{f"int{k}_affine": _Base(Integer(k, is_signed=False), _AFFINE, zero_point=True) for k in range(2, 9)},
}
ALIASES = {"mxfp4_e2m1": "mxfp4"}
_TILES = {"2d": (16, 16), "block128": (128, 128)}
_OPTION = re.compile(
    r"b(?P<along>[1-9][0-9]*)|(?P<height>[1-9][0-9]*)x(?P<width>[1-9][0-9]*)|margin(?P<margin>[1-9][0-9]?)|(?P<word>\w+)"
)
OPTIONS = (
    "_b<n> _<a>x<b> _2d _block128 _row _channel _column _tensor, "
    f"{' '.join('_' + name for name in (*SCALES, *SCALE_ALIASES))}, {' '.join('_' + rule for rule in RULES)}, "
    "_margin<n>, _1level"
)


@dataclass(frozen=True)
class ScaledFormat(NumberFormat):
    """A format whose elements share scales. `parse` returns the formats that have names.

    Attributes:
        name: The name, for messages and records.
        element: An element of at most 8 bits, or an argument of `elements.element`, which creates one.
        scale: The scales, or the arguments of `Scale`.
        zero_point: Whether every scale has a zero point, which is the code of zero. The elements must then be unsigned
            integers.

    Raises:
        ValueError: The value of an attribute is not allowed, or two attributes cannot be combined.
    """

    LOOKS_LIKE: ClassVar = "mxfp8_e4m3, nvfp4, mxposit8, dynamic_tree, int8_affine ..."
    PURPOSE: ClassVar = (
        "elements under shared scales: MX, NVFP4 and FP8 training, codebooks, integers with zero points"
    )
    EXAMPLES: ClassVar = (
        *(
            "mxfp8_e4m3",
            "mxfp8_e5m2",
            "mxfp6_e3m2",
            "mxfp6_e2m3",
            "mxfp4",
            "mxint8",
            "mxint4",
            "nvfp4",
            "nvint4",
        ),
        *("nvfp4_2d", "nvfp4_4over6", "fp8_tensor", "fp8_row", "fp8_b128", "fp8_block128"),
        *("fp8_e5m2_tensor", "int8_channel", "int4_b32", "posit8_b32", "mxposit8"),
        *("int8_affine", "int8_affine_channel", "int4_affine_b32"),
        *(*TABLES, "nf4_b64", "mxnf4"),
    )
    BACKENDS: ClassVar = Backends(
        "custom_fp.scaled.arithmetic:backend",
        "custom_fp.scaled.native:backend",
        "custom_fp.scaled.cuda:backend",
    )
    exponent_bits: ClassVar = None
    has_inf: ClassVar = False  # infinity makes its whole block NaN
    has_nan: ClassVar = True  # NaN is stored in the scale of the block

    name: str
    element: Element
    scale: Scale
    zero_point: bool = False

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # cached because formats are keys of caches that every call reads
        return hash((self.name, self.scale, self.zero_point))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without cached values, because hashes of strings differ between processes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "element", elements.element(self.element))
            if isinstance(self.scale, Mapping):
                object.__setattr__(self, "scale", Scale(**self.scale))
            for problem in self._problems():
                raise ValueError(problem)
        except ValueError as error:
            raise ValueError(f"format {self.name!r}: {error}") from None

    def _problems(self) -> Iterator[str]:
        """Yield messages about attributes that are not allowed or cannot be combined."""
        of, rule = self.element, self.scale.rule
        if of.code_bits > 8:
            yield f"elements of {of} have {of.code_bits} bits; allowed: elements of at most 8 bits"
        if isinstance(of, Format) and not of.has_negative_zero:
            yield f"elements of {of} have no -0; allowed: formats with a sign and a -0 (e4m3, e4m3fn, e4m3fo)"
        if isinstance(of, Format) and not of.max:
            yield f"elements of {of} are always zero; allowed: formats with other values"
        if self.zero_point != (rule == "minmax"):
            yield f"zero_point={self.zero_point} and rule={rule} cannot be combined; zero points require rule=minmax"
        if self.zero_point != (isinstance(of, Integer) and not of.is_signed):
            yield f"zero_point={self.zero_point} does not fit elements of {of}; zero points are for uint2 to uint8 only"
        if not (self.zero_point or of.is_signed or isinstance(of, ValueTable)):
            yield f"elements of {of} have no negative values; allowed: elements with a sign"
        if rule == "absmax" and not isinstance(of, ValueTable):
            yield f"rule=absmax is only for tables of values, not for elements of {of}; use rule=amax"
        if self.scale.how.by_digits and not isinstance(of, Format | Integer):
            yield f"rule={rule} requires values of equally many digits, unlike those of {of}; use floor or rceil"
        if rule == "4over6" and of.name != "e2m1fn":
            yield f"rule=4over6 is only for e2m1fn, which has the values 4 and 6, not for elements of {of}"

    @classmethod
    def parse(cls, name: str | ScaledFormat) -> ScaledFormat:
        """Return the scaled format with the given name. If there is none, raise ValueError."""
        found = name if isinstance(name, cls) else cls.named(name) if isinstance(name, str) else None
        if found is None:
            raise ValueError(f"unknown scaled format {name!r}; allowed: {', '.join(BASES)}, with {OPTIONS}")
        return found

    @classmethod
    def named(cls, name: str) -> ScaledFormat | None:
        return _named(name)

    # The arithmetic

    @cached_property
    def target(self) -> float:
        """The value to which amax and 4over6 map the largest magnitude of a block: e in the module's docstring."""
        return self.element.target * 2.0**-self.scale.margin

    @cached_property
    def largest_scale(self) -> float:
        """The scale of the block with the tensor's largest magnitude: s_max in the module's docstring."""
        largest = self.scale.format.largest
        return 2.0 ** math.floor(math.log2(largest / 1.5)) if self.scale.rule == "4over6" else largest

    @cached_property
    def added(self) -> int:
        """The number that rules for powers of two add to the bits of a float32 before they clear its mantissa."""
        rule = self.scale.how
        return rule.added >> getattr(self.element, "mantissa_bits", 0) if rule.by_digits else rule.added

    @cached_property
    def parts(self) -> tuple[int | float | bool, ...]:
        """The values of the members of `Scaling` in csrc/tiles/tiles.h, in order. Each member has 4 bytes."""
        of, scale = self.element, self.scale.format
        assert isinstance(of, Format | Integer)
        return (
            of.spec,
            of.code_bits,
            isinstance(of, Integer),
            float(of.least),
            float(of.max),
            of.unit if isinstance(of, Integer) else 1.0,
            0 if scale.is_power_of_two else 1 if scale.magnitudes else 2,
            scale.magnitudes.spec if scale.magnitudes else of.spec,
            0x7FC00000 if scale.nan_code is None else scale.nan_code,
            scale.smallest,
            scale.largest,
            self.scale.how.number or 0,
            self.added,
            self.emax,
            float(self.target),
            float(self.target * self.largest_scale) if self.has_tensor_scale else 0.0,
        )

    @cached_property
    def kernels(self) -> str | None:
        """The compiled kernels for the format: tiles, codebook or affine. None if only the elements have kernels."""
        if self.zero_point:
            return "affine"
        if self.scale.rule == "absmax":
            return "codebook"
        return "tiles" if isinstance(self.element, Format | Integer) else None

    # The properties of every format

    @property
    def synonyms(self) -> tuple[str, ...]:
        return tuple(short for short, name in ALIASES.items() if name == self.name)

    def code_values(self) -> Sequence[float]:
        values = self.element.code_values()
        assert values is not None  # element formats of at most 8 bits list their values
        return values

    @cached_property
    def code_bits(self) -> int:
        return self.element.code_bits

    @cached_property
    def scale_bits(self) -> int:
        return self.scale.format.bits

    @property
    def block(self) -> Block:
        return self.scale.block

    @property
    def has_tensor_scale(self) -> bool:
        return self.scale.has_tensor_scale

    @property
    def has_zero_point(self) -> bool:
        return self.zero_point

    @property
    def has_negative_zero(self) -> bool:
        return self.element.has_negative_zero

    @property
    def is_signed(self) -> bool:
        return self.zero_point or self.element.is_signed

    @property
    def takes_rounding(self) -> bool:
        return not isinstance(self.element, ValueTable)

    @property
    def emax(self) -> int:
        """The exponent of the largest power of two that an element can represent."""
        return self.element.emax


def BlockFormat(  # noqa: N802
    name: str,
    element: Element | str | None,
    block: Block = 32,
    scale: str = "e8m0",
    rule: str | None = None,
    tensor_scale: str | None = None,
    margin: int = 0,
) -> ScaledFormat:
    """Return a format whose elements (floats, integers or entries of a table) share a scale in each block.

    Args:
        name: The name, for messages.
        element: An element of at most 8 bits or its name, such as e2m1fn, int4 or posit8. None means the int8 of MX.
        block: Which elements share a scale: a number of elements along an axis, (rows, columns) of a tile, "row",
            "column" or "tensor".
        scale: The format of the scales: e8m0, e4m3fn, ue5m3 or fp32.
        rule: The rule that chooses scales. The default is floor for e8m0 and amax for other formats.
        tensor_scale: "fp32" for an additional scale of the whole tensor, or None.
        margin: With rule amax, the largest magnitude of a block is mapped to the largest element divided by 2**margin.

    Raises:
        ValueError: An argument is not allowed, or two arguments cannot be combined.
    """
    try:
        if tensor_scale not in (None, "fp32"):
            raise ValueError(f"tensor_scale is {tensor_scale!r}; allowed: None, fp32")
        scales = Scale(ScaleFormat.parse(scale), block, rule or BY_FORMAT, tensor_scale is not None, margin)
        of = elements.element(element)
    except ValueError as error:
        raise ValueError(f"format {name!r}: {error}") from None
    return ScaledFormat(name, of, scales)


def Codebook(name: str, values: Sequence[float], block: int | None = None) -> ScaledFormat:  # noqa: N802
    """Return a format whose elements are the entries of a given table of values, times a float32 scale.

    Args:
        name: The name, for messages.
        values: 2 to 256 numbers in [-1, 1] in the order of their codes. At least two must be different.
        block: The number of elements that share a scale, or None for a single scale of the whole tensor.

    Raises:
        ValueError: `values` or `block` is not allowed.
    """
    if block is not None and (type(block) is not int or block < 1):
        raise ValueError(
            f"codebook {name!r}: block is {block}; allowed: None, or a whole number of at least 1"
        )
    return ScaledFormat(name, ValueTable(name, tuple(values)), replace(_CODEBOOK, block=block or "tensor"))


def Affine(name: str, bits_of_code: int = 8, block: Block = "tensor") -> ScaledFormat:  # noqa: N802
    """Return a format of unsigned integers with a float32 scale and a zero point for each block.

    Args:
        name: The name, for messages.
        bits_of_code: The number of bits of a code, 2 to 8.
        block: Which elements share a scale: a number of elements along an axis, (rows, columns) of a tile, "row",
            "column" or "tensor".

    Raises:
        ValueError: An argument is not allowed.
    """
    try:
        return ScaledFormat(
            name, Integer(bits_of_code, is_signed=False), replace(_AFFINE, block=block), zero_point=True
        )
    except ValueError as error:
        raise ValueError(f"affine format {name!r}: {error}") from None


# The names


@cache
def _named(name: str) -> ScaledFormat | None:
    known = ALIASES.get(name, name)
    split = _split(known)
    if split is None:
        return None
    base_name, base, words = split
    given: dict[str, Any] = {}
    for word in words:
        match = _OPTION.fullmatch(word)
        option = _option(match, base) if match else None
        if option is None:
            if not base_name.startswith(("mx", "nv", "fp8")):
                return None  # the name may belong to another kind of format or to an installed package
            raise ValueError(f"no format {name!r}: {word!r} is not an option; allowed: {OPTIONS}")
        for key, value in option.items():
            if key in given:
                raise ValueError(f"no format {name!r}: the name sets {key} twice")
            given[key] = value
    if base.needs_block and "block" not in given:
        if known == base_name:
            return None
        allowed = f"{base_name}_tensor, {base_name}_row, {base_name}_b128 ..."
        raise ValueError(f"no format {name!r}: the name must include the block; allowed: {allowed}")
    try:
        fmt = ScaledFormat(name, base.element, _scale(base, given), base.zero_point)
    except ValueError as error:
        raise ValueError(f"no format {name!r}: {error}") from None
    return replace(fmt, name=_canonical(base_name, base, fmt.scale))


def base_name(name: str) -> str:
    """Return the base of a format's name without its options: nvfp4_2d becomes nvfp4, and e5m2 stays e5m2."""
    split = _split(ALIASES.get(name, name))
    return split[0] if split and split[2] else name


def _split(name: str) -> tuple[str, _Base, list[str]] | None:
    """Return the base with which a name begins, and the options after it."""
    words = name.split("_")
    for end in range(len(words), 0, -1):
        base_name = "_".join(words[:end])
        if base_name in BASES:
            return base_name, BASES[base_name], words[end:]
    for end in range(len(words), 0, -1):
        base_name = "_".join(words[:end])
        for prefix, scale in (("mx", _MX), ("nv", _NV), ("", _FP32)):
            if base_name.startswith(prefix) and (prefix or end < len(words)):
                try:
                    base = _Base(
                        elements.element(base_name.removeprefix(prefix)), scale, needs_block=not prefix
                    )
                except ValueError:
                    continue
                known = (name for name, other in BASES.items() if other == base)
                return next(known, f"{prefix}{base.element}"), base, words[end:]
    return None


def _scale(base: _Base, options: Mapping[str, Any]) -> Scale:
    """Return the scales of the format `base`, changed by the given options."""
    scale, fmt = base.scale, options.get("format", base.scale.format.name)
    if fmt != scale.format.name and scale.how.is_power:
        scale = replace(scale, format=ScaleFormat.parse(fmt), rule=BY_FORMAT)
    elif fmt != scale.format.name and scale.rule == "absmax":
        scale = replace(scale, format=ScaleFormat.parse(fmt), rule="amax")
    if fmt in ("e8m0", "fp32"):
        scale = replace(scale, has_tensor_scale=False)
    return replace(scale, **options)


def _option(match: re.Match, base: _Base) -> dict[str, Any] | None:
    if match["along"]:
        return {"block": int(match["along"])}
    if match["height"]:
        height, width = int(match["height"]), int(match["width"])
        return {"block": (height, width) if height > 1 or base.zero_point else width}
    if match["margin"]:
        return {"margin": int(match["margin"])}
    word = match["word"]
    if word in _TILES:
        return {"block": _TILES[word]}
    if word in (*WHOLE, "channel"):
        return {"block": "row" if word == "channel" else word}
    if word in SCALES or word in SCALE_ALIASES:
        return {"format": SCALE_ALIASES.get(word, word)}
    if word in RULES:
        return {"rule": word}
    return {"has_tensor_scale": False} if word == "1level" else None


def _canonical(base_name: str, base: _Base, scale: Scale) -> str:
    """Return the name of a format: the base, followed by options that differ from what the base implies."""
    fmt = scale.format.name
    implied = _scale(base, {"format": fmt})
    words = [base_name]
    if scale.block != base.scale.block or base.needs_block:
        words.append(_block_word(base_name, base, scale.block))
    if fmt != base.scale.format.name:
        words.append(fmt)
    if scale.rule != implied.rule:
        words.append(scale.rule)
    if scale.margin:
        words.append(f"margin{scale.margin}")
    if scale.has_tensor_scale != implied.has_tensor_scale:
        words.append("1level")
    return "_".join(words)


def _block_word(base_name: str, base: _Base, block: Block) -> str:
    if isinstance(block, int):
        return f"b{block}"
    if isinstance(block, tuple):
        known = (word for word, tile in _TILES.items() if tile == block and not base.zero_point)
        return next(known, f"{block[0]}x{block[1]}")
    return "channel" if block == "row" and base_name.startswith("int") else block
