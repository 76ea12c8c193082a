"""Write the results of torchao and gfloat for some blocks, so that tests can compare formats with scales with them.

    python scripts/checks/scaled_vectors.py kernels/tests/scaled_vectors.json

The script calls torchao's eager code on the CPU and gfloat's block functions, but no code of custom_fp. It takes some
seconds. Blocks are normal values of several magnitudes, midpoints of two elements, zeros, and one block with a single
value. Codes and scales are stored as one hexadecimal string for each format. Values are stored as the bits of float32,
so that nothing is rounded.
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from gfloat import block as blocks
from gfloat import formats
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

ROWS, COLUMNS = 6, 32
MX = {"mxfp4": torch.float4_e2m1fn_x2, "mxfp8_e4m3": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2}
MODES = {"floor": "FLOOR", "ceil": "CEIL", "even": "EVEN", "rceil": "RCEIL"}
GFLOAT = {
    "mxfp6_e3m2": formats.format_info_mxfp6_e3m2,
    "mxfp6_e2m3": formats.format_info_mxfp6_e2m3,
    "mxint8": formats.format_info_mxint8,
}


def values() -> torch.Tensor:
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(2026))
    x *= torch.tensor([1.0, 0.1, 30.0, 1.0, 1.0, 1.0])[:, None]
    x[3] = torch.arange(COLUMNS) / 4.0 - 4.0
    x[4, 1:16], x[5] = 0.0, 0.7
    return x


def split_bytes(packed: torch.Tensor) -> torch.Tensor:
    """Return one code per byte from two 4-bit codes per byte."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def hexadecimal(codes: torch.Tensor) -> str:
    return bytes(codes.contiguous().view(torch.uint8).flatten().tolist()).hex()


def encode_by_torchao(x: torch.Tensor) -> dict[str, dict[str, str]]:
    found = {}
    for name, dtype in MX.items():
        for rule, mode in MODES.items():
            scales, data = to_mx(x, dtype, 32, ScaleCalculationMode[mode])
            codes = split_bytes(data) if name == "mxfp4" else data
            key = name if rule == "floor" else f"{name}_{rule}"
            found[key] = {"codes": hexadecimal(codes), "scales": hexadecimal(scales)}
    t = per_tensor_amax_to_scale(x.abs().max())
    for name, given in (("nvfp4", t), ("nvfp4_1level", None)):
        scales, data = nvfp4_quantize(x, 16, given)
        found[name] = {"codes": hexadecimal(split_bytes(data)), "scales": hexadecimal(scales)}
    found["nvfp4"]["tensor_scale"] = hexadecimal(t.view(1))
    return found


def encode_by_gfloat(x: torch.Tensor) -> dict[str, dict[str, str]]:
    found = {}
    for name, info in GFLOAT.items():
        scales, codes = [], []
        for row in x.double().numpy():
            scale = blocks.compute_scale_amax(info.etype.emax, row)
            first, *rest = blocks.encode_block(info, scale, row / scale)
            scales.append(first)
            codes += rest
        both = [torch.from_numpy(np.array(part, dtype=np.uint8)) for part in (codes, scales)]
        found[name] = {"codes": hexadecimal(both[0]), "scales": hexadecimal(both[1])}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    x = values()
    made_by = ", ".join(f"{package} {version(package)}" for package in ("torch", "torchao", "gfloat"))
    known = {
        "command": f"python scripts/checks/scaled_vectors.py {path}",
        "made_by": made_by,
        "shape": list(x.shape),
        "values": hexadecimal(x),
        "formats": encode_by_torchao(x) | encode_by_gfloat(x),
    }
    path.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
