"""Test the coverage that cpdrun counts in a script's first training step.

The coverage must equal that of the model outside a script, and counting must not change any result. If the coverage
cannot be counted, cpdrun must report this instead of guessing.
"""

import copy
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import custom_fp
import pytest
import torch
import torch.nn.functional as F
from bits import same_bits
from custom_fp.recipe.coverage import measure
from forked import attached, run_script
from intercepted_script import config
from ranks import run_ranks
from test_examples import SCRIPTS, SHORT, needs, run_dir
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from cpdrun.attach.intercept.first_step import FirstStepCoverage
from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.cli import main
from cpdrun.errors import UserError
from cpdrun.record import SweepDir, read_json

OPERANDS = "role: [input, weight, output_gradient]"
E4M3 = f"precision.rules=[{{modules: '*', {OPERANDS}, format: e4m3}}]"


class Net(nn.Module):
    """A model with a convolution, attention written with `@`, a GRU, and an MLP that can be checkpointed."""

    def __init__(self, is_checkpointed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.qkv = nn.Conv1d(4, 8, 3, padding=1), nn.Linear(8, 24)
        self.body, self.gru = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), nn.GRU(8, 8)
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(8, 3)
        self.is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).mT
        q, k, v = self.qkv(x).chunk(3, -1)
        x = self.dropout(x + (q @ k.mT).softmax(-1) @ v)
        x = x + (checkpoint(self.body, x, use_reentrant=False) if self.is_checkpointed else self.body(x))
        return self.head(self.gru(x)[0].mean(1))


def batch(step: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(5, 4, 6, generator=generator), torch.randint(3, (5,), generator=generator)


def train(model: nn.Module, steps: int = 1, call: Callable | None = None, **optimizer: Any) -> nn.Module:
    made = SGD(model.parameters(), lr=0.1, **optimizer)
    for step in range(steps):
        x, y = batch(step)
        made.zero_grad()
        F.cross_entropy((call or model)(x), y).backward()
        made.step()
    return model


def places(coverage: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for product in coverage.macs:
        found.setdefault(product.label, set()).add(product.place)
    return found


def test_the_coverage_equals_that_of_the_model_outside_a_script(intercept, capsys) -> None:
    interceptor = intercept(E4M3)
    train(Net(), steps=3)
    interceptor.check()
    first_step = interceptor.rounding.first_step
    twin = Net()
    applied = custom_fp.apply_recipe(twin, config(E4M3)["precision"]["rules"])
    expected = measure(twin, applied.placement, lambda: F.cross_entropy(twin(batch()[0]), batch()[1]))
    assert first_step.coverage.macs == expected.macs and places(expected)["float32"] == {"Net", "gru"}
    products, step = first_step.products(), interceptor.facts()["products"]["step"]
    assert products["coverage"] == dict(expected) and products["in float32"] == list(expected.in_float32())
    assert set(products["operands rounded"]) == {"conv", "qkv", "body.0", "body.2", "head"}
    assert step["macs_per_step"] == expected.total
    assert sum(kind["macs"] for kind in step["by_format"] if kind["a"] == "e4m3") == pytest.approx(
        expected["e4m3"] * expected.total
    )
    said = capsys.readouterr().err
    assert said.count("cpdrun: coverage: ") == 1 and f"cpdrun: coverage: {expected.summary()}\n" in said
    assert "cpdrun:   in float32: aten.bmm in Net " in said


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpointed": {"is_checkpointed": True},
    "delayed": {"recipe": "recipe=fp8_delayed"},
    "stochastic": {"recipe": "recipe=nvfp4"},
    "autocast": {"autocast": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_counting_changes_no_bit(intercept, monkeypatch, variant) -> None:
    settings = dict(VARIANTS[variant])
    recipe, autocast = settings.pop("recipe", E4M3), settings.pop("autocast", False)

    def weights() -> list[Tensor]:
        interceptor = intercept(recipe)
        model = Net(**settings)
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            train(model, steps=3, momentum=0.9)
        interceptor.check()
        counted.append(interceptor.rounding.first_step.coverage)
        return [p.detach() for p in model.parameters()]

    counted: list[Any] = []
    with_count = weights()
    monkeypatch.setattr(FirstStepCoverage, "add", lambda *_: None)
    without = weights()
    assert counted[0] is not None and counted[1] is None and all(map(same_bits, with_count, without))


def test_products_that_checkpointing_recomputes_count_twice(intercept) -> None:
    def forward_macs(is_checkpointed: bool) -> int:
        interceptor = intercept(E4M3)
        train(Net(is_checkpointed))
        macs = interceptor.rounding.first_step.coverage.macs
        return sum(n for product, n in macs.items() if product.place.startswith("body"))

    forward = 5 * 6 * 2 * 8 * 16
    assert (forward_macs(False), forward_macs(True)) == (3 * forward, 4 * forward)


class Unrounded(nn.Module):
    """A model that never calls its head, but passes the weight of the head to F.linear."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.body(x).relu(), self.head.weight, self.head.bias)


def test_layers_that_are_never_called_are_listed(intercept, capsys) -> None:
    interceptor = intercept(E4M3)
    model = Unrounded()
    train(model, call=lambda x: model(x[:, :, 0]))
    interceptor.check()
    products = interceptor.rounding.first_step.products()
    assert products["never called"] == ["head"] and products["operands rounded"] == ["body"]
    assert list(interceptor.facts()["products"]["rounded"]) == ["body"]
    assert "cpdrun:   named by rules, never called: head (1)" in capsys.readouterr().err


def test_a_layer_with_a_replaced_forward_is_not_rounded_and_is_listed(intercept) -> None:
    """accelerate, too, replaces the forward of offloaded layers before the rules are applied."""
    interceptor = intercept(E4M3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    model[1].forward = functools.partial(nn.Linear.forward, model[1])
    train(model, call=lambda x: model(x[:, :, 0]))
    products = interceptor.rounding.first_step.products()
    assert products["never called"] == ["1"] and products["operands rounded"] == ["0"]
    assert products["in float32"] == ["aten.mm in *", "aten.addmm in *"]


def test_rules_whose_layers_are_never_called_fail_in_the_first_step(intercept) -> None:
    message = r"precision.rules\[0\]: the model calls none of the layers selected by this rule, such as head"
    intercept(E4M3.replace("'*'", "head"))
    model = Unrounded()
    with pytest.raises(UserError, match=f"precision: {message}"):
        train(model, call=lambda x: model(x[:, :, 0]))
    interceptor = intercept()
    model = Unrounded()
    interceptor.apply_recipe(model, [{"modules": "head", "role": "weight", "format": "e4m3"}])
    with pytest.raises(UserError, match=r"cpdrun.attach: recipe.rules\[0\]: the model calls none"):
        train(model, call=lambda x: model(x[:, :, 0]))


def test_both_models_of_a_gan_are_counted(intercept) -> None:
    class Generator(nn.Linear):
        pass

    interceptor = intercept(E4M3)
    generator, critic = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 8)), nn.Linear(8, 1)
    optimizers = [AdamW(critic.parameters()), AdamW(generator.parameters())]
    real, noise = torch.randn(5, 8), torch.randn(5, 2)
    for _ in range(2):
        fake = generator(noise)
        (critic(fake.detach()) - critic(real)).mean().backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        (-critic(fake)).mean().backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
    interceptor.check()
    counted: dict[str, int] = {}
    for product, n in interceptor.rounding.first_step.coverage.macs.items():
        assert product.label == "e4m3"
        counted[product.place] = counted.get(product.place, 0) + n
    assert counted == {
        "Sequential.0": 2 * 5 * 2 * 4,  # the noise requires no gradient
        "Sequential.2": 3 * 5 * 4 * 8,
        "Linear": (2 + 2 + 3) * 5 * 8,
    }
    products = interceptor.rounding.first_step.products()
    assert products["operands rounded"] == ["Linear", "Sequential.0", "Sequential.2"]


def test_the_products_of_an_optimizer_are_not_counted(intercept) -> None:
    interceptor = intercept(E4M3)
    model = nn.Linear(4, 3)
    optimizers = [torch.optim.Muon([model.weight]), AdamW([model.bias])]
    for _ in range(2):
        model(torch.ones(5, 4)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert interceptor.rounding.first_step.coverage.total == 2 * 5 * 4 * 3


def test_a_step_with_a_closure_is_counted(intercept) -> None:
    interceptor = intercept(E4M3)
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(5, 4)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert interceptor.rounding.first_step.coverage.total == 2 * 5 * 4 * 3


def test_a_model_of_which_only_parts_are_called_is_counted(intercept) -> None:
    """Like Lightning, the script calls submodules of the model, but never the model itself."""
    interceptor = intercept(E4M3)
    model = nn.ModuleDict({"first": nn.Linear(4, 8), "second": nn.Linear(8, 3)})
    train(model, call=lambda x: model["second"](model["first"](x[:, :, 0])))
    macs = interceptor.rounding.first_step.coverage.macs
    assert {product.place for product in macs} == {"first", "second"}


def test_evaluation_is_not_counted(intercept) -> None:
    interceptor = intercept(E4M3)
    model = nn.Linear(4, 3)
    SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model(torch.ones(9, 4))
    model.eval()(torch.ones(9, 4))
    model.train()
    train(model, call=lambda x: model(x[:, :, 0]))
    assert interceptor.rounding.first_step.coverage.total == 2 * 5 * 4 * 3


def test_without_a_training_step_nothing_is_counted(intercept) -> None:
    interceptor = intercept(E4M3)
    model = Net()
    SGD(model.parameters(), lr=0.1)
    interceptor.check()
    why = "not counted: the script took no training step with a model that has rules"
    assert interceptor.rounding.first_step.products()["coverage"] == why
    assert "problem" in interceptor.facts()["products"]["step"]
    interceptor = intercept("format=e4m3")
    train(Net())
    assert (
        interceptor.rounding.first_step.products() is None and "step" not in interceptor.facts()["products"]
    )


def compiled_model(model: nn.Module) -> Callable:
    return torch.compile(model, backend="eager")


def compiled_part(model: nn.Module) -> Callable:
    model[1].compile(backend="eager")
    return model


def compiled_function(model: nn.Module) -> Callable:
    @torch.compile(backend="eager")
    def forward(x: Tensor) -> Tensor:
        return model(x)

    return forward


@pytest.mark.parametrize("compile_", [compiled_model, compiled_part, compiled_function])
def test_compiled_models_are_not_counted(intercept, capsys, compile_) -> None:
    interceptor = intercept(E4M3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 3))
    train(model, call=compile_(model))
    interceptor.check()
    name = "compiled_function.<locals>.forward" if compile_ is compiled_function else "the model"
    products = interceptor.rounding.first_step.products()
    assert products["coverage"] == f"not counted: {name} is compiled" and "in float32" not in products
    assert interceptor.facts()["products"]["step"] == {"problem": f"{name} is compiled"}
    assert capsys.readouterr().err.count(f"coverage: not counted: {name} is compiled") == 1


class Own(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_the_dispatch_modes_of_a_script_keep_their_order(intercept) -> None:
    interceptor = intercept(E4M3)
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    with FlopCounterMode(display=False):
        model(torch.ones(5, 4)).sum().backward()
    assert interceptor.rounding.first_step.coverage is None
    loss = model(torch.ones(5, 4)).sum()
    with Own() as mode:
        loss.backward()
        optimizer.step()
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is mode
    assert interceptor.rounding.first_step.coverage.total == 2 * 5 * 4 * 3
    model(torch.ones(5, 4))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_a_model_can_be_copied_and_pickled_before_its_first_step(intercept) -> None:
    intercept(E4M3)
    model = nn.Linear(4, 3)
    SGD(model.parameters(), lr=0.1)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied(torch.ones(5, 4)).sum().backward()
    train(model, call=lambda x: model(x[:, :, 0]))


def test_the_first_step_contains_the_products_of_all_emulated_workers(intercept) -> None:
    interceptor = intercept(E4M3, "world_size=4", "format=e5m2")
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    for w in interceptor.workers:
        with interceptor.worker(w):
            model(torch.ones(5, 4)).sum().backward()
    optimizer.step()
    assert interceptor.rounding.first_step.coverage.total == 4 * 2 * 5 * 4 * 3
    assert interceptor.facts()["products"]["step"]["macs_per_step"] == 2 * 5 * 4 * 3


def wrapped(how: str) -> Any:
    interceptor = Interceptor(config(E4M3, "world_size=2"))
    interceptor.install()
    net = model = Net()
    if how == "ddp":
        model = DistributedDataParallel(net)
    else:
        for part in (net.body, net):
            torch.distributed.fsdp.fully_shard(part)
    train(model, steps=2)
    interceptor.check()
    return interceptor.rounding.first_step.coverage.macs


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_wrapped_models_are_counted(how: str, intercept) -> None:
    interceptor = intercept(E4M3)
    train(Net())
    for macs in run_ranks(2, wrapped, how):
        found = {product._replace(place=product.place.removeprefix("FSDP")): n for product, n in macs.items()}
        assert found == interceptor.rounding.first_step.coverage.macs


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs.get(name, ())) for name in SHORT])
def test_scripts_of_libraries_are_counted(tmp_path: Path, name: str) -> None:
    script = SCRIPTS / f"{name}.py"
    run = run_dir(script, tmp_path, 1, "fp32", "recipe=bf16")
    log = run_script(
        1, script, SHORT[name].format(workers=1).split(), tmp_path, attached, CPDRUN_RUN_DIR=str(run.path)
    )
    env = read_json(run.env)
    # Most layers of GPT-2 are Conv1D layers, which rules for '*' do not select.
    least = 0.3 if name == "hf_trainer" else 0.8
    assert env["products"]["coverage"]["bf16"] > least and log.count("cpdrun: coverage: ") == 1
    assert env["attached"]["products"]["step"]["macs_per_step"] > 0


SCRIPT = """
import sys
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
if sys.argv[1] == "compiled":
    model = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = (model(torch.randn(5, 4)) @ torch.randn(1, 8)).square().mean()
    loss.backward()
    optimizer.step()
print("val_loss", loss.item())
"""


def test_the_record_and_the_report_of_a_script_contain_its_coverage(tmp_path, monkeypatch, capfd) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    words = ["recipe=fp32,bf16", "seed=0", "script.metrics.val_loss='val_loss {number}'"]
    assert main(["sweep", "script=train.py", "script_args=eager", *words]) == 0
    (run,) = (run for run in SweepDir(tmp_path / "results" / "train").runs() if "-bf16-" in run.name)
    forward = 5 * 4 * 8, 5 * 8 * 1, 5 * 1 * 8
    products, total = run.result().products, 2 * forward[0] + 3 * forward[1] + 2 * forward[2]
    assert products["macs_per_step"] == total
    share = 1 - 2 * forward[2] / total
    assert read_json(run.env)["products"]["coverage"] == {"bf16": share, "float32": pytest.approx(1 - share)}
    capfd.readouterr()
    assert main(["report", "train", "--format", "md"]) == 0
    table = (tmp_path / "results" / "train" / "report" / "table.md").read_text()
    assert "| coverage |" in table and f"| {int(100 * share)}% |" in table
    assert main(["sweep", "script=train.py", "script_args=compiled", "name=compiled", *words]) == 0
    assert main(["report", "compiled", "--format", "md"]) == 0
    assert "| not counted |" in (tmp_path / "results" / "compiled" / "report" / "table.md").read_text()
