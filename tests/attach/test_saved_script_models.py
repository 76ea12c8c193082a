"""Models that a script copies, saves and loads while the run's rules are applied to its model."""

import copy
import io
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from intercepted_script import batch, config
from ranks import run_ranks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.errors import UserError

SCRIPT = Path(__file__).with_name("best_model_script.py")


class Net(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, scale: float = 1.0) -> Tensor:
    x, y = batch(0, 0)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(scale * x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_rules_apply_to_a_reloaded_model(intercept, tmp_path) -> None:
    interceptor, x = intercept("recipe=mxfp8"), batch(0, 0)[0]
    other = tmp_path / "other.pt"
    torch.save(nn.Bilinear(2, 3, 4), other)
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    torch.save({"model": model, "epoch": 1}, tmp_path / "best.pt")
    with torch.serialization.safe_globals([Net, nn.Flatten, nn.Linear, nn.ReLU]):
        loaded = torch.load(tmp_path / "best.pt", weights_only=True)["model"]
    assert loaded[1].__class__ is nn.Linear and torch.equal(loaded.eval()(x), model.eval()(x))
    assert (
        "the run's rules are also applied to the model that torch.load returned"
        in interceptor.facts()["notes"][0]
    )
    torch.load(other, weights_only=False)
    interceptor.loaded_models.add_notes()
    assert interceptor.facts()["notes"][1].startswith("Bilinear (from torch.load) computed in float32")
    interceptor.check()


def test_a_model_without_optimizer_is_noted(intercept) -> None:
    interceptor, x = intercept("recipe=mxfp8"), batch(0, 0)[0]
    model = Net()
    step(model, SGD(model.parameters(), lr=0.1))
    best, trained = Net(), Net()
    for one in (best, trained):
        one.load_state_dict(model.state_dict())
    SGD(trained.parameters(), lr=0.1)
    assert not torch.equal(best(x), model(x)) and torch.equal(trained(x), model(x))
    interceptor.loaded_models.add_notes()
    (note,) = interceptor.facts()["notes"]
    assert note.startswith(
        "Net (from load_state_dict) computed in float32, because no optimizer updates its parameters"
    )


def test_a_copied_model_has_its_own_histories(intercept) -> None:
    interceptor = intercept("recipe=fp8_delayed")
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    copied = copy.deepcopy(model)
    of_copy = SGD(copied.parameters(), lr=0.1)
    for scale in (1.0, 64.0, 64.0):
        assert torch.equal(step(copied, of_copy, scale), step(model, optimizer, scale))
    step(model, optimizer, 512.0)
    of_model, of_copied = (
        interceptor.state_dict()["sums"][f"histories of model {i}"]["1:input"] for i in (0, 1)
    )
    assert torch.equal(of_model[1:4], of_copied[:3]) and of_model[0] > of_copied[0] > 0
    assert interceptor.facts()["notes"] == []
    interceptor.check()


def saved_by_ddp(*typed: str) -> bytes:
    interceptor = Interceptor(config(*typed))
    interceptor.install()
    model = DistributedDataParallel(Net())
    step(model, SGD(model.parameters(), lr=0.1))
    interceptor.check()
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue()


@pytest.mark.parametrize("typed", ["recipe=bf16", "format=e5m2"])
def test_a_wrapped_model_is_saved_without_its_hook(typed) -> None:
    (saved,) = run_ranks(1, saved_by_ddp, typed)
    assert b"cpdrun" not in saved and b"custom_fp" not in saved


@pytest.mark.parametrize("typed", ["recipe=bf16", "format=e5m2"])
def test_a_script_without_an_optimizer_is_an_error_at_its_first_backward_pass(intercept, typed) -> None:
    intercept(typed)
    x, y = batch(0, 0)
    loss = F.cross_entropy(Net()(x), y)
    with pytest.raises(UserError, match="has created no optimizer"):
        loss.backward()


@pytest.mark.parametrize(("axes", "is_refused"), [("format: [fp32, e5m2]", True), ("seed: [0, 1]", False)])
def test_a_baseline_without_an_optimizer_is_an_error_only_if_formats_are_compared(
    intercept, axes, is_refused, tmp_path, monkeypatch
) -> None:
    (tmp_path / "sweep.yaml").write_text(f"axes: {{{axes}}}")
    monkeypatch.setenv("CPDRUN_RUN_DIR", str(tmp_path / "runs" / "baseline"))
    intercept("format=fp32")
    x, y = batch(0, 0)
    loss = F.cross_entropy(Net()(x), y)
    expected = pytest.raises(UserError, match="has created no optimizer") if is_refused else nullcontext()
    with expected:
        loss.backward()


@pytest.mark.parametrize(("model", "recipe"), [("LSTM", "bf16"), ("Transformer", "nvfp4")])
def test_a_reloaded_best_model_has_the_loss_of_a_copy(
    intercept, model, recipe, tmp_path, monkeypatch, capsys
) -> None:
    """The run's rules also apply to a reloaded model, so it has the same test loss as a deep copy."""
    interceptor = intercept(f"recipe={recipe}")
    monkeypatch.setattr(sys, "argv", ["train.py", "--model", model, "--save", str(tmp_path / "model.pt")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    interceptor.check()
    _, loaded, copied = capsys.readouterr().out.rsplit("|", 2)
    assert loaded.split()[-1] == copied.split()[-1]
    assert "the run's rules are also applied" in interceptor.facts()["notes"][0]
