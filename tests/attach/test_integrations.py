"""Trainers in a run: what they log is recorded, and one that was stopped and continued ends with the same bits."""

import json
import os
import tomllib
from functools import partial
from pathlib import Path

from forked import attached, run_script
from test_examples import SCRIPTS, differing, needs, run_dir, source, weights

from cpdrun.attach import integrations

REMEMBERING = ("sync.rounding=stochastic", "sync.error_feedback=true")  # state between steps


class Started:
    """A script in a folder of its own, and its run."""

    def __init__(self, script: Path, arguments: str, folder: Path, *more: str) -> None:
        self.script, self.arguments, self.folder = script, arguments.split(), folder
        self.run = run_dir(script, folder, 1, "e3m0", *more)

    def start(self, stop_at: int = 0) -> None:
        """Start the script. It is told to stop when it asks for the `stop_at`-th time."""
        how, code = (partial(stopped, stop_at), os.EX_TEMPFAIL) if stop_at else (attached, 0)
        run_script(1, self.script, self.arguments, self.folder, how, code, CPDRUN_RUN_DIR=str(self.run.path))

    @property
    def checkpoints(self) -> Path:
        return self.run.checkpoint.parent

    def rows(self) -> list[dict]:
        return [json.loads(line) for line in self.run.metrics.read_text().splitlines()]


def stopped(at: int, script: str) -> None:
    from cpdrun.attach.recorder import Recorder

    asked = []
    Recorder.should_stop = lambda self: asked.append(1) or len(asked) == at
    attached(script)


@needs["hf_trainer"]
def test_hugging_face_trainer(tmp_path):
    script, typed = SCRIPTS / "hf_trainer.py", "--max_steps 6 --output_dir w"
    whole, halves = (Started(script, typed, tmp_path / name, *REMEMBERING) for name in ("whole", "halves"))
    whole.start()
    halves.start(stop_at=4)
    assert (halves.checkpoints / "trainer0" / "checkpoint-4").is_dir()
    assert not (halves.folder / "w" / "model.safetensors").exists()
    halves.start()
    assert differing(weights(whole.folder), weights(halves.folder)) == 0
    last = whole.rows()[-1]
    assert last["step"] == halves.rows()[-1]["step"] == 6 and "train_loss" in last
    assert not any("runtime" in name or "per_second" in name for name in last)


@needs["hf_trainer"]
def test_each_training_of_a_script_has_its_own_checkpoint(tmp_path):
    """The script is stopped in the second of two trainings."""
    again = "trainer.train()\ntrainer.args.max_steps = 3\ntrainer.train()\ntrainer.save_model()"
    script = tmp_path / "twice.py"
    script.write_text("\n".join(source("hf_trainer")).replace("trainer.train()\ntrainer.save_model()", again))
    assert script.read_text().count("trainer.train()") == 2
    typed = "--max_steps 2 --output_dir w"
    whole, halves = (Started(script, typed, tmp_path / name) for name in ("whole", "halves"))
    whole.start()
    halves.start(stop_at=4)
    assert [folder.name for folder in halves.checkpoints.iterdir()] == ["trainer1"]
    halves.start()
    assert differing(weights(whole.folder), weights(halves.folder)) == 0


@needs["lightning_digits"]
def test_lightning_trainer(tmp_path):
    """Without DDP, whose sampler shuffles by a seed of its own, and with dropout."""
    script = tmp_path / "auto.py"
    text = "\n".join(source("lightning_digits"))
    changed = text.replace('strategy="ddp"', 'strategy="auto"').replace("nn.ReLU()", "nn.Dropout(0.3)")
    assert changed.count("auto") == 1 and "Dropout" in changed
    script.write_text(f"{changed}\ntrainer.validate(module, DataLoader(TensorDataset(x[:99], y[:99])))\n")
    typed = "--epochs 3 --save w"
    whole, halves = (Started(script, typed, tmp_path / name, *REMEMBERING) for name in ("whole", "halves"))
    whole.start()
    halves.start(stop_at=2)
    assert [row["epoch"] for row in halves.rows()] == [1, 2]
    halves.start()
    assert differing(weights(whole.folder), weights(halves.folder)) == 0
    assert whole.rows() == halves.rows()
    assert [row["epoch"] for row in whole.rows()] == [1, 2, 3, 3]
    assert whole.rows()[-1].keys() == {"epoch", "step", "val_accuracy"}


ACCELERATE = """
import sys, torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
torch.manual_seed(1)
net = torch.nn.Linear(9, 5)
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.5))
first, last, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if first:
    accelerator.load_state(folder)
for step in range(first, last):
    optimizer.zero_grad()
    x = torch.randn(7, 9, generator=torch.Generator().manual_seed(step))
    accelerator.backward(model(x).square().mean())
    optimizer.step()
accelerator.save_state(folder)
"""


@needs["accelerate_digits"]
def test_accelerate_saves_the_state_of_the_run(tmp_path):
    from safetensors.torch import load_file

    script = tmp_path / "saves.py"
    script.write_text(ACCELERATE)
    for n, typed in enumerate(("0 6 {}/whole", "0 3 {}/halves", "3 6 {}/halves")):
        Started(script, typed.format(tmp_path), tmp_path / str(n), *REMEMBERING).start()
    whole, halves = (load_file(tmp_path / folder / "model.safetensors") for folder in ("whole", "halves"))
    assert differing(whole, halves) == 0 and (tmp_path / "halves" / "cpdrun.pt").is_file()


@needs["fabric_digits"]
def test_fabric_and_accelerate_log(tmp_path):
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
    started = Started(script, "", tmp_path / "logs")
    started.start()
    assert started.rows() == [{"step": 3, "val_loss": 0.5}, {"step": 4, "val_loss": 0.25}]


@needs["lightning_digits"]
def test_outside_of_a_run_lightning_gets_no_callback(monkeypatch):
    from lightning.fabric import fabric

    from cpdrun.attach.integrations import lightning

    monkeypatch.setattr(fabric, "_load_external_callbacks", lambda group: [])
    lightning.install_fabric(fabric)
    monkeypatch.delenv("CPDRUN_RUN_DIR", raising=False)
    assert fabric._load_external_callbacks("lightning.fabric.callbacks_factory") == []
    monkeypatch.setenv("CPDRUN_RUN_DIR", "run")
    assert len(fabric._load_external_callbacks("lightning.fabric.callbacks_factory")) == 1


def test_other_libraries_do_not_load_entry_points_of_cpdrun():
    """Importing torch or Lightning imports nothing of cpdrun."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert all(group.startswith("cpdrun.") for group in project.get("entry-points", {}))


def test_an_integration_that_does_not_fit_is_noted(tmp_path, monkeypatch, capsys):
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
    assert "integrates:install does not support this version of strange_trainer" in capsys.readouterr().err


def test_values_that_are_not_numbers_are_omitted():
    import torch

    values = {"a": 1, "b": torch.tensor([2.0]), "c": "text", "d": torch.ones(2), "e": True, "f": None}
    assert integrations.numbers_of(values).keys() == {"a", "b"}
