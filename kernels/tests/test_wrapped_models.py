"""Test recipes on models that are wrapped with fully_shard, parametrizations, LoRA or tensor parallelism.

A model may be wrapped before or after the recipe is applied.
"""

import copy

import custom_fp
import pytest
import torch
import torch.distributed as dist
from rank_script import run_rank_script
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations

RULES = [{"modules": "*", "role": ["input", "weight", "output_gradient"], "format": "mxfp8_e4m3"}]


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))


def losses(model):
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("recipe", ["mxfp8", "fp8_delayed"])
@pytest.mark.parametrize("is_sharded_first", [False, True])
def test_a_sharded_model_computes_by_the_recipe(recipe, is_sharded_first, mesh):
    plain, model = mlp(), mlp()
    custom_fp.apply_recipe(plain, recipe)
    if is_sharded_first:
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    applied = custom_fp.apply_recipe(model, recipe)
    if not is_sharded_first:
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    assert [*applied.rounded] == ["0", "2"] and losses(model) == losses(plain)


def test_a_parametrized_layer_is_found_by_its_class():
    layer = parametrizations.weight_norm(nn.Linear(32, 8))
    applied = custom_fp.apply_recipe(layer, [{"modules": "Linear", "role": "input", "format": "e3m0"}])
    x = torch.randn(4, 32)
    assert len(applied.rounded) == 1
    assert torch.equal(
        layer(x), nn.functional.linear(custom_fp.quantize(x, "e3m0"), layer.weight) + layer.bias
    )


class Lora(nn.Module):
    """A layer with a low-rank adapter, as in peft: the output of two small matrices is added to that of the layer."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.a, self.b = nn.Linear(base.in_features, 2, False), nn.Linear(2, base.out_features, False)

    def forward(self, x):
        return self.base_layer(x) + self.b(self.a(x))


def test_the_report_follows_layers_that_are_wrapped_later():
    model, plain = mlp(), mlp()
    applied = custom_fp.apply_recipe(model, RULES)
    custom_fp.apply_recipe(plain, RULES)
    arithmetic = applied.rounded["0"]
    base, model[0] = model[0], Lora(model[0])
    assert applied.rounded == {"0.base_layer": arithmetic, "2": arithmetic}
    assert applied.untouched == {"0.a": "Linear", "0.b": "Linear"}
    x = torch.randn(4, 32)
    with torch.no_grad():
        expected = plain[0](x) + model[0].b(model[0].a(x))
    assert torch.equal(model[0](x), expected)
    assert copy.deepcopy(applied).rounded == applied.rounded
    model[0] = base
    assert [*applied.rounded] == ["0", "2"] and not applied.untouched
    model[2] = nn.Identity()
    assert [*applied.rounded] == ["0"]


def test_a_recipe_reaches_layers_that_are_wrapped_already():
    model = mlp()
    model[0] = Lora(model[0])
    applied = custom_fp.apply_recipe(model, RULES)
    assert [*applied.rounded] == ["0.base_layer", "0.a", "0.b", "2"] and not applied.untouched


RANKS = """
import sys, torch, custom_fp
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 32)

    def forward(self, x):
        return self.down(self.up(x).relu())

def parallel(model, mesh):
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

def trained(model):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for i in range(3):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(i))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses

def refused(sentence, call):
    try:
        call()
    except (TypeError, ValueError) as error:
        assert sentence in str(error), error
    else:
        raise AssertionError(sentence)

def rank(number, where):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{where}", rank=number, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    for fmt in ("e4m3", "posit8", "mxfp8_e4m3", "fp8_tensor", "nvfp4", "fp8_block128", "int8_channel"):
        for axis in (None, 0, 1):
            expected = custom_fp.quantize(x, fmt, axis=axis)
            for placement in (Replicate(), Shard(0), Shard(1)):
                found = custom_fp.quantize(distribute_tensor(x, mesh, [placement]), fmt, axis=axis)
                assert torch.equal(found.full_tensor(), expected), (fmt, axis, placement)
    for recipe in ("mxfp8", "fp8_tensorwise"):
        plain, first, last = Mlp(), Mlp(), parallel(Mlp(), mesh)
        for model in (plain, first, last):
            custom_fp.apply_recipe(model, recipe)
        losses = trained(plain)
        assert trained(parallel(first, mesh)) == losses and trained(last) == losses
    for recipe, sentence in (
        ("fp8_delayed", "delayed scaling does not support tensor parallelism"),
        ([{"modules": "*", "role": "accumulator", "format": "bf16"}], "emulated accumulators do not support"),
        ([{"modules": "*", "role": "input", "format": "e4m3", "rounding": "stochastic"}], "rounding is 'stochastic'"),
    ):
        model = parallel(Mlp(), mesh)
        custom_fp.apply_recipe(model, recipe)
        refused(sentence, lambda: model(x))
    sharded = distribute_tensor(x, mesh, [Shard(0)])
    refused("encode does not support DTensors; call to_local()", lambda: custom_fp.encode(sharded, "e4m3"))
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, (sys.argv[1],), nprocs=2)
"""


def test_tensor_parallel_models_compute_by_the_recipe_or_are_refused(tmp_path):
    run_rank_script(RANKS, tmp_path)
