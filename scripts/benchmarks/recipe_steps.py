r"""Measure how much slower a training step is under each recipe than in float32.

    python scripts/benchmarks/recipe_steps.py gpt        # 10.7 million weights, 1,024 bytes of text
    python scripts/benchmarks/recipe_steps.py convnet    # 1.2 million weights, 32 images of 32x32
    python scripts/benchmarks/recipe_steps.py ~/.cache/cpdrun/models/all-MiniLM-L6-v2 \
        --output results/reference/minilm_recipes/step_time.md

A step is a forward pass, a backward pass and AdamW. A folder names a model of transformers, which is fine-tuned on 16
texts of 32 tokens, as in exp=minilm_recipes. As in the runs of cpdrun, the process keeps freed memory. The
steps are interleaved on one thread, so that the ratios are comparable. The table contains the smallest
processor time of each recipe and the shares of the multiply-accumulates that the recipe rounds. All weights
are in memory several times, once per recipe.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import custom_fp
import torch
import torch.nn.functional as F
from harness import Report, describe_machine, make_parser, make_table, time_processor
from torch import Tensor, nn

from cpdrun.models.convnet import ConvNet
from cpdrun.models.gpt import GPT
from cpdrun.train.ranks.torch_settings import keep_freed_memory

RECIPES = [
    "bf16",
    "fp8_tensorwise",
    "fp8_row",
    "fp8_delayed",
    "mxfp8",
    "int8",
    "nvfp4",
    "nvfp4_4over6",
    "mxfp4_hadamard_sr",
    "ufp4",
]


class Logits(nn.Module):
    """A classifier from the transformers library with 31 classes. Its only input is a batch of token ids."""

    def __init__(self, folder: str):
        from transformers import AutoModelForSequenceClassification

        super().__init__()
        self.model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=31)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(input_ids=x, attention_mask=torch.ones_like(x)).logits


def make_workload(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a model, a batch of inputs, and the correct classes."""
    torch.manual_seed(0)
    if name == "gpt":
        model = GPT(256, context=256, layers=6, heads=6, width=384, dropout=0.0)
        return model, torch.randint(256, (4, 256)), torch.randint(256, (4, 256))
    if name == "convnet":
        return ConvNet(3, 10, width=112, dropout=0.0), torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    return Logits(name), torch.randint(1000, 20000, (16, 32)), torch.randint(31, (16,))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", help="gpt, convnet, or the folder of a model of transformers")
    parser.add_argument("--recipes", default=",".join(RECIPES), metavar="NAME,...")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    steps: dict[str, Callable[[], object]] = {}
    coverages = {"float32": ""}
    for recipe in (None, *arguments.recipes.split(",")):
        model, x, y = make_workload(arguments.model)
        if recipe is not None:
            applied = custom_fp.apply_recipe(model, recipe)
            coverages[recipe] = str(applied.coverage(model, x[:1]))
        optimizer = torch.optim.AdamW(model.parameters(), 5e-4, fused=True)
        steps[recipe or "float32"] = partial(train_step, model.train(), optimizer, x, y)
    seconds = time_processor(steps, arguments.repeats)
    rows = [
        (name, f"{1e3 * s:.0f}", f"{s / seconds['float32']:.2f}", coverages[name])
        for name, s in seconds.items()
    ]
    with Report(arguments.output) as report:
        report.add(f"# Time of a training step under each recipe: {Path(arguments.model).name}")
        shown = arguments.model.replace(str(Path.home()), "~")
        report.add(f"    python scripts/benchmarks/recipe_steps.py {shown}")
        report.add(describe_machine(threads=1))
        report.add(make_table(("recipe", "ms", "/ float32", "multiply-accumulates"), rows))


if __name__ == "__main__":
    main()
