"""Measure the parameters of the cost model.

    [torchrun ...] -m cpdrun.costmodel.measure CONFIG.json OUT.json [--formats fp32,bf16,e4m3] [--repeats 9]
    -m cpdrun.costmodel.measure --compressors CONFIGS.json OUT.json [--repeats 9]

The first command measures everything but compressors. CONFIG.json is the resolved config of a run, and each rank
emulates one worker. If torchrun starts ranks on several machines, the network between them is measured. Each rank takes
the median over its repetitions, and the maximum over ranks is reported, because a step waits for the slowest rank. The
exchange whose time the model predicts is never run.

The second command measures compressors in one process. CONFIGS.json contains {compressor_key: resolved config}, all
with the same model. OUT.json gets the fields of a `Codec` for each config. They are averages over the model's values,
because a compressor's time depends on the layer sizes. Gradients are normal with a standard deviation of 1e-3. The time
of error feedback, two passes over memory, is included only if the sync itself applies it, as PowerSGD does.

`cpdrun.launch.machine.calibration` runs this module in a separate process.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import custom_fp
import torch
import torch.distributed as dist
from custom_fp import Format
from custom_fp.formats.names import parse
from torch import Tensor, nn

from cpdrun.comm import RankLost
from cpdrun.comm.compressors.message import Message
from cpdrun.comm.sums import codec
from cpdrun.comm.sums.exchange import SEGMENT_VALUES
from cpdrun.comm.sums.magnitudes import largest_magnitude
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sync.base import GradientSync
from cpdrun.comm.sync.statistics import count_nonfinite
from cpdrun.comm.wire import Tag
from cpdrun.comm.wire.communicator import Communicator
from cpdrun.comm.wire.lost_ranks import naming_lost_ranks
from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable
from cpdrun.record import write_json
from cpdrun.train.build import BuildError, Parts, build, build_sync
from cpdrun.train.duration import Duration
from cpdrun.train.instantiate import part
from cpdrun.train.learners.emulated_workers import SharedModel
from cpdrun.train.learners.gradients import ExactGradients, Objective
from cpdrun.train.ranks.rendezvous import meet
from cpdrun.train.ranks.torch_settings import backend_for, configure_torch, select_device

FORMATS = ("fp32", "bf16", "e4m3", "e3m2", "e2m1")
WARM_UPS = 2
# The segments take 32 MiB in float32. Like most gradients, they do not fit into a core's private cache.
ROTATED_SEGMENTS = 16
SUMMANDS = (2, 8)  # the points of the line: time of a sum = sum_s + summands * add_s
CHUNK = 1 << 20  # bytes per message in the bandwidth measurement
STREAM_S = 0.4  # the duration of the longer bandwidth measurement
REFILL_S = 0.06  # an idle token bucket is full again after this pause


def measure(config: dict[str, Any], formats: Sequence[str], repeats: int) -> dict[str, Any]:
    """Measure everything but compressors, in the form that `Calibration.from_json` reads.

    All ranks must call this together.
    """
    workers = Workers.of_group(dist.get_world_size() if dist.is_initialized() else 1)
    ranks = workers.ranks
    device = select_device(config["device"])
    config = config | {"world_size": ranks}
    parts = build(config, device)
    return {
        "about": {
            "model": config["model"],
            "batch_size": config["batch_size"],
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "ranks": ranks,
            "torch": torch.__version__,
        },
        "workload": measure_workload(config, parts, workers, device, repeats),
        "codecs": {name: measure_codec(name, device, repeats) for name in formats},
        "network": measure_network(device, repeats) if ranks > 1 else None,
    }


# ---- compute


def measure_workload(
    config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device, repeats: int
) -> dict[str, Any]:
    """Measure one worker's training step without the exchange (`Workload`).

    This trains `parts.model` for a few steps.
    """
    parameters = list(trainable(parts.model).values())
    shared = SharedModel(parts.model, workers)
    objective = Objective(shared, parts.batches, parts.task, lambda _w: parts.precision.loss_scale.value)
    gradients_of = ExactGradients(objective)
    index_NxB = torch.arange(workers.world_size * config["batch_size"]).view(workers.world_size, -1)
    batch = parts.batches.fetch(index_NxB[workers.local.start], 0, workers.local.start)
    parts.model.train()
    _, gradients_WxP = gradients_of(index_NxB, 0)

    def forward() -> None:
        parts.task.loss_of(parts.model, batch)

    def check() -> None:
        """Do what AllReduceSync.reduce_stacked does besides the exchange."""
        fresh = [torch.empty_like(stack[0]).copy_(stack[0]) for stack in gradients_WxP]
        count_nonfinite(fresh)
        for parameter, gradient in zip(parameters, fresh, strict=True):
            parameter.grad = gradient

    def update() -> None:
        parts.precision.step(parts.optimizer, parameters)

    # The actions take turns, so that each one finds the caches as in a step.
    gradients_s, check_s, update_s = alternate(
        [lambda: gradients_of(index_NxB, 0), check, update], device, repeats
    )
    (forward_s,) = alternate([forward], device, repeats)
    return {
        "numels": [parameter.numel() for parameter in parameters],
        "forward_s": min(forward_s, gradients_s),
        "backward_s": max(0.0, gradients_s - forward_s),
        "update_s": update_s,
        "check_s": check_s,
    }


# ---- codec


def measure_codec(name: str, device: torch.device, repeats: int) -> dict[str, float]:
    """Measure a format's codec (`Codec`) on segments of the usual size."""
    if parse(name).has_scales:
        return _measure_scaled(name, device, repeats)
    how, n = Sum(Format.parse(name)), SEGMENT_VALUES
    x_SxV = torch.randn(ROTATED_SEGMENTS, n, device=device) * 1e-3
    packed_SxB = torch.zeros(ROTATED_SEGMENTS, n // 8 * int(how.fmt.bits), dtype=torch.uint8, device=device)
    out_V, out_B = torch.empty_like(x_SxV), torch.empty_like(packed_SxB)
    shift = 0 if how.fmt.bits == 32 else 5  # APS scales all formats except fp32

    def add(summands: int, s: int) -> None:
        payloads = [packed_SxB[(s + i) % ROTATED_SEGMENTS] for i in range(summands)]
        codec.add_packed(payloads, n, how, None, out=out_B[s])

    each: list[Callable[[int], object]] = [
        lambda s: codec.round_and_pack(x_SxV[s], shift, how, None, out=packed_SxB[s]),
        lambda s: custom_fp.unpack(packed_SxB[s], how.fmt, n, shift=-shift, out=out_V[s]),
        lambda s: largest_magnitude(x_SxV[s]),
        *(partial(add, summands) for summands in SUMMANDS),
    ]

    def over_segments(one: Callable[[int], object]) -> None:
        for s in range(ROTATED_SEGMENTS):
            one(s)

    seconds = alternate([partial(over_segments, one) for one in each], device, repeats)
    pack_s, unpack_s, largest_s, few_s, many_s = (s / (ROTATED_SEGMENTS * n) for s in seconds)
    few, many = SUMMANDS
    add_s = max(0.0, (many_s - few_s) / (many - few))
    return {
        "bits": how.fmt.bits,
        "pack_s": pack_s,
        "add_s": add_s,
        "sum_s": max(0.0, few_s - few * add_s),
        "unpack_s": unpack_s,
        "largest_s": largest_s,
    }


def _measure_scaled(name: str, device: torch.device, repeats: int) -> dict[str, float]:
    """Measure the codec of a format with scales.

    As in the sync `Decoded`, summands are decoded and then added in float32.
    """
    fmt, n = parse(name), SEGMENT_VALUES
    x_V, sum_V = torch.randn(n, device=device) * 1e-3, torch.zeros(n, device=device)
    packed_B = custom_fp.pack(x_V, fmt)
    each = [
        lambda: custom_fp.pack(x_V, fmt),
        lambda: custom_fp.unpack(packed_B, fmt, n),
        lambda: sum_V.add_(custom_fp.unpack(packed_B, fmt, n)),
    ]
    pack_s, unpack_s, add_s = (seconds / n for seconds in alternate(each, device, repeats))
    bits = 8 * packed_B.numel() / n
    return {"bits": bits, "pack_s": pack_s, "add_s": add_s, "sum_s": pack_s, "unpack_s": unpack_s}


# ---- network


def measure_network(device: torch.device, repeats: int) -> dict[str, float]:
    """Measure the network between the ranks (`Network`). All ranks must call this together.

    Every rank sends to the next rank while it receives from the previous one. The bandwidth is the slope of the line
    through the times of two volumes. If the line's intercept is below the latency, the link let a burst through at full
    speed.
    """
    small, large = (torch.zeros(2, 16, size, dtype=torch.uint8, device=device) for size in (8, CHUNK))

    def shift_s(buffer: Tensor, messages: int, repeats: int, pause_s: float = 0.0) -> float:
        return _together_s(lambda: _shift(buffer, messages), device, repeats, pause_s)

    one_s, many_s = shift_s(small, 1, 20 * repeats), shift_s(small, 64, repeats)
    message_s = min(many_s / 64, one_s)
    latency_s = one_s - message_s
    many = max(4, min(256, round(STREAM_S / shift_s(large, 1, 3))))
    few = many // 4
    few_s, many_s = shift_s(large, few, repeats, REFILL_S), shift_s(large, many, repeats, REFILL_S)
    rate = (many - few) * CHUNK / max(many_s - few_s, 1e-9)
    return {
        "latency_s": latency_s,
        "bandwidth_bytes_per_s": rate,
        "message_s": message_s,
        "burst_bytes": max(0.0, few * CHUNK - (few_s - latency_s) * rate),
    }


def _shift(buffer_2xRxB: Tensor, messages: int) -> None:
    """Send messages to the next rank while receiving from the previous one. All are in flight at once."""
    communicator, rows = Communicator(None), buffer_2xRxB.shape[1]
    into, source = buffer_2xRxB
    before, after = (communicator.rank - 1) % communicator.ranks, (communicator.rank + 1) % communicator.ranks
    receives = [(before, into[m % rows]) for m in range(messages)]
    communicator.exchange(receives, [(after, source[m % rows]) for m in range(messages)], Tag.MEASURED)


# ---- time


def alternate(actions: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> list[float]:
    """Return the seconds of each action, agreed by all ranks.

    This is the median over repetitions, then the maximum over ranks. The actions take turns in each repetition.
    """
    seconds: list[list[float]] = [[] for _ in actions]
    for repeat in range(WARM_UPS + repeats):
        for of_action, action in zip(seconds, actions, strict=True):
            spent = _seconds(action, device)
            if repeat >= WARM_UPS:
                of_action.append(spent)
    return [_agreed(statistics.median(of_action)) for of_action in seconds]


def _together_s(
    action: Callable[[], object], device: torch.device, repeats: int, pause_s: float = 0.0
) -> float:
    """Return the seconds of an action that all ranks start together.

    This is the median over repetitions, then the maximum over ranks. All ranks must call this together.
    """
    seconds = []
    for _ in range(WARM_UPS + repeats):
        dist.barrier()
        time.sleep(pause_s)
        seconds.append(_seconds(action, device))
    return _agreed(statistics.median(seconds[WARM_UPS:]))


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    action()
    wait()
    return time.perf_counter() - started


def _agreed(value: float) -> float:
    """Return the maximum of a value over all ranks."""
    if not dist.is_initialized():
        return value
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return float(tensor)


# ---- compressors


def measure_compressors(methods: dict[str, dict[str, Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Measure the compressor of each config (`Codec`), keyed as `methods`.

    Raises:
        BuildError: A part of a config cannot be built.
    """
    first = next(iter(methods.values()))
    device = select_device(first["device"])
    parts = build(first, device)
    torch.manual_seed(0)
    gradients = [torch.randn_like(parameter) * 1e-3 for parameter in trainable(parts.model).values()]
    found = {}
    for key, config in methods.items():
        if "compressor" in config["sync"]:
            found[key] = _measure_messages(config, parts.model, gradients, repeats)
        else:
            found[key] = _measure_one_worker(config, parts.model, parts.duration, gradients, repeats)
    return found


def _measure_messages(
    config: dict[str, Any], model: nn.Module, gradients: list[Tensor], repeats: int
) -> dict[str, float]:
    """Measure a method that sends compressed messages.

    `pack_s` is the time to compress a worker's message, and `unpack_s` the time to decode and add one.
    """
    compressor = part("compressor", config["sync"]["compressor"])
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


def _measure_one_worker(
    config: dict[str, Any], model: nn.Module, duration: Duration, gradients: list[Tensor], repeats: int
) -> dict[str, float]:
    """Measure a method that does not send compressed messages.

    `pack_s` is everything that the sync computes in a step with one worker, such as PowerSGD's matrix products and QR
    decompositions.
    """
    sync = build_sync(config | {"world_size": 1}, model, duration)
    assert isinstance(sync, GradientSync)
    stacks = [g.unsqueeze(0) for g in gradients]
    step = partial(sync.reduce_stacked, stacks, step=0, epoch=0)
    (seconds,) = alternate([step], gradients[0].device, repeats)
    return _codec(0.0, seconds / sum(g.numel() for g in gradients), 0.0)


def _codec(bits: float, pack_s: float, unpack_s: float) -> dict[str, float]:
    return {"bits": bits, "pack_s": pack_s, "add_s": 0.0, "sum_s": 0.0, "unpack_s": unpack_s}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cpdrun.costmodel.measure", description=__doc__.splitlines()[0]
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--compressors", action="store_true")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args(argv)
    given = json.loads(arguments.config.read_text(encoding="utf-8"))
    config = next(iter(given.values())) if arguments.compressors else given
    configure_torch(config)
    has_peers = int(os.environ.get("WORLD_SIZE", "1")) > 1
    try:
        if has_peers:
            meet(backend_for(select_device(config["device"])), config["patience_s"])
        with naming_lost_ranks() if has_peers else nullcontext():
            if arguments.compressors:
                found = measure_compressors(given, arguments.repeats)
            else:
                found = measure(config, arguments.formats.split(","), arguments.repeats)
    except (BuildError, RankLost) as error:
        print(error, file=sys.stderr, flush=True)
        if dist.is_initialized():
            os._exit(2)  # gloo's destructor would wait for a rank that hangs
        return 2
    if int(os.environ.get("RANK", "0")) == 0:
        write_json(arguments.out, found)
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
