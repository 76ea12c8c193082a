"""Linear layers split over workers: torch.nn.Linear in fp32, and the definition in a format."""

import custom_fp
import pytest
import torch
import torch.nn.functional as F
from bits import same_bits
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


def samples() -> torch.Tensor:
    return torch.randn(B, INPUTS, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("split", ["columns", "rows"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_in_fp32_a_split_layer_is_nn_linear(split, workers):
    torch.manual_seed(0)
    whole = nn.Linear(INPUTS, OUTPUTS)
    split_up = layer(workers, split)
    x = samples().requires_grad_()
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
def test_a_split_layer_follows_the_definition(activations, errors):
    q_a, q_e = (lambda t, name=name: custom_fp.quantize(t, name) for name in (activations, errors))
    x = samples()
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


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="split='diagonal': choose one of columns, rows"):
        layer(2, "diagonal")
    with pytest.raises(ValueError, match=r"model\.split=diagonal: choose one of columns, rows, alternate"):
        ParallelMLP(4, 2, 4, 1, 2, "diagonal", "fp32", "fp32", 0.0)
    with pytest.raises(ValueError, match="unknown format 'e4m33m'"):
        layer(2, "rows", "e4m33m")
    with pytest.raises(ValueError, match="at least 1 worker, not 0"):
        ModelWorkers(Workers(0))
