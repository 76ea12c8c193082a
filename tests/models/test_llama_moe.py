"""Compare LlamaMoE with a plain loop over tokens and experts, and test the rounding of exchanged tokens."""

import pytest
import torch
import torch.nn.functional as F

from cpdrun.models.llama_moe import LlamaMoE, MixtureOfExperts

SIZES = {"num_classes": 11, "context": 12, "layers": 2, "heads": 2, "width": 16, "hidden": 8, "tied": True}


def llama_moe(**changed):
    torch.manual_seed(0)
    given = SIZES | {"theta": 1e4, "norm_eps": 1e-5, "experts": 4, "experts_per_token": 2}
    return LlamaMoE(**given | {"dispatch": "fp32", "combine": "fp32"} | changed)


def mixture(experts=5, experts_per_token=2, dispatch="fp32", combine="fp32"):
    torch.manual_seed(1)
    chosen = {"experts": experts, "experts_per_token": experts_per_token}
    layer = MixtureOfExperts(16, 8, **chosen, dispatch=dispatch, combine=combine)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer


def by_token(layer, x):
    rows = []
    for token in x.flatten(0, 1):
        p = layer.router(token).softmax(-1)
        weights, experts = p.topk(layer.experts_per_token)
        total = 0
        for weight, e in zip(weights / weights.sum(), experts.tolist(), strict=True):
            gate, up = (token @ layer.experts.gate_and_up[e]).chunk(2)
            total = total + weight * (F.silu(gate) * up @ layer.experts.down[e])
        rows.append(total)
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("experts_per_token", [1, 2, 5])
def test_the_mixture_equals_a_loop_over_tokens(experts_per_token):
    layer, x = mixture(experts_per_token=experts_per_token), torch.randn(2, 7, 16)
    found = []
    for compute in (layer, lambda x: by_token(layer, x)):
        given = x.clone().requires_grad_()
        result = compute(given)
        gradients = torch.autograd.grad(result.square().sum(), (given, *layer.parameters()))
        found.append([result, *gradients])
    # The order of additions depends on the processor. A sum has an error of about 2^-24 times the norm of its terms,
    # and about ten sums depend on each other, which gives 10 x 2^-24 < 1e-6. With one expert per token, the exact
    # gradient of the router is zero, so its error is compared with the largest gradient.
    largest = max(gradient.norm() for gradient in found[1][1:])
    for one, other in zip(*found, strict=True):
        size = largest if experts_per_token == 1 else other.norm()
        assert (one - other).norm() <= 1e-6 * size


def test_an_expert_without_tokens_gets_a_zero_gradient():
    layer = mixture()
    with torch.no_grad():
        layer.router.weight[3] = -100.0
    layer(torch.rand(1, 9, 16)).square().sum().backward()
    assert layer.experts.down.grad[3].abs().sum() == 0 < layer.experts.down.grad.abs().sum()


def test_exchanges_are_rounded():
    x = torch.randn(2, 7, 16)
    exact = mixture()(x)
    for changed in ({"dispatch": "e4m3"}, {"combine": "e4m3"}):
        difference = (mixture(**changed)(x) - exact).abs().max() / exact.abs().max()
        assert 0 < difference < 0.1, changed


def test_the_model_predicts_tokens_and_refuses_wrong_numbers_of_experts():
    model = llama_moe()
    logits = model(torch.randint(11, (3, 12)))
    assert logits.shape == (3, 11, 12)
    logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    for experts_per_token in (0, 5):
        with pytest.raises(
            ValueError, match=r"model.experts_per_token must be between 1 and model.experts = 4"
        ):
            llama_moe(experts_per_token=experts_per_token)
