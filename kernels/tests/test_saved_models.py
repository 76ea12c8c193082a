"""Saved models do not depend on the recipe or on custom_fp, and copies of a model follow the recipe."""

import copy
import inspect
import io
import os
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import custom_fp
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.symbols = nn.Embedding(11, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.conv = nn.Sequential(nn.Conv1d(32, 32, 3, padding=1), nn.ReLU())
        self.recurrent = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 11)
        self.itself = [self]

    def forward(self, index, scale=1.0):
        x = self.recurrent(self.conv(self.encoder(self.symbols(index)).mT).mT)[0]
        q = x.unsqueeze(1)
        return self.head(nn.functional.scaled_dot_product_attention(q, q, q).squeeze(1) * scale)
"""
LOADED = """
import sys


class NoneOfOurs:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("custom_fp", "cpdrun"):
            raise ImportError(name)


sys.meta_path.insert(0, NoneOfOurs())
import torch
from torch import nn
import saved_net

torch.set_num_threads(1)
torch.serialization.add_safe_globals([
    saved_net.Net, nn.Embedding, nn.TransformerEncoder, nn.ModuleList, nn.TransformerEncoderLayer, nn.Linear,
    nn.MultiheadAttention, nn.modules.linear.NonDynamicallyQuantizableLinear, nn.LayerNorm, nn.Dropout, nn.Sequential,
    nn.Conv1d, nn.ReLU, nn.LSTM, torch.nn.functional.relu,
])
index = torch.arange(40).view(4, 10) % 11
for i in range(3):
    expected = saved_net.Net()
    expected.load_state_dict(torch.load(f"state{i}.pt", weights_only=True))
    for one in (torch.load(f"model{i}.pt", weights_only=only) for only in (True, False)):
        one.eval(), expected.eval()
        assert type(one) is saved_net.Net and one.itself[0] is one
        assert str(one) == str(expected) and one.__dict__.keys() == expected.__dict__.keys()
        for of_one, of_expected in zip(one.modules(), expected.modules(), strict=True):
            assert type(of_one) is type(of_expected) and of_one.__dict__.keys() == of_expected.__dict__.keys()
        assert all(map(torch.equal, one.state_dict().values(), expected.state_dict().values()))
        assert torch.equal(one(index), expected(index))
        layers = one.encoder.layers[0], expected.encoder.layers[0]
        assert all(layer.activation_relu_or_gelu == 1 for layer in layers)
        assert one.encoder.use_nested_tensor and not one.head._forward_hooks
assert not any(name.split(".")[0] in ("custom_fp", "cpdrun") for name in sys.modules)
"""
RECIPES = {
    "nvfp4": "nvfp4",
    "fp8_delayed": "fp8_delayed",
    "ends of layers": [
        {"modules": "*", "role": ["activation", "error"], "format": "e5m2"},
        {"modules": "scaled_dot_product_attention", "role": "input", "format": "e4m3fn"},
    ],
}
INDEX = torch.arange(40).view(4, 10) % 11
DELAYED = [
    {"modules": "*", "role": ["input", "weight", "output_gradient"], "format": "fp8_tensor", "history": 3}
]


@pytest.fixture
def saved_net(tmp_path, monkeypatch):
    (tmp_path / "saved_net.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "saved_net", raising=False)
    import saved_net

    yield saved_net
    sys.modules.pop("saved_net", None)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, scale: float = 1.0) -> Tensor:
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(INDEX, scale).flatten(0, 1), INDEX.flatten())
        loss.backward()
        optimizer.step()
    return loss.detach()


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def test_files_load_without_this_package(saved_net, tmp_path):
    for i, recipe in enumerate(RECIPES.values()):
        model = saved_net.Net()
        custom_fp.apply_recipe(model, recipe)
        train(model, momentum(model), 2)
        torch.save(model, tmp_path / f"model{i}.pt")
        torch.save(model.state_dict(), tmp_path / f"state{i}.pt")
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert b"custom_fp" not in pickle.dumps(model, protocol)
    (tmp_path / "load.py").write_text(LOADED)
    # torch loads the extensions of installed packages, ours among them, unless it is told not to
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "load.py"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
@pytest.mark.parametrize("steps", [0, 2])
def test_a_deep_copy_trains_to_the_same_bits(recipe, steps, saved_net):
    """In evaluation too, and each with scales of its own."""
    model = saved_net.Net()
    applied = custom_fp.apply_recipe(model, recipe)
    optimizer = momentum(model)
    if steps:
        train(model, optimizer, steps)
    copied = copy.deepcopy(model)
    of_copy = momentum(copied)
    of_copy.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert copied.itself[0] is copied and isinstance(copied, saved_net.Net) and str(copied) == str(model)
    assert torch.equal(train(copied, of_copy, 3, scale=8.0), train(model, optimizer, 3, scale=8.0))
    assert all(map(torch.equal, copied.state_dict().values(), model.state_dict().values()))
    assert torch.equal(copied.eval()(INDEX), model.eval()(INDEX))
    plain = saved_net.Net().eval()
    plain.load_state_dict(model.state_dict())
    assert not torch.equal(plain(INDEX), model(INDEX))
    before = {name: values.clone() for name, values in applied.state_dict().items()}
    train(copied.train(), of_copy, 1, scale=32.0)
    assert all(torch.equal(values, before[name]) for name, values in applied.state_dict().items())


def test_the_scales_of_copies_advance():
    """A copy of a copy, a copy of a part, a shallow copy, and a model that nothing but its copies refer to."""
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))),
        torch.randn(16, 8),
    )
    custom_fp.apply_recipe(model, DELAYED)
    part = copy.deepcopy(model[1])
    copied = copy.deepcopy(copy.deepcopy(model))
    del model
    for one in (copied, part, copy.copy(part[0])):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.0)
        for _ in range(3):
            one(100 * x).sum().backward()
            optimizer.step()
        layer = next(layer for layer in one.modules() if isinstance(layer, nn.Linear))
        history = layer.arithmetic.roundings["input", "forward"].history
        assert (history.values == (100 * x).abs().max()).all()


def test_a_copy_follows_the_steps_of_the_rules():
    model = nn.Linear(4, 4)
    rule = {"modules": "*", "role": "weight", "format": "e3m0", "steps": [1, None]}
    applied = custom_fp.apply_recipe(model, [rule])
    copied, x = copy.deepcopy(model), torch.randn(3, 4)
    before = copied(x)
    applied.at(1)
    assert torch.equal(copied(x), model(x)) and not torch.equal(copied(x), before)


def test_a_model_in_a_new_process_computes_by_the_recipe(tmp_path):
    """torch.multiprocessing.spawn pickles its arguments."""
    (tmp_path / "spawning.py").write_text(
        "import torch, custom_fp\n"
        "def child(_, model, x, y):\n"
        "    assert torch.equal(model(x), y)\n"
        "if __name__ == '__main__':\n"
        "    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.randn(3, 4)\n"
        "    custom_fp.apply_recipe(model, 'fp8_delayed')\n"
        "    torch.multiprocessing.spawn(child, (model, x, model(x).detach()))\n"
    )
    done = subprocess.run([sys.executable, "spawning.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_model_in_a_queue_computes_by_the_recipe():
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(3, 4)
    custom_fp.apply_recipe(model, "fp8_delayed")
    y = model(x)
    received = pickle.loads(ForkingPickler.dumps(model))
    assert torch.equal(received(x), y) and type(received[0]) is type(model[0])
    assert type(pickle.loads(pickle.dumps(model))[0]) is nn.Linear
    received(4 * x).sum().backward()
    torch.optim.SGD(received.parameters(), lr=0.0).step()
    history = received[0].arithmetic.roundings["input", "forward"].history
    assert history.values[0] == (4 * x).abs().max()


EXPORTS = {
    "trace": torch.jit.trace,
    "script": lambda model, x: torch.jit.script(model),
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
}


@pytest.mark.parametrize("export", EXPORTS.values(), ids=list(EXPORTS))
def test_an_export_warns_that_it_omits_rounding(export):
    model, x = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)), torch.randn(16, 32)
    expected = model(x)
    custom_fp.apply_recipe(model, "mxfp8")
    rounded = model(x)
    assert not torch.equal(rounded, expected)
    with pytest.warns(UserWarning, match="rounding is not exported"):
        exported = export(model, x)
    strict = torch.export.export(model, (x,), strict=True).module()
    for each in (exported, strict):
        assert torch.equal(each(x), expected) and "custom_fp" not in str(each.graph)
    assert torch.equal(model(x), rounded)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), rounded)


def test_onnx_exports_the_model_without_rounding(tmp_path):
    pytest.importorskip("onnx", reason="torch.onnx.export needs it")
    model, x = nn.Sequential(nn.Linear(32, 8)), torch.randn(16, 32)
    custom_fp.apply_recipe(model, "mxfp8")
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=False)
    assert b"custom_fp" not in (tmp_path / "model.onnx").read_bytes()


def test_modules_keep_their_class():
    """Libraries read and replace the class of a module, and read the parameter names of its forward."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x, is_causal=False):
            q, k, v = self.qkv(x).chunk(3, -1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

        def __deepcopy__(self, memo):
            made = self.__class__.__new__(self.__class__)
            memo[id(self)] = made
            made.__dict__.update(copy.deepcopy(self.__dict__, memo))
            return made

    torch.manual_seed(0)
    block, x = Block(), torch.randn(2, 3, 8)
    custom_fp.apply_recipe(block, "bf16")
    y = block(x)
    assert block.__class__ is Block and block.qkv.__class__ is nn.Linear and type(block) is not Block
    assert list(inspect.signature(block.forward).parameters) == ["x", "is_causal"]
    assert torch.equal(copy.deepcopy(block)(x), y)
    parametrizations.weight_norm(block.qkv)
    assert isinstance(block.qkv, parametrize.type_before_parametrizations(block.qkv))
    assert isinstance(block.qkv, custom_fp.QuantLinear)
    parametrize.remove_parametrizations(block.qkv, "weight")
    assert block.qkv.__class__ is nn.Linear and torch.allclose(block(x), y, atol=1e-2)


def test_a_loaded_model_takes_a_recipe_again():
    model, x = nn.Sequential(nn.Linear(32, 32)), torch.randn(4, 32)
    custom_fp.apply_recipe(model, "mxfp8")
    loaded = pickle.loads(pickle.dumps(model))
    custom_fp.apply_recipe(loaded, "mxfp8")
    assert torch.equal(loaded.eval()(x), model.eval()(x))
    buffer = io.BytesIO()
    torch.save({"model": model, "epoch": 3}, buffer)
    buffer.seek(0)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear]):
        assert type(torch.load(buffer, weights_only=True)["model"][0]) is nn.Linear
