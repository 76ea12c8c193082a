"""Models with split layers train to the same bits between ranks as in one process, and fewer bits are fewer bytes."""

from functools import partial

import torch
import torch.nn.functional as F
from bits import same_bits
from ranks import run_ranks
from torch import nn

from cpdrun.comm.model_parallel import ModelWorkers
from cpdrun.comm.workers import Workers
from cpdrun.models.parallel.mlp import ParallelMLP
from cpdrun.models.parallel.parallel_convnet import ParallelConvNet

N, B, CLASSES = 4, 10, 14  # batches and classes are not divisible by 4


def mlp(split: str, activations: str, errors: str, workers: ModelWorkers) -> nn.Module:
    return ParallelMLP(144, CLASSES, 16, 2, workers, split, activations, errors, dropout=0.2)


def convnet(fmt: str, workers: ModelWorkers) -> nn.Module:
    return ParallelConvNet(1, CLASSES, 3, 12, 2, 0.3, workers, "alternate", fmt, fmt, fmt)


MODELS = [
    partial(mlp, "alternate", "fp32", "fp32"),
    partial(mlp, "alternate", "e4m3", "e4m3"),
    partial(mlp, "alternate", "mxfp4", "mxfp4"),
    partial(mlp, "columns", "dynamic_tree", "mxfp8_e5m2"),
    partial(mlp, "rows", "mxfp4", "linear_b64"),
    partial(convnet, "fp32"),
    partial(convnet, "e4m3"),
    partial(convnet, "mxfp8_e5m2"),
]


def train(make: partial, workers: ModelWorkers) -> tuple[dict, list, dict]:
    """Train for three steps of SGD. Return this rank's parameters, the losses and the bytes."""
    torch.manual_seed(3)
    model = make(workers)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(B, 1, 12, 12, generator=generator)
        y = torch.randint(0, CLASSES, (B,), generator=generator)
        torch.manual_seed(step)
        loss = F.cross_entropy(model(x.flatten(1) if make.func is mlp else x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    counted = {"sent": workers.sent_bytes, "real": workers.real_worker_bytes}
    return {name: p.detach() for name, p in model.named_parameters()}, losses, counted


def train_all() -> list[tuple[dict, list, dict]]:
    return [train(make, ModelWorkers(Workers.of_group(N))) for make in MODELS]


def test_ranks_train_to_the_bits_of_one_process():
    everyone, real = run_ranks(2, train_all), []
    for c, (expected, losses, here) in enumerate(train_all()):
        found = {}
        for parameters, of_rank, counted in (results[c] for results in everyone):
            assert all(map(same_bits, of_rank, losses)), MODELS[c]
            for name, value in parameters.items():  # biases of rows are on every rank
                assert same_bits(found.setdefault(name, value), value)
            assert counted["real"] == here["real"] > 0 == here["sent"]
        assert found.keys() == expected.keys()
        assert all(same_bits(found[name], expected[name]) for name in expected), MODELS[c]
        real.append(here["real"])
    fp32, e4m3, mxfp4, *_, convnet_fp32, convnet_e4m3, _ = real
    assert fp32 > 3.9 * e4m3 and e4m3 > 1.7 * mxfp4 and convnet_fp32 > 3.8 * convnet_e4m3
