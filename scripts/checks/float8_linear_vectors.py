"""Write test vectors for the recipes fp8_row and fp8_row_gw_hp, computed by torchao's emulated FP8 layers.

    python scripts/checks/float8_linear_vectors.py kernels/tests/float8_linear_vectors.json

The script runs torchao's Float8Linear with emulate=True on the CPU. It uses no code from custom_fp. The operands are
integers, most of which e4m3fn cannot represent exactly, and their magnitudes differ from row to row. All sums of
products are exact in float32, so the results do not depend on the order of summation. The results are stored as
integers.
"""

import argparse
import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from torchao.float8 import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear

ROWS, INPUTS, OUTPUTS = 12, 16, 10
LARGEST = 100


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(2026)
    shapes = (ROWS, INPUTS), (OUTPUTS, INPUTS), (ROWS, OUTPUTS)
    x, w, dy = (torch.randint(-LARGEST, LARGEST + 1, shape, generator=g).float() for shape in shapes)
    return (
        x * 2.0 ** (torch.arange(ROWS) % 4)[:, None],
        w * 2.0 ** (torch.arange(OUTPUTS) % 3)[:, None],
        dy,
    )


def run(recipe: str) -> dict[str, list[list[int]]]:
    x, w, dy = operands()
    layer = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
    layer.weight.data = w
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    layer = Float8Linear.from_float(layer, config)
    y = layer(x.requires_grad_())
    dx, dw = torch.autograd.grad(y, (x, layer.weight), dy)
    results = {"y": y.detach(), "dx": dx, "dw": dw}
    assert all((r == r.round()).all() and r.abs().max() < 2**24 for r in results.values())
    return {name: r.int().tolist() for name, r in results.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    x, w, dy = operands()
    known = {
        "command": f"python scripts/checks/float8_linear_vectors.py {path}",
        "made_by": ", ".join(f"{package} {version(package)}" for package in ("torch", "torchao")),
        **{name: t.int().tolist() for name, t in (("x", x), ("w", w), ("dy", dy))},
        "recipes": {"fp8_row": run("rowwise"), "fp8_row_gw_hp": run("rowwise_with_gw_hp")},
    }
    path.write_text(json.dumps(known) + "\n")


if __name__ == "__main__":
    main()
