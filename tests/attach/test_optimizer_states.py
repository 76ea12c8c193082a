"""Test precision.optimizer_state in scripts.

Optimizer states are rounded after each step. Their bits must equal those of cpdrun's own training loop.
"""

import io
from collections.abc import Callable
from typing import Any

import custom_fp
import pytest
import torch
import torch.nn.functional as F
from bits import same_bits
from intercepted_script import batch, config
from ranks import run_ranks
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer, RMSprop

from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.errors import UserError
from cpdrun.train.instantiate import part

E5M2 = ("precision.optimizer_state=e5m2",)
MakeOptimizer = Callable[[Any], Optimizer]
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: AdamW(parameters, lr=0.01),
    "rmsprop": lambda parameters: RMSprop(parameters, lr=0.01, momentum=0.5, centered=True),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 10))


def train(
    model: nn.Module, optimizer: Optimizer, steps: range = range(3), take: Callable | None = None
) -> None:
    for step in steps:
        x, y = batch(0, step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if take is None:
            optimizer.step()
        else:
            take(optimizer, list(model.parameters()))


def tensors(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    states = [v for p in model.parameters() for v in optimizer.state[p].values() if isinstance(v, Tensor)]
    return [*(p.detach() for p in model.parameters()), *states]


@pytest.mark.parametrize("norms", ["false", "true"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("fmt", ["e5m2", "mxfp8_e4m3"])
def test_states_equal_those_of_a_built_in_run(intercept, name: str, fmt: str, norms: str) -> None:
    typed = f"precision.optimizer_state={fmt}", f"precision.fp32_norms={norms}"
    precision, own = part("precision", config(*typed)["precision"]), net()
    precision.prepare(own)
    own_optimizer = OPTIMIZERS[name](own.parameters())
    train(own, own_optimizer, take=precision.step)
    interceptor = intercept(*typed)
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer)
    interceptor.check()
    assert all(map(same_bits, tensors(model, optimizer), tensors(own, own_optimizer)))
    interceptor.uninstall()
    plain = net()
    plain_optimizer = OPTIMIZERS[name](plain.parameters())
    train(plain, plain_optimizer)
    assert not all(map(same_bits, tensors(model, optimizer), tensors(plain, plain_optimizer)))
    kind = type(optimizer).__name__
    assert interceptor.facts()["notes"] == [f"the state of {kind} is rounded to {fmt} after each step"]


def test_a_script_resumes_from_its_own_checkpoint(intercept) -> None:
    intercept(*E5M2)
    model = net()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer, range(2))
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    saved_file = io.BytesIO()
    torch.save(saved, saved_file)
    train(model, optimizer, range(2, 4))
    intercept(*E5M2)
    again = net()
    resumed = OPTIMIZERS["adamw"](again.parameters())
    saved_file.seek(0)
    saved = torch.load(saved_file)
    again.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    train(again, resumed, range(2, 4))
    assert all(map(same_bits, tensors(model, optimizer), tensors(again, resumed)))


class Nested(Optimizer):
    """An optimizer whose state for a parameter contains a list of tensors, as in Shampoo."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: None = None) -> None:
        for p in self.param_groups[0]["params"]:
            factors = [p.grad * 1.1, {"right": p.grad * 1.3}]
            self.state[p] = {"factors": factors, "count": 1, "step": torch.tensor(0.3)}


def test_states_in_lists_are_rounded_and_single_numbers_are_not(intercept) -> None:
    intercept(*E5M2)
    model = net()
    optimizer = Nested(model.parameters())
    train(model, optimizer, range(1))
    for p in model.parameters():
        state = optimizer.state[p]
        for x in state["factors"][0], state["factors"][1]["right"]:
            assert same_bits(x, custom_fp.quantize(x, "e5m2"))
        assert state["step"] == torch.tensor(0.3)


def test_a_recipe_of_the_script_rounds_the_states_of_its_model(intercept) -> None:
    interceptor = intercept()
    model, other = net(), net()
    rules = [{"modules": "*", "role": "weight", "format": "e4m3"}]
    interceptor.apply_recipe(model, {"rules": rules, "optimizer_state": "e5m2"})
    optimizers = [OPTIMIZERS["momentum"](each.parameters()) for each in (model, other)]
    for each, optimizer in zip((model, other), optimizers, strict=True):
        train(each, optimizer, range(1))
    rounded = [
        all(same_bits(s["momentum_buffer"], custom_fp.quantize(s["momentum_buffer"], "e5m2")) for s in found)
        for found in (list(optimizer.state.values()) for optimizer in optimizers)
    ]
    assert rounded == [True, False]
    interceptor.check()
    assert interceptor.facts()["notes"] == ["the state of SGD is rounded to e5m2 after each step"]


def test_a_script_that_takes_no_step_is_refused(intercept) -> None:
    interceptor, model = intercept(*E5M2), net()
    SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        UserError, match=r"precision.optimizer_state=e5m2 had no effect, because no optimizer"
    ):
        interceptor.check()


def sharded(fmt: str) -> list[Tensor] | str:
    interceptor = Interceptor(config(f"precision.optimizer_state={fmt}", "world_size=2"))
    interceptor.install()
    model = net()
    torch.distributed.fsdp.fully_shard(model)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    try:
        train(model, optimizer)
    except UserError as error:
        return str(error)
    interceptor.check()
    return [x.full_tensor() for x in tensors(model, optimizer) if x.dim()]


def test_states_of_shards_are_rounded(intercept) -> None:
    intercept(*E5M2)
    model = net()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer)
    expected = [x for x in tensors(model, optimizer) if x.dim()]
    for found in run_ranks(2, sharded, "e5m2"):
        assert all(map(same_bits, found, expected))
    for found in run_ranks(2, sharded, "mxfp8_e4m3"):
        assert found == (
            "precision.optimizer_state=mxfp8_e4m3 has scales for blocks of elements, but fully_shard would split these "
            "blocks. Use a format without scales, such as bf16 or e5m2"
        )
