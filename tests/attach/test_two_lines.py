"""`cpdrun.attach` in a script: nothing without cpdrun around it, its run inside of one."""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from intercepted_script import config
from torch import nn

import cpdrun
from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.record import RunDir

SCRIPT = """
import sys, torch
import cpdrun

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{lines}
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(5, 8)).square().mean()
    loss.backward()
    optimizer.step()
    {log}
print(model.weight.double().sum().item().hex())
"""
ATTACHED = SCRIPT.format(lines="run = cpdrun.attach(model, optimizer)", log="run.log(step=step, loss=loss)")
ALONE = SCRIPT.format(lines="", log="")


def python(code: str, **environ: str) -> subprocess.CompletedProcess:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CPDRUN_")}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=kept | environ, timeout=120)


@pytest.fixture
def said(capfd) -> Callable[[str], tuple[str, str]]:
    def run(code: str) -> tuple[str, str]:
        exec(code, {})
        return capfd.readouterr()

    return run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = RunDir(tmp_path)
    run.config.write_text(yaml.safe_dump(config("format=e3m0", "aps=true")))
    return tmp_path


def test_two_lines_do_nothing_without_cpdrun(said) -> None:
    """The weights have the same bits, and nothing is imported that an ordinary script would wait for."""
    ours = "import cpdrun, sys; run = cpdrun.attach(); run.log(epoch=1); run.should_stop(); "
    ours += (
        "assert run.checkpoint_dir is None and list(run.workers) == [0]; assert 'torch' not in sys.modules"
    )
    assert python(ours).returncode == 0
    assert said(ATTACHED) == said(ALONE)


def test_attach_intercepts_models_made_before(said, run_dir: Path, monkeypatch: Any) -> None:
    """In a process that some launcher of the script's own started."""
    at_exit = []
    monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(call))
    alone, _ = said(ALONE)
    monkeypatch.setenv("CPDRUN_RUN_DIR", str(run_dir))
    attached, told = said(ATTACHED)
    assert attached != alone and "rounded before the optimizer's step" in told
    rows = [json.loads(line) for line in RunDir(run_dir).metrics.read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert any(Interceptor.current in call for call in at_exit)


def test_a_script_that_steps_by_hand_ends_with_an_error(run_dir: Path) -> None:
    code = "import cpdrun; run = cpdrun.attach(); run.log(epoch=1, loss=0.1)"
    ended = python(code, CPDRUN_RUN_DIR=str(run_dir))
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: format=e3m0 with APS had no effect on any gradient")


def test_attach_uses_the_interceptor_of_the_run(run_dir: Path, monkeypatch: Any) -> None:
    """What the runner has installed is what the script is given."""
    monkeypatch.setenv("CPDRUN_RUN_DIR", str(run_dir))
    interceptor = Interceptor(config("format=e3m0", "aps=true", "world_size=2"))
    interceptor.install()
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = cpdrun.attach(optimizer, model)
    assert list(run.workers) == [0, 1] and run.checkpoint_dir.is_dir() and not run.should_stop()
    for w in run.workers:
        with run.worker(w):
            model(torch.randn(5, 8)).square().mean().backward()
    optimizer.step()
    assert interceptor.facts()["gradients"]["parameters"] == 2
