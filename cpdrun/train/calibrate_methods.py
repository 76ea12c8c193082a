"""Seconds that a worker's processor takes to compress a model's gradients and to decode a message, for the cost model.

    -m cpdrun.train.calibrate_methods METHODS.json OUT.json [--repeats 9]

METHODS.json: by its key (cpdrun.costmodel.compressor_key) the resolved config of a run that exchanges so; all
have one model. OUT.json: by the same key a Codec, averaged over all values of the model, since what a compressor takes
depends on the sizes of layers. One process; gradients are made up, normal with a deviation of 1e-3. What error feedback
adds, two passes over memory, is counted where the sync does it itself (PowerSGD).
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cpdrun.comm.compressors.compression import Message
from cpdrun.optim.groups import trainable
from cpdrun.record import write_json
from cpdrun.train.build import BuildError, build, build_sync
from cpdrun.train.calibrate import alternate
from cpdrun.train.course import Course
from cpdrun.train.instantiate import part
from cpdrun.train.ranks.device import device_of
from cpdrun.train.ranks.torch_settings import configure_torch

COMPRESSOR = "compressor"


def measure(methods: dict[str, dict[str, Any]], repeats: int) -> dict[str, dict[str, float]]:
    """A Codec for each; raises BuildError for what cannot be made."""
    first = next(iter(methods.values()))
    device = device_of(first["device"])
    parts = build(first, device)
    torch.manual_seed(0)
    gradients = [torch.randn_like(parameter) * 1e-3 for parameter in trainable(parts.model).values()]
    found = {}
    for key, config in methods.items():
        if COMPRESSOR in config["sync"]:
            found[key] = _of_messages(config, parts.model, gradients, repeats)
        else:
            found[key] = _of_one_worker(config, parts.model, parts.course, gradients, repeats)
    return found


def _of_messages(
    config: dict[str, Any], model: nn.Module, gradients: list[Tensor], repeats: int
) -> dict[str, float]:
    """One worker's message made, and one decoded and added to the sum, as `compressed_sync.py` does."""
    compressor = part(COMPRESSOR, config["sync"][COMPRESSOR])
    names, numels = tuple(trainable(model)), tuple(g.numel() for g in gradients)
    message = Message(names, numels, (compressor,) * len(names))
    stacks = [g.view(1, -1) for g in gradients]
    sums = [torch.zeros_like(stack_1xn[0]) for stack_1xn in stacks]
    key = (config["seed"], 0)
    data = message.compress(stacks, key, [0])

    def decode() -> None:
        for p, decoded_1xn in message.decompress(data):
            sums[p] += decoded_1xn[0]

    device, values = gradients[0].device, sum(numels)
    pack_s, unpack_s = alternate([lambda: message.compress(stacks, key, [0]), decode], device, repeats)
    return _codec(8 * message.length / values, pack_s / values, unpack_s / values)


def _of_one_worker(
    config: dict[str, Any], model: nn.Module, course: Course, gradients: list[Tensor], repeats: int
) -> dict[str, float]:
    """All that a sync computes in a step of one worker, whose sums cost nothing: of factors, the products and QR."""
    sync = build_sync(config | {"world_size": 1}, model, course)
    stacks = [g.unsqueeze(0) for g in gradients]
    step = partial(sync.reduce_stacked, stacks, step=0, epoch=0)
    (seconds,) = alternate([step], gradients[0].device, repeats)
    return _codec(0.0, seconds / sum(g.numel() for g in gradients), 0.0)


def _codec(bits: float, pack_s: float, unpack_s: float) -> dict[str, float]:
    return {"bits": bits, "pack_s": pack_s, "add_s": 0.0, "sum_s": 0.0, "unpack_s": unpack_s}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cpdrun.train.calibrate_methods", description=__doc__)
    parser.add_argument("methods", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args(argv)
    methods = json.loads(arguments.methods.read_text(encoding="utf-8"))
    configure_torch(next(iter(methods.values())))
    try:
        write_json(arguments.out, measure(methods, arguments.repeats))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
