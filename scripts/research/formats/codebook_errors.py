"""Compute the rounding errors of formats of at most 8 bits on N(0, 1) and U(0, 1).

    python scripts/research/formats/codebook_errors.py > results/reference/numerics/codebooks.md

The script prints a Markdown table with mean absolute and relative errors, as in table 1 of Dettmers (arXiv:1511.04561).
Relative errors exclude values that are zero. The script takes about five minutes.

Floating-point formats are used in three ways:

- without a scale,
- scaled by a power of two, so that the largest magnitude is near the format's largest value (as with APS),
- scaled by a factor, so that the largest magnitude equals the format's largest value (as with a codebook).
"""

import argparse

import custom_fp
import torch
from torch import Tensor

COMMAND = "python scripts/research/formats/codebook_errors.py"
SAMPLES, TENSORS = 1 << 20, 8
WITH_SCALES = ["dynamic_tree", "linear", "static_tree", "mantissa", "dynamic_tree_b64", "linear_b64"]
MX = ["mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4"]
FLOATS = ["e5m2", "e4m3", "e3m4", "e2m5", "e3m2", "e2m1"]


def without_scale(x: Tensor, name: str) -> Tensor:
    return custom_fp.quantize(x, name)


def with_power_of_two(x: Tensor, name: str) -> Tensor:
    shift = custom_fp.Format.parse(name).emax - custom_fp.max_exponent(x)
    return custom_fp.scale_pow2(custom_fp.quantize(custom_fp.scale_pow2(x, shift), name), -shift)


def with_factor(x: Tensor, name: str) -> Tensor:
    factor = custom_fp.Format.parse(name).max / x.abs().max().double()
    return (custom_fp.quantize(x.double() * factor, name).double() / factor).float()


def errors(x: Tensor, rounded: Tensor) -> tuple[float, float]:
    """Return the mean absolute error and the mean relative error."""
    error = (rounded.double() - x.double()).abs()
    nonzero = x != 0
    return error.mean().item(), (error[nonzero] / x[nonzero].double().abs()).mean().item()


def row(label: str, name: str, scaling: str, quantize) -> str:
    cells = []
    for draw in (torch.randn, torch.rand):
        generator = torch.Generator().manual_seed(0)
        found = []
        for _ in range(TENSORS):
            x = draw(SAMPLES, generator=generator)
            found.append(errors(x, quantize(x, name)))
        absolute, relative = (sum(column) / TENSORS for column in zip(*found, strict=True))
        cells += [
            f"{absolute:.5f}" if absolute < 10 else "overflows",
            f"{100 * relative:.2f}%" if absolute < 10 else "",
        ]
    return f"| {label} | {custom_fp.parse(name).bits:g} | {scaling} | {' | '.join(cells)} |"


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print("# Error of the formats\n")
    print(f"Mean over {TENSORS} tensors of {SAMPLES:,} samples each; `{COMMAND}`.\n")
    print("| format | bits a value | scale | N(0,1) absolute | relative | U(0,1) absolute | relative |")
    print("|---|---|---|---|---|---|---|")
    for name in WITH_SCALES:
        book = custom_fp.parse(name)
        print(row(name, name, f"block of {book.block}" if book.block else "tensor", without_scale))
    for name in MX:
        print(row(name, name, "block of 32, 2^k", without_scale))
    for name in FLOATS:
        for label, quantize in (
            ("none", without_scale),
            ("tensor, 2^k", with_power_of_two),
            ("tensor", with_factor),
        ):
            print(row(name, name, label, quantize))


if __name__ == "__main__":
    main()
