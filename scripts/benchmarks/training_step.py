"""Measure how much slower a step of cpdrun's training loop is than a step of a plain PyTorch script.

    python scripts/benchmarks/training_step.py [--device cuda] [--steps 200] [--threads 1]

    plain      a script like a user's: order, batch, forward, backward, optimizer
    loop       cpdrun's training loop, all formats fp32, world_size 1
    emulated   the loop with e4m3 and APS at world_size 8, with the same samples in a step

After every step of the loop, the plain script performs one step, so that a slow moment affects both. On the CPU, small
networks on small images are timed, because the overhead matters most there. On cuda, resnet18 on images of CIFAR's
shape is timed, too. The table contains medians, the ratio of medians, and the ratio of means, which includes the
gradient statistics of every 20th step. The script takes about two minutes.
"""

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import Report, describe_machine, make_parser
from torch import Tensor

from cpdrun.comm.workers import Workers
from cpdrun.record import RunDir
from cpdrun.sweep import plan
from cpdrun.train.build import build
from cpdrun.train.loop import train
from cpdrun.train.state.journal import Journal

WARM_UPS = 20
NOISE = ("data=custom", "data._target_=training_step.Noise")
WORKLOADS = {  # the overrides of each workload, and the number of samples per step
    "convnet, digits": (("model=convnet", "data=digits"), 64),
    "resnet8, 3x32x32": (("model=resnet_cifar", "model.depth=8", *NOISE, "+data.samples=6400"), 64),
    "resnet18, 3x32x32": (("model=resnet18_cifar", *NOISE, "+data.samples=16384"), 512),
}


class Noise:
    """Random images in the shape of CIFAR-10, stored on the GPU. The cost of a step does not depend on them."""

    num_classes, in_channels = 10, 3

    def __init__(self, samples: int):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        x = torch.randn(samples, 3, 32, 32, device=device)
        self.train = self.test = InMemory(x, torch.randint(10, (samples,), device=device))

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x


class InMemory(torch.utils.data.TensorDataset):
    def fetch_batch(self, index_B: Tensor) -> tuple[Tensor, Tensor]:
        index_B = index_B.to(self.tensors[0].device)
        return self.tensors[0][index_B], self.tensors[1][index_B]


class AllStepsTakenError(Exception):
    """Raised after the last step, to end the training loop."""


class AlternatingJournal(Journal):
    """A journal that runs a step of the plain script after each step of the loop, and times both."""

    def __init__(self, folder: Path, plain: Iterator[None], steps: int, device: torch.device):
        super().__init__(RunDir(folder), 0)
        self.plain, self.left, self.device = plain, steps + WARM_UPS, device
        self.loop_s: list[float] = []
        self.plain_s: list[float] = []
        self._started: float | None = None

    def step_done(self, step: int) -> None:
        ended = self._now()
        next(self.plain)
        now = self._now()
        if self._started is not None:
            self.loop_s.append(ended - self._started)
            self.plain_s.append(now - ended)
            self.left -= 1
        if not self.left:
            raise AllStepsTakenError
        self._started = now

    def epoch_done(self, *_: Any) -> None:
        """Exclude the evaluation and the checkpoint from the timed steps."""
        if not self.loop_s:
            raise RuntimeError("an epoch has ended, but the training loop has not called step_done")
        self._started = None

    def drop_rows_after(self, epoch: int) -> None:
        """Do nothing, because nothing is stored."""

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def plain_script(config: dict[str, Any], device: torch.device) -> Iterator[None]:
    """Run the plain script and yield after each step."""
    parts = build(config, device)
    data, model, optimizer, B = parts.data, parts.model, parts.optimizer, config["batch_size"]
    base_lr, S = optimizer.param_groups[0]["lr"], len(data.train) // B
    for epoch in range(config["epochs"]):
        order = torch.randperm(len(data.train))
        for s in range(S):
            optimizer.param_groups[0]["lr"] = base_lr * parts.schedule(epoch + s / S, config["epochs"])
            x, y = data.train.fetch_batch(order[B * s : B * (s + 1)])
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            yield


def measure(overrides: tuple[str, ...], samples: int, world_size: int, device: torch.device, steps: int):
    """Return the seconds of each step of the loop and of the plain script."""
    fixed = (*overrides, "name=bench", "epochs=100000", f"device={device.type}")
    batch = (f"world_size={world_size}", f"batch_size={samples // world_size}")
    (run,) = plan([*fixed, *batch, *(() if world_size == 1 else ("format=e4m3", "aps=true"))]).runs
    (plain,) = plan([*fixed, "world_size=1", f"batch_size={samples}"]).runs
    with tempfile.TemporaryDirectory() as folder:
        journal = AlternatingJournal(Path(folder), plain_script(plain.config, device), steps, device)
        with contextlib.suppress(AllStepsTakenError):
            train(run.config, build(run.config, device), Workers(world_size), device, journal)
    return journal.loop_s[WARM_UPS:], journal.plain_s[WARM_UPS:]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--steps",
        type=int,
        default=200,
        help="number of timed steps of the training loop, and as many of the plain script (default: 200)",
    )
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True  # as in cpdrun's runs

    def measure_rows() -> Iterator[tuple[object, ...]]:
        for name, (overrides, samples) in WORKLOADS.items():
            if device.type == "cpu" and name.startswith("resnet18"):
                continue
            for world_size, side in ((1, "loop"), (8, "emulated, 8 workers")):
                loop_s, plain_s = measure(overrides, samples, world_size, device, options.steps)
                ours, plain = statistics.median(loop_s), statistics.median(plain_s)
                means = statistics.mean(loop_s) / statistics.mean(plain_s)
                if world_size == 1:
                    yield name, "plain", f"{1e3 * plain:.3f}", 1, 1
                yield name, side, f"{1e3 * ours:.3f}", f"{ours / plain:.3f}", f"{means:.3f}"

    with Report(options.output) as report:
        report.add(describe_machine(device.type, options.threads))
        heads = ("workload", "side", "ms a step", "x plain (medians)", "x plain (means)")
        report.add_table(heads, measure_rows(), text_columns=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
