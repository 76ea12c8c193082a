"""Compare formats that are implemented as tables with other libraries: P3109, posits, linear takums, HiFloat8.

    python scripts/checks/check_tables.py --softposit libsoftposit.so --takum libtakum.so \\
        --output results/reference/numerics/tables.md

- P3109 of up to 8 bits is compared with gfloat. All values are decoded. In each rounding and saturation mode, inputs
  are every float16, and the values and boundaries with both neighbors in float32. Stochastic rounding with 1, 3 and 8
  random bits is compared on every float16, and on steps of half a random bit between values, with both neighbors. Both
  libraries get the same random bits.
- Posits and takums are compared with the C libraries SoftPosit and libtakum, which are built by hand from their sources
  (gcc -shared -fPIC). The inputs are all codes, the boundaries with both neighbors, and a million numbers between
  2**-120 and 2**120. takum_linear8_from_float64 uses a logarithm in float32, so numbers within 2**-16 of a boundary are
  excluded from its comparison.
- HiFloat8 is compared with en_dtypes, on every float16.

Libraries that are not given or not installed are skipped. The exit status is 1 if a result differs.
"""

import argparse
import ctypes
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import custom_fp
import numpy as np
import torch
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.reference import random_words
from custom_fp.rounding import Form

Row = tuple[
    str, str, int, int
]  # (what is compared, the other library, number of inputs, number of differences)
WORDS = {
    "nearest_even": "TiesToEven",
    "nearest_away": "TiesToAway",
    "toward_zero": "TowardZero",
    "toward_positive": "TowardPositive",
    "toward_negative": "TowardNegative",
}
STOCHASTIC = {
    Form.CUT: "StochasticFastest",
    Form.FAST: "StochasticFast",
    Form.EVEN: "Stochastic",
    Form.ODD: "StochasticOdd",
}
MANY, SEED = 1_000_000, 11


def halves() -> np.ndarray:
    """Return every float16 except NaN, as float32."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    return every[~np.isnan(every)]


def special(fmt: Tabulated) -> np.ndarray:
    """Return a format's values and boundaries, the float32 neighbors of each, and the negatives of all."""
    at = np.array([*fmt.positive.magnitudes, *fmt.positive.boundaries])
    at = at[np.isfinite(at)].astype(np.float32)
    near = np.concatenate([at, np.nextafter(at, np.float32(np.inf)), np.nextafter(at, np.float32(0))])
    return np.unique(np.concatenate([near, -near]))


def differ(got: np.ndarray, expected: np.ndarray) -> int:
    return int((~((got == expected) | (np.isnan(got) & np.isnan(expected)))).sum())


def p3109(most: int) -> Iterator[Row]:
    gfloat = importlib.import_module("gfloat")
    formats = importlib.import_module("gfloat.formats")
    there = halves()
    for bits in range(3, most + 1):
        for word, mode in WORDS.items():
            for overflow in ("infinity", "saturate"):
                inputs = wrong = 0
                for fmt, info in _p3109(bits, formats):
                    values = [gfloat.decode_float(info, code).fval for code in range(1 << bits)]
                    wrong += differ(np.array(fmt.values()), np.array(values))
                    x = np.unique(np.concatenate([special(fmt), there, [-np.inf, np.inf]]).astype(np.float32))
                    x = x if fmt.is_signed else x[x >= 0]
                    x = np.append(x, np.float32(np.nan))
                    got = custom_fp.quantize(torch.from_numpy(x), fmt, rounding=word, overflow=overflow)
                    expected = gfloat.round_ndarray(
                        info, x.astype(float), gfloat.RoundMode[mode], overflow == "saturate"
                    )
                    inputs, wrong = inputs + len(x), wrong + differ(got.double().numpy(), expected)
                yield f"P3109, K = {bits}, {word}, {overflow}", "gfloat", inputs, wrong


def steps(fmt: Tabulated, bits: int) -> np.ndarray:
    """Return steps of half the last random bit between adjacent values, with both float32 neighbors.

    A format with a sign gets both signs.
    """
    ends = np.array([*fmt.positive.magnitudes, fmt.max * 1.5, fmt.max * 3])
    part = np.arange(2 ** (bits + 1)) / 2 ** (bits + 1)
    at = (ends[:-1, None] + part * np.diff(ends)[:, None]).reshape(-1)
    at = at[at < 2.0**127].astype(np.float32)
    near = np.concatenate([at, np.nextafter(at, np.float32(np.inf)), np.nextafter(at, np.float32(0))])
    return np.concatenate([near, -near]) if fmt.is_signed else near


def p3109_stochastic(most: int) -> Iterator[Row]:
    """Compare stochastic rounding. gfloat receives the random bits that custom_fp's kernels use for each element."""
    gfloat = importlib.import_module("gfloat")
    formats = importlib.import_module("gfloat.formats")
    there = halves()
    for bits in range(3, most + 1):
        for form, mode in STOCHASTIC.items():
            inputs = wrong = 0
            for fmt, info in _p3109(bits, formats):
                for drawn in (1, 3, 8):
                    given = there if fmt.is_signed else there[there >= 0]
                    x = np.concatenate([given, steps(fmt, drawn), [np.inf, np.nan]]).astype(np.float32)
                    words = random_words(len(x), 0, SEED, torch.device("cpu"))
                    theirs = (words >> 32 - drawn).numpy().astype(np.int16)
                    for overflow in ("infinity", "saturate"):
                        how = {"rounding": form.word(drawn), "overflow": overflow, "seed": SEED}
                        got = custom_fp.quantize(torch.from_numpy(x), fmt, **how)
                        saturates = overflow == "saturate"
                        expected = gfloat.round_ndarray(
                            info, x.astype(float), gfloat.RoundMode[mode], saturates, theirs, drawn
                        )
                        inputs, wrong = inputs + len(x), wrong + differ(got.double().numpy(), expected)
            yield f"P3109, K = {bits}, {form.word('1, _3, _8')}, both overflows", "gfloat", inputs, wrong


def _p3109(bits: int, formats) -> Iterator[tuple[Tabulated, object]]:
    for precision in range(1, bits + 1):
        for sign, end in ((s, e) for s in "su" for e in "ef"):
            if (sign, precision) == ("s", bits):
                continue
            signedness = formats.Signedness.Signed if sign == "s" else formats.Signedness.Unsigned
            domain = formats.Domain.Extended if end == "e" else formats.Domain.Finite
            info = formats.format_info_p3109(bits, precision, signedness, domain)
            yield custom_fp.parse(f"p3109_k{bits}p{precision}{sign}{end}"), info


def by_codes(fmt: Tabulated, of: str, encode, decode, near: float) -> Row:
    """Compare a format with another library, for all codes and many floats, and return the row of the table.

    Args:
        encode: The other library's function from a number to its code.
        decode: The other library's function from a code to its number.
        near: The relative distance from boundaries within which inputs are excluded.
    """
    values = np.array([float(fmt.value_of(code)) for code in range(1 << fmt.code_bits)])
    wrong = differ(values, np.array([decode(code) for code in range(1 << fmt.code_bits)]))
    g = np.random.default_rng(1)
    wide = np.exp2(g.uniform(-120, 120, MANY)) * g.choice([-1, 1], MANY)
    x = np.concatenate([special(fmt), wide, halves()]).astype(np.float32)
    x = x[(np.abs(x) < 2.0**120) & ((np.abs(x) > 2.0**-120) | (x == 0))]
    if near:
        edges = np.array(fmt.positive.boundaries)[1:]
        at = np.abs(x.astype(float))
        nearest = np.searchsorted(edges, at).clip(1, len(edges) - 1)
        apart = np.minimum(np.abs(at / edges[nearest] - 1), np.abs(at / edges[nearest - 1] - 1))
        x = x[(apart > near) | (at == 0)]
    codes = custom_fp.encode(torch.from_numpy(x), fmt).numpy()
    expected = np.array([encode(number) for number in x.tolist()])
    return f"{fmt}, all codes and floats", of, len(x) + len(values), wrong + int((codes != expected).sum())


def posits(library: Path) -> Iterator[Row]:
    there = ctypes.CDLL(str(library))
    there.convertDoubleToPX2.argtypes = [ctypes.c_double, ctypes.c_int]
    there.convertDoubleToPX2.restype = ctypes.c_uint32
    there.convertPX2ToDouble.restype = ctypes.c_double
    there.convertPX2ToDouble.argtypes = [ctypes.c_uint32]
    for n in range(3, 17):

        def decode(code: int, n: int = n) -> float:
            value = there.convertPX2ToDouble(code << 32 - n)
            return np.nan if np.isinf(value) else value  # The library represents NaR by infinity.

        def encode(x: float, n: int = n) -> int:
            return there.convertDoubleToPX2(x, n) >> 32 - n

        yield by_codes(custom_fp.parse(f"posit{n}"), "SoftPosit", encode, decode, 0.0)


def takums(library: Path) -> Iterator[Row]:
    there = ctypes.CDLL(str(library))
    for n, signed in ((8, ctypes.c_int8), (16, ctypes.c_int16)):
        encode = getattr(there, f"takum_linear{n}_from_float64")
        encode.argtypes, encode.restype = [ctypes.c_double], signed
        decode = getattr(there, f"takum_linear{n}_to_float64")
        decode.argtypes, decode.restype = [signed], ctypes.c_double
        yield by_codes(
            custom_fp.parse(f"takum{n}"),
            "libtakum",
            lambda x, encode=encode, n=n: encode(x) & (1 << n) - 1,
            lambda code, decode=decode, signed=signed: decode(signed(code).value),
            2.0**-16 if n == 8 else 0.0,
        )


def hifloat() -> Iterator[Row]:
    there = importlib.import_module("en_dtypes").hifloat8
    x = np.append(halves(), np.float32(np.nan))
    got = custom_fp.quantize(torch.from_numpy(x), "hif8", rounding="nearest_away").numpy()
    with np.errstate(invalid="ignore"):
        expected = x.astype(there).astype(np.float32)
    yield "hif8, nearest_away, every float16", "en_dtypes", len(x), differ(got, expected)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--softposit", type=Path, help="path of SoftPosit's shared library")
    parser.add_argument("--takum", type=Path, help="path of libtakum's shared library")
    parser.add_argument(
        "--most", type=int, default=8, help="largest number of bits of P3109 formats (default: 8)"
    )
    parser.add_argument("--output", type=Path, help="write the table to this file as well")
    options = parser.parse_args()
    checks = [lambda: p3109(options.most), lambda: p3109_stochastic(options.most), hifloat]
    checks += [lambda: posits(options.softposit)] if options.softposit else []
    checks += [lambda: takums(options.takum)] if options.takum else []
    lines = ["# Tables against other libraries", "", f"`{_command(options)}`", ""]
    lines += ["| what | against | inputs | differences |", "| --- | --- | ---: | ---: |"]
    print("\n".join(lines))
    total = 0
    for check in checks:
        try:
            for what, against, inputs, wrong in check():
                total += wrong
                lines.append(f"| {what} | {against} | {inputs:,} | {wrong} |")
                print(lines[-1], flush=True)
        except ImportError as error:
            print(f"skipped: {error}", file=sys.stderr)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines) + "\n")
    return int(total > 0)


def _command(options: argparse.Namespace) -> str:
    given = [f"--{name} lib{name}.so" for name in ("softposit", "takum") if getattr(options, name)]
    return " ".join(["python scripts/checks/check_tables.py", *given, f"--most {options.most}"])


if __name__ == "__main__":
    sys.exit(main())
