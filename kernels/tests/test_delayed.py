"""Delayed scaling: scales come from the largest magnitudes of previous steps; an optimizer's step ends each step."""

import copy
import pickle
from multiprocessing.reduction import ForkingPickler

import custom_fp
import pytest
import torch
from custom_fp.formats.names import parse
from custom_fp.recipe.delayed_scaling import NOTHING, Delayed, History
from custom_fp.recipe.quantization_spec import QuantizationSpec
from custom_fp.rounding import Rule
from custom_fp.scaled.arithmetic import backend as reference
from rank_script import run_rank_script
from torch import nn
from torch.utils.checkpoint import checkpoint

RULE = {"modules": "*", "role": ["input", "weight", "output_gradient"], "format": "fp8_tensor", "history": 2}


def by_amax(x, amax):
    """fp8_tensor's own steps, with a largest value that is given."""
    scale = torch.tensor(amax / 448.0, dtype=torch.float32)
    return custom_fp.quantize((x.clamp(-amax, amax) * (1 / scale)).clamp(-448, 448), "e4m3fn") * scale


def test_scales_come_from_the_previous_steps():
    torch.manual_seed(0)
    layer = nn.Linear(4, 3, bias=False)
    w = layer.weight.detach().clone()
    applied = custom_fp.apply_recipe(layer, [RULE])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    largest = []
    for amax in (2.0, 8.0, 1.0, 0.5, 4.0):
        x = torch.randn(6, 4)
        x = x * (amax / x.abs().max())
        x[0, 0] = amax
        y = layer(x)
        before = max(largest[-2:], default=amax)
        expected = by_amax(x, before) @ by_amax(w, w.abs().max().item()).t()
        assert torch.equal(y, expected)
        with torch.no_grad():
            layer.eval()(100 * x)  # enters nothing
            assert torch.equal(layer(x), expected if largest else layer(x))
        layer.train()
        y.sum().backward()
        optimizer.step()
        largest.append(amax)
    assert applied.state_dict()[":input"].tolist() == [4.0, 0.5]
    assert str(layer).count("fp8_tensor (history 2)") == 3
    other = nn.Linear(4, 3, bias=False)
    other.load_state_dict(layer.state_dict())
    later = custom_fp.apply_recipe(other, [RULE])
    later.load_state_dict(applied.state_dict())
    x = torch.randn(2, 4)
    assert torch.equal(other(x), layer(x))


def test_infinity_and_nan_stay_visible_and_are_not_recorded():
    history = History(3)
    rounding = Delayed(QuantizationSpec("fp8_tensor", history=3), history)
    x = torch.tensor([1.0, 2.0, torch.inf])
    assert rounding(x).isnan().all() and history.seen == 2.0
    assert rounding(torch.tensor([torch.nan])).isnan().all() and history.seen == 2.0
    assert rounding(torch.zeros(0)).shape == (0,) and torch.equal(rounding(torch.zeros(2)), torch.zeros(2))
    x = torch.randn(5, requires_grad=True)
    rounding(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(5))
    with pytest.raises(RuntimeError, match="delayed scaling does not work under vmap"):
        torch.vmap(rounding)(torch.ones(2, 3))


def test_meta_tensors_leave_the_history_unchanged():
    rounding = Delayed(QuantizationSpec("fp8_tensor", history=3), History(3))
    assert rounding(torch.ones(2, 3, device="meta")).shape == (2, 3) and rounding.history.seen == NOTHING


@pytest.mark.parametrize(
    "name", ["fp8_tensor", "int8_tensor", "mxfp8_e4m3_tensor", "nvfp4_tensor", "int8_affine"]
)
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic", "toward_zero"])
@pytest.mark.parametrize("n", [1, 1000, 200_000])
def test_compiled_kernels_give_the_bits_of_the_reference(name, rounding, n):
    native = pytest.importorskip("custom_fp.scaled.native", reason="needs the compiled extension").backend
    fmt, generator = parse(name), torch.Generator().manual_seed(0)
    if not fmt.takes_rounding and rounding != "nearest_even":
        pytest.skip("the format rounds to nearest only")
    for scale in (1.0, 1e-38, 1e-44, 1e30):
        # The ratio of the largest magnitude in the previous steps to the largest magnitude in x.
        for past in (0.0, 0.4, 1.0, 2.5):
            x = torch.randn(n, generator=generator) * scale
            found = []
            for backend in (native, reference):
                magnitudes, out = torch.tensor([NOTHING, 0.0, past * x.abs().max()]), torch.empty(n)
                backend.quantize_delayed(x, magnitudes, fmt, True, Rule(rounding, seed=3), out)
                assert magnitudes[0] == x.abs().max()
                found.append(out.view(torch.int32))
            assert torch.equal(*found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"history": 0}, "rules[0].history=0: must be a number of steps from 1 to 65536"),
        (
            {"format": "mxfp8_e4m3"},
            "history=2: requires a format with one scale for the tensor, such as fp8_tensor, not mxfp8_e4m3",
        ),
        ({"format": "e4m3"}, "requires a format with one scale for the tensor, such as fp8_tensor, not e4m3"),
        ({"role": "result"}, "history=2: only operands can have a history "),
        ({"hadamard": 16}, "history=2 cannot be combined with hadamard=16; remove one of them"),
    ],
)
def test_errors(given, message):
    with pytest.raises(ValueError) as error:
        custom_fp.apply_recipe(nn.Linear(2, 2), [RULE | given])
    assert message in str(error.value)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(count=6):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 6, generator=generator) * 2 ** (i % 3) for i in range(count)]


def trained(make_step, run=lambda model, x: model(x)):
    """Train a model for a few steps. Return the losses, the final weights and the final histories.

    Args:
        make_step: A function that creates optimizers for a model and returns a function that runs their steps.
        run: A function that computes the output of a model for a batch.
    """
    model = mlp()
    applied = custom_fp.apply_recipe(model, [RULE | {"history": 3}])
    step, losses = make_step(model), []
    for x in batches():
        loss = run(model, x).square().mean()
        loss.backward()
        step()
        model.zero_grad()
        losses.append(loss.detach())
    return [torch.stack(losses), *(p.detach() for p in model.parameters()), *applied.state_dict().values()]


def test_a_model_may_leave_the_meta_device_after_its_recipe_is_applied():
    with torch.device("meta"):
        model = mlp()
        applied = custom_fp.apply_recipe(model, [RULE])
    model.to_empty(device="cpu").load_state_dict(mlp().state_dict())
    model(batches()[0]).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert applied.state_dict()["0:input"][0] == batches()[0].abs().max()


def one_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1).step


def two_optimizers(model):
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[:2], model[2:]))
    return lambda: (first.step(), second.step())


def optimizer_per_parameter(model):
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    return lambda: [optimizer.step() for optimizer in optimizers]


def optimizers_in_backward(model):
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], lr=0.1)
        p.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    return lambda: None


@pytest.mark.parametrize("make_step", [two_optimizers, optimizer_per_parameter, optimizers_in_backward])
def test_any_number_of_optimizers_ends_one_step(make_step):
    assert all(map(torch.equal, trained(make_step), trained(one_optimizer)))


def test_recomputed_activations_belong_to_their_step():
    def run(model, x):
        return checkpoint(model, x, use_reentrant=False)

    for make_step in (one_optimizer, optimizers_in_backward):
        assert all(map(torch.equal, trained(make_step, run), trained(one_optimizer)))


def test_accumulated_gradients_belong_to_one_step():
    model = mlp()
    applied = custom_fp.apply_recipe(model, [RULE])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for xs in (batches(3), batches(6)[3:]):
        for x in xs:
            model(x).sum().backward()
        optimizer.step()
        optimizer.step()  # does not change the histories, because nothing was recorded after the first call
        assert applied.state_dict()["0:input"][0] == torch.stack(xs).abs().max()
    assert (applied.state_dict()["0:input"] > 0).all()


def test_compiled_models_record_without_graph_breaks():
    def run(model, x):
        return torch.compile(model, backend="aot_eager", fullgraph=True)(x)

    torch._dynamo.reset()
    assert all(map(torch.equal, trained(two_optimizers, run), trained(one_optimizer)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v))


def test_a_compiled_model_with_attention_has_the_bits_of_the_model():
    torch._dynamo.reset()
    x, found = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1)), []
    for is_compiled in (False, True):
        model = Attention()
        applied = custom_fp.apply_recipe(model, "fp8_delayed")
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if is_compiled else model
        run(x).square().sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        found.append(
            [*(p.detach() for p in model.parameters()), *applied.state_dict().values(), run(x).detach()]
        )
    assert all(map(torch.equal, *found))


def test_a_pickled_recipe_keeps_its_histories():
    """A pickled model has no rules, but a pickled `Applied` contains the model, the rules and the histories."""
    model = mlp()
    applied = custom_fp.apply_recipe(model, "fp8_delayed")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second, third = batches(3)
    model(first).sum().backward()
    optimizer.step()
    model(second)
    for copied in (
        copy.deepcopy(applied),
        pickle.loads(pickle.dumps(applied)),
        pickle.loads(ForkingPickler.dumps(applied)),
    ):
        assert str(copied) == str(applied)
        assert all(map(torch.equal, copied.state_dict().values(), applied.state_dict().values()))
        assert torch.equal(copied.model.eval()(third), model.eval()(third))
        copied.model.train()(third).sum().backward()
        torch.optim.SGD(copied.model.parameters(), lr=0.1).step()
        assert copied.state_dict()["0:input"][0] == torch.stack([second, third]).abs().max()
        model.train()
    assert applied.state_dict()["0:input"][0] == first.abs().max()


def test_a_model_sent_to_another_process_has_its_own_histories():
    model = mlp()
    applied = custom_fp.apply_recipe(model, [RULE])
    received = pickle.loads(ForkingPickler.dumps(model))
    received(1000 * batches()[0])
    model(batches()[0]).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert applied.state_dict()["0:input"][0] == batches()[0].abs().max()


def test_an_operand_may_have_histories_of_several_lengths():
    rules = [RULE | {"product": "forward", "role": "input"}, RULE | {"history": 3}]
    layer = nn.Linear(4, 4)
    applied = custom_fp.apply_recipe(layer, rules)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    for scale in (1.0, 4.0, 2.0, 1.0):
        layer(torch.full((2, 4), scale)).sum().backward()
        optimizer.step()
    found = applied.state_dict()
    assert found[":input"].tolist() == [1.0, 2.0] and found[":input:3"].tolist() == [1.0, 2.0, 4.0]


def test_a_state_with_missing_or_longer_histories_is_refused():
    applied = custom_fp.apply_recipe(nn.Linear(4, 4), [RULE])
    with pytest.raises(
        ValueError, match="a history of 3 steps of :input, but the recipe keeps a history of 2 steps"
    ):
        applied.load_state_dict(applied.state_dict() | {":input": torch.zeros(3)})
    with pytest.raises(ValueError, match="the state has no history of :input"):
        applied.load_state_dict({})


RANKS = """
import sys, torch, custom_fp
import torch.distributed as dist

def rank(number, where):
    dist.init_process_group("gloo", init_method=f"file://{where}", rank=number, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    applied = custom_fp.apply_recipe(model, [
        {"modules": "*", "role": ["input", "output_gradient"], "format": "fp8_tensor", "history": 3}
    ])
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.0) for layer in model]
    for step, scales in enumerate(((1.0, 2.0), (8.0, 4.0), (16.0, 5.0))):
        if (number, step) != (0, 2):  # a rank without a batch in this step
            model(torch.full((2, 4), scales[number])).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert applied.state_dict()["0:input"].tolist() == [5.0, 8.0, 2.0], applied.state_dict()
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, (sys.argv[1],), nprocs=2)
"""


def test_ranks_agree_also_if_one_of_them_recorded_nothing(tmp_path):
    run_rank_script(RANKS, tmp_path)
