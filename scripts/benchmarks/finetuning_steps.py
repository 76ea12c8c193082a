r"""Measure how much slower a step of fine-tuning a pretrained model is under each recipe than in float32.

    python scripts/benchmarks/finetuning_steps.py ~/.cache/cpdrun/models/all-MiniLM-L6-v2 \
        --output results/reference/minilm_recipes/step_time.md

A step is a forward pass, a backward pass and AdamW, for 16 texts of 32 tokens, as in exp=minilm_recipes. The steps are
interleaved, so that the ratios are comparable. The table contains the smallest processor time of each recipe and the
shares of the multiply-accumulates that the recipe rounds. All weights are in memory several times, once per recipe.
"""

from collections.abc import Callable
from functools import partial

import custom_fp
import torch
import torch.nn.functional as F
from harness import Report, describe_machine, make_parser, make_table, time_processor
from transformers import AutoModelForSequenceClassification

COMMAND = """\
    python scripts/benchmarks/finetuning_steps.py ~/.cache/cpdrun/models/all-MiniLM-L6-v2 \\
        --output results/reference/minilm_recipes/step_time.md"""
BATCH, CONTEXT, CLASSES = 16, 32, 31
RECIPES = [
    "bf16",
    "fp8_tensorwise",
    "fp8_row",
    "mxfp8",
    "int8",
    "nvfp4",
    "nvfp4_4over6",
    "mxfp4_hadamard_sr",
    "ufp4",
]


def train_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(input_ids=x, attention_mask=torch.ones_like(x)).logits, y).backward()
    optimizer.step()


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", help="the folder of a model of transformers")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps: dict[str, Callable[[], object]] = {}
    coverages = {"float32": ""}
    for recipe in (None, *RECIPES):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=CLASSES)
        x, y = torch.randint(1000, 20000, (BATCH, CONTEXT)), torch.randint(CLASSES, (BATCH,))
        if recipe is not None:
            applied = custom_fp.apply_recipe(model, recipe)
            coverages[recipe] = str(applied.coverage(model, x[:1]))
        optimizer = torch.optim.AdamW(model.parameters(), 5e-4, fused=True)
        steps[recipe or "float32"] = partial(train_step, model.train(), optimizer, x, y)
    seconds = time_processor(steps, arguments.repeats)
    rows = [
        (name, f"{s:.2f}", f"{s / seconds['float32']:.2f}", f"{s / seconds['bf16']:.2f}", coverages[name])
        for name, s in seconds.items()
    ]
    with Report(arguments.output) as report:
        report.add("# Time of a fine-tuning step under each recipe")
        report.add(COMMAND)
        report.add(describe_machine(threads=1))
        heads = ("recipe", "s", "/ float32", "/ bf16", "multiply-accumulates")
        report.add(make_table(heads, rows))


if __name__ == "__main__":
    main()
