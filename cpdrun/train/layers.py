"""What layers a run's model has, for `cpdrun search --allocate`: their parameters, and how often they multiply.

    python -m cpdrun.train.layers CONFIG.json OUT.json

OUT holds, in the order of the model's modules, of each module that has trainable parameters of its own:

    name, kind      `blocks.0.qkv`, `Linear`
    parameters      {full name: number of values}
    multiplies      whether a rule for '*' means its products: it is a Linear or Conv layer
    macs            multiplications of its forward product for one sample; 0 where it was not called
    input_gradient  whether its input takes a gradient: the first layer's product for it is never formed
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from custom_fp.recipe.layers import layers_of
from torch import nn

from cpdrun.errors import UserError
from cpdrun.record import write_json
from cpdrun.train.batches import Batches
from cpdrun.train.build import build_data, build_model, build_task


def layers(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Raises BuildError for a model or data that cannot be built."""
    data = build_data(config)
    task, model = build_task(config, data), build_model(config, data)
    batch = Batches(data, config["seed"], torch.device("cpu"), 0, False).fetch(torch.tensor([0]), 0, 0)
    means = {
        layer.module for layer in layers_of(model) if layer.multiplies and not layer.must_be_named
    }  # of these the wildcard speaks
    found: dict[nn.Module, dict[str, Any]] = {}
    for name, module in model.named_modules():
        own = {p: x for p, x in module.named_parameters(recurse=False) if x.requires_grad}
        if own:
            found[module] = {
                "name": name,
                "kind": type(module).__name__,
                "parameters": {f"{name}.{p}".lstrip("."): x.numel() for p, x in own.items()},
                "multiplies": module in means,
                "macs": 0,
                "input_gradient": False,
            }

    def called(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        weight, facts = module.weight, found[module]
        facts["macs"] += weight.numel() * output.numel() // len(weight)  # rows of the output, or its places
        facts["input_gradient"] |= inputs[0].requires_grad

    hooks = [module.register_forward_hook(called) for module in found if module in means]
    model.eval()  # one sample has no variance
    task.outputs(model, batch)
    for hook in hooks:
        hook.remove()
    return list(found.values())


def main() -> None:
    config, out = map(Path, sys.argv[1:])
    try:
        found = layers(json.loads(config.read_text(encoding="utf-8")))
    except UserError as error:
        sys.exit(" ".join(error.lines))
    write_json(out, found)


if __name__ == "__main__":
    main()
