"""Convolutions by data, split layers behind them: in fp32 the network of one worker, the definition in a format, and
the same bits between ranks as in one process."""

import custom_fp
import pytest
import torch
import torch.nn.functional as F
from bits import same_bits
from ranks import run_ranks

from cpdrun.comm.model_parallel import ModelWorkers
from cpdrun.comm.workers import Workers
from cpdrun.models.parallel.parallel_convnet import ParallelConvNet

B = 10  # not divisible by 4


def network(workers, fmt="fp32", split="alternate", dropout=0.0) -> ParallelConvNet:
    torch.manual_seed(0)
    return ParallelConvNet(1, 5, 3, 12, 2, dropout, workers, split, fmt, fmt, fmt)


def samples(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(B, 1, 12, 12, generator=generator)
    return x, torch.randint(0, 5, (B,), generator=generator)


def gradients(net: ParallelConvNet) -> dict[str, torch.Tensor]:
    x, y = samples()
    F.cross_entropy(net(x), y).backward()
    return {name: p.grad for name, p in net.named_parameters()}


@pytest.mark.parametrize("split", ["columns", "rows", "alternate"])
@pytest.mark.parametrize("workers", [2, 4])
def test_in_fp32_it_is_the_network_of_one_worker(workers, split):
    one, shared = network(1, split=split), network(workers, split=split)
    x, _ = samples()
    torch.testing.assert_close(shared(x), one(x))
    torch.testing.assert_close(shared(x[:1]), one(x[:1]))  # fewer samples than workers
    expected, found = gradients(one), gradients(shared)
    for name in ("0.weight", "0.bias", "3.weight", "3.bias"):
        torch.testing.assert_close(found[f"convolutions.{name}"], expected[f"convolutions.{name}"])


@pytest.mark.parametrize("fmt", ["e4m3", "dynamic_tree", "mxfp4"])
def test_the_seam_and_the_sum_of_gradients_by_hand(fmt):
    def q(t):
        return custom_fp.quantize(t, fmt)

    net, (x, y) = network(2, fmt), samples()
    features = [net.convolutions(x[:5]), net.convolutions(x[5:])]
    seam = torch.cat([q(f) for f in features]).detach().requires_grad_()
    logits = net.classifier(seam)
    assert same_bits(net(x).detach(), logits.detach())
    F.cross_entropy(logits, y).backward()
    of_worker = [
        torch.autograd.grad(f, net.convolutions[3].weight, seam.grad[rows])[0]
        for f, rows in zip(features, (slice(0, 5), slice(5, 10)), strict=True)
    ]
    net.zero_grad()
    assert same_bits(gradients(net)["convolutions.3.weight"], q(0.0 + q(of_worker[0]) + q(of_worker[1])))


def train(workers: ModelWorkers, fmt: str) -> tuple[dict, list, dict]:
    """Three steps of SGD; my workers' parameters, the losses, the bytes."""
    net = network(workers, fmt, dropout=0.3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(3):
        x, y = samples(step)
        torch.manual_seed(step)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    counted = {"sent": workers.sent_bytes, "real": workers.real_worker_bytes}
    return {name: p.detach() for name, p in net.named_parameters()}, losses, counted


def train_between_ranks(formats: list) -> list:
    return [train(ModelWorkers(Workers.of_group(4)), fmt) for fmt in formats]


def test_between_ranks_it_trains_to_the_same_bits():
    formats = ["fp32", "e4m3", "mxfp8_e5m2"]
    everyone = run_ranks(2, train_between_ranks, formats)
    for c, fmt in enumerate(formats):
        expected, losses, here = train(ModelWorkers(Workers(4)), fmt)
        for parameters, of_rank, counted in (results[c] for results in everyone):
            assert all(same_bits(a, b) for a, b in zip(of_rank, losses, strict=True)), fmt
            assert all(same_bits(value, expected[name]) for name, value in parameters.items()), fmt
            assert counted["real"] == here["real"] > 0 == here["sent"]


def test_dropout_drops_in_training_alone():
    net, (x, _) = network(2, dropout=0.5), samples()
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_fewer_bits_are_fewer_bytes():
    real = {name: train(ModelWorkers(Workers(4)), name)[2]["real"] for name in ("fp32", "e4m3")}
    assert real["fp32"] > 3.8 * real["e4m3"] > 0
