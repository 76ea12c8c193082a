"""Count the inputs that other libraries round differently from custom_fp.

    python scripts/research/formats/compare_formats.py --output results/reference/numerics/comparison.md

The inputs (custom_fp/vectors/inputs.py) are

- all 65,536 float16 values,
- the float32 boundaries of each format, each with the adjacent float32 numbers. The boundaries are every value, every
  midpoint of neighbors, and the value that would follow the largest. Between boundaries, the result does not change.
- zeros, subnormals, infinities and NaN.

torch, ml_dtypes and gfloat are compared if they are installed. QPyTorch is compared if Python finds it
(PYTHONPATH=<an unpacked qtorch 0.3.0>, which compiles itself). CPD is compared with --cpd FOLDER, where FOLDER is a
copy of github.com/drcut/CPD. g++ compiles CPD's cast in a temporary folder, without CUDA's keywords.

--blocks N adds N * 2**24 float32 numbers, in evenly spaced blocks. 256 blocks are all 2**32 numbers. The comparison of
torch and ml_dtypes takes about 7 s of one core per block, and half an hour for all blocks. gfloat is not compared on
blocks, because it is much slower.
"""

import argparse
import ctypes
import math
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import custom_fp
import numpy as np
import torch
from custom_fp.formats.scalar import Format
from custom_fp.vectors.inputs import inputs
from torch import Tensor

COMMAND = "python scripts/research/formats/compare_formats.py"

Cast = Callable[[Tensor], Tensor]
Compared = tuple[
    str, str, Format, str, Cast
]  # (library, its name of the format, format of custom_fp, overflow, the library's cast to the format and back)

TORCH = {"e5m2": "float8_e5m2", "e4m3fn": "float8_e4m3fn", "e5m2fnuz": "float8_e5m2fnuz"}
TORCH |= {"e4m3fnuz": "float8_e4m3fnuz", "fp16": "float16", "bf16": "bfloat16"}
ML_DTYPES = {"e5m2": "float8_e5m2", "e4m3": "float8_e4m3", "e3m4": "float8_e3m4", "e4m3fn": "float8_e4m3fn"}
ML_DTYPES |= {"e5m2fnuz": "float8_e5m2fnuz", "e4m3fnuz": "float8_e4m3fnuz"}
ML_DTYPES |= {"e4m3b11fnuz": "float8_e4m3b11fnuz", "e3m2fn": "float6_e3m2fn", "e2m3fn": "float6_e2m3fn"}
ML_DTYPES |= {"e2m1fn": "float4_e2m1fn", "bf16": "bfloat16"}
GFLOAT = {"e5m2": "ocp_e5m2", "e4m3fn": "ocp_e4m3", "e3m2fn": "ocp_e3m2", "e2m3fn": "ocp_e2m3"}
GFLOAT |= {"e2m1fn": "ocp_e2m1", "fp16": "binary16", "bf16": "bfloat16"}
FIELDS = (
    "e5m2",
    "e4m3",
    "e3m4",
    "e3m0",
    "fp16",
    "bf16",
)  # the formats for libraries that accept any number of exponent and mantissa bits


def compared(cpd: Path | None, folder: Path) -> Iterator[Compared]:
    for name, theirs in TORCH.items():
        yield "torch", theirs, Format.parse(name), "infinity", _by_torch(getattr(torch, theirs))
    yield from _of_ml_dtypes()
    yield from _of_gfloat()
    yield from _of_qtorch()
    if cpd is not None:
        cast = _compiled(cpd, folder)
        for name in FIELDS:
            fmt = Format.parse(name)
            yield "CPD", f"({fmt.exponent_bits}, {fmt.mantissa_bits})", fmt, "infinity", cast(fmt)


def _by_torch(dtype: torch.dtype) -> Cast:
    return lambda x: x.to(dtype).to(torch.float32)


def _of_ml_dtypes() -> Iterator[Compared]:
    try:
        import ml_dtypes
    except ImportError:
        return
    for name, theirs in ML_DTYPES.items():
        dtype, fmt = getattr(ml_dtypes, theirs), Format.parse(name)

        def cast(x: Tensor, dtype=dtype) -> Tensor:
            return torch.from_numpy(x.numpy().astype(dtype).astype(np.float32))

        yield "ml_dtypes", theirs, fmt, "infinity", cast


def _of_gfloat() -> Iterator[Compared]:
    """Yield gfloat's formats.

    For formats without infinity and NaN, gfloat requires saturation, so custom_fp also saturates.
    """
    try:
        import gfloat
        from gfloat import formats
    except ImportError:
        return
    named = {name: getattr(formats, f"format_info_{theirs}") for name, theirs in GFLOAT.items()}
    for name, info in named.items():
        fmt = Format.parse(name)
        saturates = not (fmt.has_nan or fmt.has_inf)

        def cast(x: Tensor, info=info, saturates=saturates) -> Tensor:
            if saturates:  # gfloat does not accept NaN in this mode.
                x = x.nan_to_num(math.inf, math.inf, -math.inf)
            rounded = gfloat.round_ndarray(info, x.double().numpy(), sat=saturates)
            return torch.from_numpy(rounded).float()

        yield "gfloat", info.name, fmt, "saturate" if saturates else "infinity", cast


def _of_qtorch() -> Iterator[Compared]:
    try:
        from qtorch.quant import float_quantize
    except (ImportError, RuntimeError, OSError):
        return
    for name in FIELDS:
        fmt = Format.parse(name)

        def cast(x: Tensor, fmt=fmt) -> Tensor:
            return float_quantize(x, exp=fmt.exponent_bits, man=fmt.mantissa_bits, rounding="nearest")

        yield "QPyTorch", f"({fmt.exponent_bits}, {fmt.mantissa_bits})", fmt, "infinity", cast


def _compiled(cpd: Path, folder: Path) -> Callable[[Format], Cast]:
    """Compile CPD's `cast_precision`, and return a function that casts to a format value by value."""
    source = (cpd / "CPDtorch/quant/quant_cuda/float_kernel.cu").read_text()
    begin = source.index("__device__ float cast_precision")
    theirs = source[begin : source.index("\n}", begin) + 2]
    kernel = folder / "cast.cpp"
    kernel.write_text(
        "#include <math.h>\n#define __device__ static\n"
        "#define FLOAT_TO_BITS(x) (*reinterpret_cast<unsigned int*>(x))\n"
        "#define BITS_TO_FLOAT(x) (*reinterpret_cast<float*>(x))\n"
        f"{theirs}\n"
        'extern "C" void cast(float* x, long n, int m, int e)'
        "{ for (long i = 0; i < n; ++i) x[i] = cast_precision(x[i], m, e); }\n"
    )
    library = folder / "cast.so"
    command = ["g++", "-O1", "-fno-strict-aliasing", "-fwrapv", "-shared", "-fPIC", kernel, "-o", library]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).cast
    function.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]

    def of(fmt: Format) -> Cast:
        def cast(x: Tensor) -> Tensor:
            y = x.clone()
            function(y.data_ptr(), y.numel(), fmt.mantissa_bits, fmt.exponent_bits)
            return y

        return cast

    return of


# ---- counting


def float16s() -> Tensor:
    return torch.arange(1 << 16).to(torch.int16).view(torch.float16).float()


def boundaries(fmt: Format) -> Tensor:
    return torch.tensor(list(inputs(fmt, []))).to(torch.int32).view(torch.float32)


def counted(blocks: int, fmt: Format, overflow: str, cast: Cast) -> int:
    """Return the number of different results in evenly spaced blocks of 2**24 float32 numbers."""
    wrong = 0
    for block in range(blocks):
        first = (block * 256 // blocks << 24) - (1 << 31)
        for start in range(first, first + (1 << 24), 1 << 20):
            x = torch.arange(start, start + (1 << 20)).to(torch.int32).view(torch.float32)
            wrong += int(differing(x, fmt, overflow, cast)[0].sum())
    return wrong


def differing(x: Tensor, fmt: Format, overflow: str, cast: Cast) -> tuple[Tensor, Tensor, Tensor]:
    """Return a mask of the different results, custom_fp's results, and the other library's. All NaN are equal."""
    ours, theirs = custom_fp.quantize(x, fmt, overflow=overflow), cast(x)
    same = (ours.view(torch.int32) == theirs.view(torch.int32)) | (ours.isnan() & theirs.isnan())
    return ~same, ours, theirs


def where(x: Tensor, wrong: Tensor, ours: Tensor, theirs: Tensor, fmt: Format) -> str:
    """Return a description of the inputs with different results: the number of each kind, and the first input."""
    magnitude, kinds = x.abs(), {}
    kinds["NaN"] = x.isnan()
    kinds["infinity"] = x.isinf()
    kinds["past the largest"] = magnitude > fmt.max
    kinds["zero"] = ours.isnan().logical_not() & (ours == theirs)  # only signs differ
    kinds["below the smallest normal"] = magnitude < (fmt.smallest_normal or math.inf)
    kinds["normal"] = torch.ones_like(wrong)
    descriptions, left = [], wrong.clone()
    for kind, is_it in kinds.items():
        those = left & is_it
        if n := int(those.sum()):
            i = int(those.nonzero()[0])
            descriptions.append(
                f"{n} {kind}: {_number(x[i])} gives {_number(theirs[i])}, here {_number(ours[i])}".replace(
                    "zero:", "only in the sign of zero:"
                )
            )
        left &= ~those
    return "; ".join(descriptions)


def _number(value: Tensor) -> str:
    return f"{value.item():.9g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpd", type=Path, help="a copy of github.com/drcut/CPD")
    parser.add_argument(
        "--blocks",
        type=int,
        default=0,
        choices=range(257),
        metavar="N",
        help="number of blocks of 2**24 float32 numbers to compare (default: 0)",
    )
    parser.add_argument("--output", type=Path, help="write the table to this file as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = list(table(options.cpd, Path(folder), options.blocks))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


def table(cpd: Path | None, folder: Path, blocks: int = 0) -> Iterator[str]:
    head = [
        "# Where other libraries round differently",
        "",
        f"`{COMMAND}{' --cpd CPD' if cpd else ''}{f' --blocks {blocks}' if blocks else ''}`",
        "",
        "Rounding to nearest even: how many results differ (all NaN are equal), and the first of each kind.",
        f"custom_fp's backend: {custom_fp.backend()}. {_versions()}",
        "",
        "| library | its format | here | of 65,536 float16 | of float32 boundaries | where |",
        "| --- | --- | --- | ---: | ---: | --- |",
    ]
    if blocks:
        head[-2] = head[-2].replace("| where", f"| of {blocks << 24:,} float32 | where")
        head[-1] = head[-1].removesuffix("--- |") + "---: | --- |"
    for line in head:
        print(line)
        yield line
    for library, theirs_called, fmt, overflow, cast in compared(cpd, folder):
        halves, edges = float16s(), boundaries(fmt)
        few = int(differing(halves, fmt, overflow, cast)[0].sum())
        wrong, ours, theirs = differing(edges, fmt, overflow, cast)
        ours_called = f"{fmt}{', saturate' if overflow == 'saturate' else ''}"
        counts = f"{few:,} | {int(wrong.sum()):,} of {edges.numel():,}"
        if blocks:
            counts += " | " + ("-" if library == "gfloat" else f"{counted(blocks, fmt, overflow, cast):,}")
        row = f"| {library} | {theirs_called} | {ours_called} | {counts} | "
        row += f"{where(edges, wrong, ours, theirs, fmt) or 'nowhere'} |"
        print(row, flush=True)
        yield row


def _versions() -> str:
    found = []
    for package in ("torch", "ml_dtypes", "gfloat"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found) + "; QPyTorch 0.3.0, CPD at ddd9a67 if they are compared."


if __name__ == "__main__":
    main()
