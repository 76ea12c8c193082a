"""Trainers inside a run: what they log is recorded; one that was stopped and started again ends with the same bits."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
from forked import attached, run_script
from test_examples import SCRIPTS, differing, needs, run_dir, source, weights

from cpdrun.attach import integrations
from cpdrun.record import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return run_dir(tmp_path / "results", "e3m0", 1)


def start(run: RunDir, script: Path, arguments: str, folder: Path, stop_at: int = 0) -> str:
    """stop_at: the run is to stop when its script asks for that time."""
    how, code = (partial(stopped, stop_at), os.EX_TEMPFAIL) if stop_at else (attached, 0)
    return run_script(1, script, arguments.split(), folder, how, code, CPDRUN_RUN_DIR=str(run.path))


def logged(run: RunDir) -> list[dict]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def stopped(at: int, script: str) -> None:
    from cpdrun.attach.recorder import Recorder

    asked = []
    Recorder.should_stop = lambda self: asked.append(1) or len(asked) == at
    attached(script)


@needs["hf_trainer"]
def test_hugging_face_trainer(tmp_path, run):
    script, typed = SCRIPTS / "hf_trainer.py", "--max_steps 12 --output_dir w"
    whole = run_dir(tmp_path / "whole", "e3m0", 1)
    start(whole, script, typed, tmp_path / "a")
    last = logged(whole)[-1]
    start(run, script, typed, tmp_path / "b", stop_at=7)
    assert (run.checkpoint.parent / "trainer0" / "checkpoint-7").is_dir()
    assert not (tmp_path / "b" / "w" / "model.safetensors").exists()
    start(run, script, typed, tmp_path / "b")
    assert differing(weights(tmp_path / "a"), weights(tmp_path / "b")) == 0
    assert last["step"] == logged(run)[-1]["step"] == 12 and "train_loss" in last
    assert not any("runtime" in name or "per_second" in name for name in last)


@needs["lightning_digits"]
def test_lightning_trainer(tmp_path, run):
    """Without DDP, whose sampler shuffles by a seed of its own, and with dropout."""
    script, typed = tmp_path / "auto.py", "--epochs 3 --save w"
    text = "\n".join(source("lightning_digits"))
    changed = text.replace('strategy="ddp"', 'strategy="auto"').replace("nn.ReLU()", "nn.Dropout(0.3)")
    assert changed.count("auto") == 1 and "Dropout" in changed
    script.write_text(changed)
    whole = run_dir(tmp_path / "whole", "e3m0", 1)
    start(whole, script, typed, tmp_path / "a")
    start(run, script, typed, tmp_path / "b", stop_at=2)
    assert [row["epoch"] for row in logged(run)] == [1, 2]
    start(run, script, typed, tmp_path / "b")
    assert differing(weights(tmp_path / "a"), weights(tmp_path / "b")) == 0
    assert logged(whole) == logged(run)
    assert logged(run)[-1].keys() == {"epoch", "step", "val_accuracy"}


@needs["hf_trainer"]
def test_each_training_of_a_script_goes_on_from_its_own(tmp_path, run):
    """Stopped in the second of two, which begins where the first ended."""
    again = "trainer.train()\ntrainer.args.max_steps = 4\ntrainer.train()\ntrainer.save_model()"
    script = tmp_path / "twice.py"
    script.write_text("\n".join(source("hf_trainer")).replace("trainer.train()\ntrainer.save_model()", again))
    assert script.read_text().count("trainer.train()") == 2
    typed = "--max_steps 6 --output_dir w"
    start(run_dir(tmp_path / "whole", "e3m0", 1), script, typed, tmp_path / "a")
    start(run, script, typed, tmp_path / "b", stop_at=8)
    assert [folder.name for folder in run.checkpoint.parent.iterdir()] == ["trainer1"]
    start(run, script, typed, tmp_path / "b")
    assert differing(weights(tmp_path / "a"), weights(tmp_path / "b")) == 0


@needs["lightning_digits"]
def test_what_no_checkpoint_of_theirs_holds_is_begun_anew(tmp_path):
    run = run_dir(tmp_path, "e3m0", 1, "sync.rounding=stochastic")
    run_script(
        1,
        SCRIPTS / "lightning_digits.py",
        ["--epochs", "2"],
        tmp_path,
        partial(stopped, 1),
        CPDRUN_RUN_DIR=str(run.path),
    )
    assert len(logged(run)) == 2 and not run.checkpoint.parent.exists()


@needs["fabric_digits"]
def test_fabric_and_accelerate_log(tmp_path, run):
    script = tmp_path / "logs.py"
    script.write_text(
        "import torch\n"
        "from accelerate import Accelerator\n"
        "from lightning.fabric import Fabric\n"
        "fabric = Fabric(accelerator='cpu', devices=1)\n"
        "net = torch.nn.Linear(2, 1)\n"
        "model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))\n"
        "fabric.backward(model(torch.ones(3, 2)).sum())\n"
        "optimizer.step()\n"
        "fabric.log('val_loss', torch.tensor(0.5), step=3)\n"
        "Accelerator(cpu=True).log({'val_loss': 0.25, 'note': 'no number'}, step=4)\n"
    )
    start(run, script, "", tmp_path)
    assert logged(run) == [{"step": 3, "val_loss": 0.5}, {"step": 4, "val_loss": 0.25}]


@needs["lightning_digits"]
def test_outside_of_a_run_lightning_gets_no_callback(monkeypatch):
    from cpdrun.attach.integrations import lightning

    monkeypatch.delenv("CPDRUN_RUN_DIR", raising=False)
    assert lightning.callbacks() == lightning.callbacks_of_fabric() == []


def test_a_library_of_another_shape_trains_all_the_same(tmp_path, monkeypatch, capsys):
    """Its integration is tried once it is imported, and what it lacks is said."""
    (tmp_path / "strange_trainer.py").write_text("x = 1\n")
    (tmp_path / "integrates.py").write_text("def install(module):\n    module.Trainer.log = print\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry = integrations.EntryPoint("strange_trainer", "integrates:install", integrations.GROUP)
    monkeypatch.setattr(integrations, "entry_points", lambda group: [entry])
    undo = integrations.watch()
    try:
        import strange_trainer
    finally:
        undo()
    assert strange_trainer.x == 1 and type(strange_trainer.__loader__).__name__ == "SourceFileLoader"
    assert "strange_trainer is not as integrates:install knows it" in capsys.readouterr().err


def test_what_is_no_number_is_left_out():
    import torch

    values = {"a": 1, "b": torch.tensor([2.0]), "c": "text", "d": torch.ones(2), "e": True, "f": None}
    assert integrations.numbers_of(values).keys() == {"a", "b"}
