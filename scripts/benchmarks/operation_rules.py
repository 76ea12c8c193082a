"""Measure the overhead of rules for operations, and of counting multiply-accumulates in the first step.

    python scripts/benchmarks/operation_rules.py --output results/reference/numerics/operation_rules.md

Each row is a training step of the same small GPT under different rules. The steps are interleaved, so that the ratios
are comparable. The row with `modes` has rules for operations that the model never calls, so it shows the overhead of
watching all calls. The last row is not a training step: it counts the products of a forward and a backward pass with
rules for all operations, as the first step of a run does. The table contains the smallest processor time of each row.
Processor time excludes the time of other programs on the machine. The script takes about a minute.
"""

from collections.abc import Callable
from functools import partial

import custom_fp
import torch
import torch.nn.functional as F
from harness import Report, describe_machine, make_parser, ratio_table, time_processor

from cpdrun.models.gpt import GPT

BATCH, CONTEXT, SYMBOLS = 8, 64, 256
SIZE = {"layers": 4, "heads": 4, "width": 192}


def make_steps(recipe: str) -> dict[str, Callable[[], object]]:
    """Return the training step of each row, keyed by the row's name.

    The models are equal, but their rules differ: they select nothing, layers, or layers and operations. The last entry
    does not train. It counts the products of a forward and a backward pass.
    """
    kinds = {
        "float32": None,
        f"{recipe}, layers": [],
        f"{recipe}, layers; modes": ["conv()", "einsum()"],
        f"{recipe}, layers and all operations": True,
    }
    steps: dict[str, Callable[[], object]] = {}
    for name, operations in kinds.items():
        torch.manual_seed(0)
        model = GPT(SYMBOLS, CONTEXT, dropout=0.0, **SIZE)
        x, y = torch.randint(SYMBOLS, (2, BATCH, CONTEXT))
        if operations is not None:
            applied = custom_fp.apply_recipe(model, recipe, operations=operations)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        steps[name] = partial(train_step, model, optimizer, x, y)
    steps["the same, counted"] = lambda: applied.coverage(model, x)
    return steps


def train_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> None:
    """Take one training step."""
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--recipe", default="mxfp8")
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with Report(arguments.output) as report:
        report.add("# The cost of rules for operations")
        report.add(
            "    python scripts/benchmarks/operation_rules.py --output results/reference/numerics/operation_rules.md"
        )
        report.add(describe_machine(threads=1))
        seconds = time_processor(make_steps(arguments.recipe), arguments.repeats)
        report.add(ratio_table("a training step", seconds))


if __name__ == "__main__":
    main()
