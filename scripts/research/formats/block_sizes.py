"""Measure how the error of e2m1 with e4m3 scales depends on the block size and on the size of the values.

    python scripts/research/formats/block_sizes.py > results/reference/numerics/block_sizes.csv

The weights of a trained network, all-MiniLM-L6-v2 (scripts/pretrained_models.py makes it), and Gaussian numbers are
rounded to e2m1 in blocks of 8, 16 and 32 values, without a scale for the tensor. A block's scale is rounded to e4m3,
whose values below 2^-6 have fewer significant bits. Therefore, blocks of small values have inaccurate scales. Smaller
blocks have smaller scales, so below some standard deviation their error is larger than that of larger blocks (Fasoli et
al., arXiv 2601.19026). Blocks of 16 values with ue5m3 scales, which have more range, are measured for comparison.

The error is the norm of the rounding errors divided by the norm of the values.
"""

import sys
from collections import defaultdict
from pathlib import Path

import custom_fp
import pandas as pd
import torch
from torch import Tensor

COMMAND = "python scripts/research/formats/block_sizes.py"
FOLDER = Path("~/.cache/cpdrun/models/all-MiniLM-L6-v2").expanduser()
FORMATS = {
    "8": "nvfp4_b8_1level",
    "16": "nvfp4_1level",
    "32": "nvfp4_b32_1level",
    "16, ue5m3": "nvfp4_ue5m3_1level",
}
DEVIATIONS = (0.1, 0.05, 0.03, 0.02, 0.015, 0.01)


def errors_of(tensors: list[Tensor]) -> dict[str, float]:
    """Return the standard deviation of the values of all matrices, and the error of each format.

    Blocks are parts of rows. The keys are the columns of the table.
    """
    values = torch.cat([x.flatten() for x in tensors]).double()
    row = {"standard deviation": values.std().item()}
    for blocks, fmt in FORMATS.items():
        squares = sum(
            (custom_fp.quantize(x, fmt, axis=-1) - x).double().square().sum().item() for x in tensors
        )
        row[f"error of {blocks}"] = (squares / values.square().sum().item()) ** 0.5
    for small, large in (("8", "16"), ("16", "32")):
        row[f"error of {small} / {large}"] = row[f"error of {small}"] / row[f"error of {large}"]
    return row


def gaussian_numbers() -> dict[str, list[Tensor]]:
    """Return a matrix of normally distributed numbers for each standard deviation."""
    standard = torch.randn(384, 1536, generator=torch.Generator().manual_seed(0))
    return {f"deviation {deviation}": [standard * deviation] for deviation in DEVIATIONS}


def trained_weights() -> dict[str, list[Tensor]]:
    """Return the weight matrices of MiniLM: those of the embedding, of each layer, and of the pooler."""
    from transformers import AutoModel

    groups = defaultdict(list)
    for name, weight in AutoModel.from_pretrained(FOLDER).named_parameters():
        if name == "embeddings.word_embeddings.weight":
            groups["embedding"].append(weight.detach())
        elif weight.ndim == 2 and not name.startswith("embeddings"):
            module, _, rest = name.partition(".")
            part = f"layer {rest.split('.')[1]}" if module == "encoder" else module
            groups[part].append(weight.detach())
    return groups


def main() -> None:
    if not FOLDER.is_dir():
        sys.exit(f"error: there is no {FOLDER}. Run python scripts/pretrained_models.py minilm first")
    rows = [
        {"values": values, "part": part, **errors_of(tensors)}
        for values, parts in {"MiniLM": trained_weights(), "Gaussian": gaussian_numbers()}.items()
        for part, tensors in parts.items()
    ]
    print(f"# {COMMAND}")
    print(
        "# the norm of the rounding errors, divided by that of the values, with blocks of 8, 16 and 32 values"
    )
    pd.DataFrame(rows).to_csv(sys.stdout, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
