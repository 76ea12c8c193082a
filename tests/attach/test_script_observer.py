"""A script's tensors, observed: what was there is what is seen, and its bits stay."""

import copy
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from linear_script import gradients, linear, loss_of
from torch.optim import LBFGS, SGD

from cpdrun.attach.intercept.script_observer import EVERY, ObservedSteps
from cpdrun.cli import main
from cpdrun.record import RunDir, SweepDir, read_config
from cpdrun.whatif.collect.observation import ROLES, Observation

SCRIPT = Path(__file__).with_name("observed_script.py")
LOSS = ["script.metrics.val_loss=val loss ([0-9.]+)"]


@pytest.fixture
def run(tmp_path, monkeypatch) -> RunDir:
    monkeypatch.setenv("CPDRUN_RUN_DIR", str(tmp_path))
    return RunDir(tmp_path)


def train(interceptor, steps: int) -> list[list[torch.Tensor]]:
    """Of each step each worker's gradients, its losses divided; and what the weights are at the end."""
    model, found = linear(), []
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        own = []
        for w in interceptor.workers:
            loss = loss_of(model, w, step) / len(interceptor.workers)
            own.append(gradients(model, loss))
            loss.backward()
        found.append(own)
        optimizer.step()
    return [*found, [p.detach().clone() for p in model.parameters()]]


@pytest.mark.parametrize("typed", [(), ("format=e3m0", "aps=true")])
def test_the_gradient_of_each_emulated_worker_is_observed_and_no_bit_changes(intercept, run, typed) -> None:
    plain = train(intercept("world_size=3", *typed), 45)
    interceptor = intercept("world_size=3", "observe=4", *typed)
    observed = train(interceptor, 45)
    interceptor.check()
    assert all(torch.equal(a, b) for a, b in zip(plain[-1], observed[-1], strict=True))
    found = Observation.load(run.observed)
    assert found.steps == [0, 20, 40] and not found.unobserved
    assert (found.about["steps"], found.about["world_size"]) == (45, 3)
    for step in found.steps:
        for i, (name, seen) in enumerate(found.by_step[step]["gradient"].items()):
            expected = np.stack([own[i].reshape(-1).numpy() for own in observed[step]])
            assert np.array_equal(seen.samples["values"], expected), name
            assert sum(seen.column("count")) + seen.zeros == expected.size


@pytest.mark.parametrize("typed", [(), ("recipe=mxfp8", "format=e4m3")])
def test_a_model_that_is_saved_or_copied_during_an_observed_step_has_no_hooks(intercept, run, typed) -> None:
    interceptor = intercept("observe=2", *typed)
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(12):
        optimizer.zero_grad()
        loss_of(model, 0, step).backward()
        saved, copied = pickle.dumps(model), copy.deepcopy(model)
        assert b"cpdrun" not in saved and b"custom_fp" not in saved
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in copied.modules())
        optimizer.step()
    interceptor.check()
    assert "activation" in Observation.load(run.observed).by_step[10]


def test_a_step_by_closure_is_observed_without_gradients(intercept, run) -> None:
    interceptor = intercept("observe=2")
    model = linear()
    optimizer = LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0, 0)
        loss.backward()
        return loss

    optimizer.step(closure)
    interceptor.check()
    found = Observation.load(run.observed)
    assert "gradient" not in found.by_step[0] and "closure" in found.unobserved[0]
    assert {"weight", "update"} <= set(found.by_step[0])


def test_observed_steps_are_spread_evenly() -> None:
    for most, steps in ((1, 50), (2, 999), (16, 30), (16, 5000)):
        spread, looks = ObservedSteps(most), 0
        for step in range(steps):
            if spread.is_due(step):
                spread.keep(step)
                looks += 1
        gaps = set(np.diff(spread.kept))
        assert spread.kept[0] == 0 and len(gaps) <= 1 and len(spread.kept) <= most
        assert len(spread.kept) > most // 2 or steps < EVERY * most // 2
        assert looks <= steps / EVERY + 1


def test_a_script_s_run_is_observed_predicted_and_explained(tmp_path, monkeypatch, capsys) -> None:
    """By the real commands, two ranks."""
    shutil.copy(SCRIPT, tmp_path)
    monkeypatch.chdir(tmp_path)
    words = [
        "sweep",
        f"script={SCRIPT.name}",
        "nproc=2",
        "format=fp32,e3m0",
        "aps=false",
        "device=cpu",
        *LOSS,
    ]
    assert main([*words, "observe=3"]) == 0
    runs = {read_config(run)["format"]: run for run in SweepDir(tmp_path / "results" / SCRIPT.stem).runs()}
    one, other = runs["fp32"], runs["e3m0"]
    found = Observation.load(one.observed)
    assert found.steps == [0, 20, 40] and set(found.by_step[20]) == set(ROLES) and not found.unobserved
    before, x = torch.load(one.path / "step20.pt")
    seen = found.by_step[20]
    assert np.array_equal(seen["weight"]["0.weight"].samples["values"], before[0].reshape(-1).numpy())
    assert np.array_equal(seen["activation"]["0"].samples["values"], x.reshape(-1).numpy())
    both = seen["gradient"]["2.bias"].samples["values"]
    assert both.shape == (2, 4) and not np.array_equal(both[0], both[1])
    # SGD without momentum: the update is -lr times the mean gradient
    update = seen["update"]["2.bias"].samples["values"]
    np.testing.assert_allclose(update, -0.1 * both.sum(0), rtol=1e-4, atol=1e-7)

    capsys.readouterr()
    assert main(["predict", str(one.path), "format=e5m2,e3m0", "aps=false", "search.tolerance=0.01"]) == 0
    assert "e3m0" in capsys.readouterr().out
    assert main(["report", str(other.path)]) == 0
    said = capsys.readouterr().out
    assert f"Observed in {one.name}" in said and "gradient" in said
