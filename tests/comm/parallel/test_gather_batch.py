"""Data-parallel convolutions before split layers: one worker's network in fp32, and the definition in a format."""

import custom_fp
import pytest
import torch
import torch.nn.functional as F
from bits import same_bits

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
def test_in_fp32_the_network_is_that_of_one_worker(workers, split):
    one, shared = network(1, split=split), network(workers, split=split)
    x, _ = samples()
    torch.testing.assert_close(shared(x), one(x))
    torch.testing.assert_close(shared(x[:1]), one(x[:1]))  # fewer samples than workers
    expected, found = gradients(one), gradients(shared)
    for name in ("0.weight", "0.bias", "3.weight", "3.bias"):
        torch.testing.assert_close(found[f"convolutions.{name}"], expected[f"convolutions.{name}"])


@pytest.mark.parametrize("fmt", ["e4m3", "dynamic_tree", "mxfp4"])
def test_features_and_gradients_follow_the_definition(fmt):
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


def test_dropout_is_active_in_training_only():
    net, (x, _) = network(2, dropout=0.5), samples()
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))
