"""List the layers of a run's model, for `cpdrun search --allocate`.

    python -m cpdrun.train.layers CONFIG.json OUT.json

OUT.json contains one object for each module that has trainable parameters itself, in the order of the model's modules:

    name, kind      such as `blocks.0.qkv` and `Linear`
    parameters      {full name: number of values}
    multiplies      whether a rule for '*' applies to its products, i.e. whether it is a Linear or Conv layer
    macs            number of multiply-accumulates of its forward product for one sample, or 0 if it was not called
    input_gradient  whether its input needs a gradient. If not, as in the first layer, one product is not computed.
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
    """Return the layers of a run's model, as the module's docstring describes them.

    Raises:
        BuildError: The model or the data cannot be built.
    """
    data = build_data(config)
    task, model = build_task(config, data), build_model(config, data)
    batch = Batches(data, config["seed"], torch.device("cpu"), 0, False).fetch(torch.tensor([0]), 0, 0)
    matched_by_wildcard = {
        layer.module for layer in layers_of(model) if layer.multiplies and not layer.must_be_named
    }
    found: dict[nn.Module, dict[str, Any]] = {}
    for name, module in model.named_modules():
        own = {p: x for p, x in module.named_parameters(recurse=False) if x.requires_grad}
        if own:
            found[module] = {
                "name": name,
                "kind": type(module).__name__,
                "parameters": {f"{name}.{p}".lstrip("."): x.numel() for p, x in own.items()},
                "multiplies": module in matched_by_wildcard,
                "macs": 0,
                "input_gradient": False,
            }

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        weight: Any = module.weight
        facts = found[module]
        positions = output.numel() // len(weight)  # rows of a Linear layer's output, pixels of a Conv layer's
        facts["macs"] += weight.numel() * positions
        facts["input_gradient"] |= inputs[0].requires_grad

    hooks = [module.register_forward_hook(count) for module in found if module in matched_by_wildcard]
    model.eval()  # BatchNorm cannot normalize a single sample in training mode
    task.outputs(model, batch)
    for hook in hooks:
        hook.remove()
    return list(found.values())


def main() -> None:
    """Read a config and write the layers of its model."""
    config, out = map(Path, sys.argv[1:])
    try:
        found = layers(json.loads(config.read_text(encoding="utf-8")))
    except UserError as error:
        sys.exit(" ".join(error.lines))
    write_json(out, found)


if __name__ == "__main__":
    main()
