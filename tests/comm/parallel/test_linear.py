"""Layers split over workers: torch.nn.Linear in fp32, the definition in a format, between ranks as in one process."""

import custom_fp
import pytest
import torch
import torch.nn.functional as F
from bits import same_bits
from ranks import run_ranks
from torch import nn

from cpdrun.comm.model_parallel import ModelWorkers, ParallelLinear
from cpdrun.comm.workers import Workers
from cpdrun.models.parallel.mlp import ParallelMLP

FORMATS = [("fp32", "fp32"), ("e4m3", "e5m2"), ("dynamic_tree", "mxfp8_e5m2"), ("mxfp4", "linear_b64")]
B, INPUTS, OUTPUTS = 12, 20, 14  # the last not divisible by 4


def layer(workers: int, split: str, activations="fp32", errors="fp32") -> ParallelLinear:
    torch.manual_seed(0)
    here = ModelWorkers(Workers(workers))
    return ParallelLinear(INPUTS, OUTPUTS, workers=here, split=split, activations=activations, errors=errors)


def samples(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(B, INPUTS, generator=generator), torch.randint(0, OUTPUTS, (B,), generator=generator)


@pytest.mark.parametrize("split", ["columns", "rows"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_in_fp32_it_is_nn_linear(split, workers):
    torch.manual_seed(0)
    whole = nn.Linear(INPUTS, OUTPUTS)
    split_up = layer(workers, split)
    x = samples()[0].requires_grad_()
    z = x.detach().clone().requires_grad_()
    weight = torch.arange(float(B * OUTPUTS)).view(B, OUTPUTS) / 100
    (whole(x) * weight).sum().backward()
    (split_up(z) * weight).sum().backward()
    torch.testing.assert_close(split_up(z), whole(x))
    torch.testing.assert_close(z.grad, x.grad)
    parts = [getattr(split_up, f"weight_{m}").grad for m in range(workers)]
    torch.testing.assert_close(torch.cat(parts, dim=int(split == "rows")), whole.weight.grad)
    biases = (
        [split_up.bias.grad]
        if split == "rows"
        else [getattr(split_up, f"bias_{m}").grad for m in range(workers)]
    )
    torch.testing.assert_close(torch.cat(biases), whole.bias.grad)
    assert split_up(x.view(3, 4, INPUTS)).shape == (3, 4, OUTPUTS)


@pytest.mark.parametrize(("activations", "errors"), FORMATS)
def test_the_definition_by_hand(activations, errors):
    q_a, q_e = (lambda t, name=name: custom_fp.quantize(t, name) for name in (activations, errors))
    x = samples()[0]
    grad = torch.randn(B, OUTPUTS, generator=torch.Generator().manual_seed(9))
    for split in ("columns", "rows"):
        split_up = layer(2, split, activations, errors)
        w = [split_up.weight_0.detach(), split_up.weight_1.detach()]
        z = x.clone().requires_grad_()
        y = split_up(z)
        y.backward(grad)
        if split == "columns":
            b = [split_up.bias_0.detach(), split_up.bias_1.detach()]
            expected_y = torch.cat([q_a(F.linear(x, w[m], b[m])) for m in range(2)], 1)
            halves = [grad[:, :7], grad[:, 7:]]
            expected_dx = q_e(q_e(halves[0] @ w[0]) + q_e(halves[1] @ w[1]))
            expected_dw = halves[1].t() @ x
        else:
            expected_y = (
                q_a(q_a(F.linear(x[:, :10], w[0])) + q_a(F.linear(x[:, 10:], w[1]))) + split_up.bias.detach()
            )
            expected_dx = torch.cat([q_e(grad @ w[0]), q_e(grad @ w[1])], 1)
            expected_dw = grad.t() @ x[:, 10:]
        assert same_bits(y.detach(), expected_y)
        assert same_bits(z.grad, expected_dx)
        assert same_bits(split_up.weight_1.grad, expected_dw)


def train(workers: ModelWorkers, split: str, activations: str, errors: str) -> tuple[dict, list, dict]:
    """Three steps of SGD; my workers' parameters, the losses, the bytes."""
    torch.manual_seed(3)
    model = ParallelMLP(INPUTS, OUTPUTS, 16, 2, workers, split, activations, errors, dropout=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(3):
        x, y = samples(step)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    counted = {"sent": workers.sent_bytes, "real": workers.real_worker_bytes}
    return {name: p.detach() for name, p in model.named_parameters()}, losses, counted


def train_between_ranks(cases: list, workers: int) -> list:
    return [train(ModelWorkers(Workers.of_group(workers)), *case) for case in cases]


CASES = [(split, *formats) for split in ("columns", "rows", "alternate") for formats in FORMATS]


@pytest.mark.parametrize("ranks", [2, 4])
def test_between_ranks_it_trains_to_the_same_bits(ranks):
    everyone = run_ranks(ranks, train_between_ranks, CASES, 4)
    for c, case in enumerate(CASES):
        expected, losses, here = train(ModelWorkers(Workers(4)), *case)
        found = {}
        for parameters, of_rank, counted in (results[c] for results in everyone):
            assert all(same_bits(a, b) for a, b in zip(of_rank, losses, strict=True)), case
            for name, value in parameters.items():  # biases of rows are on every rank
                assert name not in found or same_bits(found[name], value)
                found[name] = value
            assert counted["real"] == here["real"] > 0 == here["sent"]
        assert found.keys() == expected.keys()
        assert all(same_bits(found[name], expected[name]) for name in expected), case


def test_fewer_bits_are_fewer_bytes():
    real = {
        name: train(ModelWorkers(Workers(4)), "alternate", name, name)[2]["real"]
        for name in ("fp32", "e4m3", "mxfp4")
    }
    assert real["fp32"] > 3.9 * real["e4m3"] > 0 and real["e4m3"] > 1.7 * real["mxfp4"]


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="split='diagonal': choose one of columns, rows"):
        layer(2, "diagonal")
    with pytest.raises(ValueError, match=r"model\.split=diagonal: choose one of columns, rows, alternate"):
        ParallelMLP(4, 2, 4, 1, 2, "diagonal", "fp32", "fp32", 0.0)
    with pytest.raises(ValueError, match="unknown format 'e4m33m'"):
        layer(2, "rows", "e4m33m")
    with pytest.raises(ValueError, match="at least 1 worker, not 0"):
        ModelWorkers(Workers(0))
