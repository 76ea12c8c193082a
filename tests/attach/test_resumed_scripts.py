"""Scripts that are killed and started again end with the weights of a script that was never stopped.

Each script saves its own checkpoints. It is killed after that of step 3, in the middle, and after the last one, when
the next attempt has no step left to take.
"""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from forked import attached, run_script
from test_examples import differing, needs, run_dir, weights

from cpdrun.record import RunDir, read_json

REMEMBERED = ("sync.rounding=stochastic", "sync.error_feedback=true")  # from one step to the next

START = """
import os, sys
from pathlib import Path
import torch
import torch.nn.functional as F
from torch import nn

STEPS, folder = 6, Path(sys.argv[1])
torch.manual_seed(0)
x, y = torch.randn(48, 8), torch.arange(48) % 3
net = nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
"""

PLAIN = """
import cpdrun
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if "RANK" not in os.environ:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
dist.init_process_group("gloo")
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
run = cpdrun.attach(model, optimizer)
checkpoint, first = run.checkpoint_dir / "mine.pt", 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    run.load_state_dict(saved["run"])
    first = saved["step"]
for step in range(first, STEPS):
    mine = slice(8 * step + dist.get_rank(), 8 * step + 8, dist.get_world_size())
    optimizer.zero_grad()
    F.cross_entropy(model(x[mine]), y[mine]).backward()
    optimizer.step()
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
    state["run"] = run.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, f"{checkpoint}.tmp")
        os.replace(f"{checkpoint}.tmp", checkpoint)
    dist.barrier()
if dist.get_rank() == 0:
    torch.save(net.state_dict(), "w")
dist.barrier()
"""

TRAINER = """
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}

arguments = TrainingArguments(
    output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=4, save_steps=2, use_cpu=True,
    disable_tqdm=True, report_to="none",
)
data = [{"x": row, "labels": label} for row, label in zip(x, y)]
trainer = Trainer(model=Net(), args=arguments, train_dataset=data)
trainer.train(get_last_checkpoint(str(folder)) if folder.is_dir() else None)
if trainer.is_world_process_zero():
    torch.save(net.state_dict(), "w")
"""

LIGHTNING = """
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)

saver = L.pytorch.callbacks.ModelCheckpoint(folder, save_last=True, every_n_epochs=1)
trainer = L.Trainer(
    accelerator="cpu", strategy="ddp", devices=int(os.environ.get("WORLD_SIZE", 1)), max_epochs=STEPS // 2,
    callbacks=[saver], logger=False, enable_progress_bar=False, enable_model_summary=False,
)
batch_size = 24 // trainer.world_size
loader = DataLoader(TensorDataset(x, y), batch_size=batch_size)
last = folder / "last.ckpt"
trainer.fit(Net(), loader, ckpt_path=last if last.exists() else None)
if trainer.is_global_zero:
    torch.save(net.state_dict(), "w")
"""

ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
model, optimizer = accelerator.prepare(net, optimizer)
saved = sorted(folder.glob("step*")) if folder.is_dir() else []
first = 0
if saved:
    accelerator.load_state(saved[-1])
    first = int(saved[-1].name[4:])
for step in range(first, STEPS):
    mine = slice(8 * step + accelerator.process_index, 8 * step + 8, accelerator.num_processes)
    optimizer.zero_grad()
    accelerator.backward(F.cross_entropy(model(x[mine]), y[mine]))
    optimizer.step()
    accelerator.save_state(folder / f"step{step + 1}")
    accelerator.wait_for_everyone()
if accelerator.is_main_process:
    torch.save(net.state_dict(), "w")
accelerator.end_training()
"""

SCRIPTS = {"ddp": PLAIN, "trainer": TRAINER, "lightning": LIGHTNING, "accelerate": ACCELERATE}
NEEDS = {"trainer": "hf_trainer", "lightning": "lightning_digits", "accelerate": "accelerate_digits"}
LAST = "after the last checkpoint"


def killed(at: int | str, script: str) -> None:
    """Run the script in a run, and kill the process in the step of this number, or after the last line."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from cpdrun.attach import runner

    steps = []

    def count(*_: object) -> None:
        steps.append(1)
        if len(steps) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    execute = runner._execute

    def execute_and_die(*arguments: object) -> int:
        code = execute(*arguments)
        if at == LAST:
            os.kill(os.getpid(), signal.SIGKILL)
        return code

    runner._execute = execute_and_die
    register_optimizer_step_post_hook(count)
    attached(script)


class Scripts:
    """Runs of one script, each in a new folder. The run in `whole` was never stopped."""

    def __init__(self, name: str, ranks: int, folder: Path) -> None:
        self.ranks, self.folder = ranks, folder
        self.script = folder / f"{name}_script.py"
        self.script.write_text(START + SCRIPTS[name])
        self.whole = folder / "whole"
        self.start(self.new_run(self.whole), self.whole)

    def new_run(self, folder: Path) -> RunDir:
        shared = (f"world_size={self.ranks}", *REMEMBERED)
        return run_dir(self.script, folder, self.ranks, "e3m1", *shared)

    def start(self, run: RunDir, folder: Path, killed_at: int | str | None = None) -> None:
        how, code = (attached, 0) if killed_at is None else (partial(killed, killed_at), -signal.SIGKILL)
        arguments = [str(folder / "saved")]
        run_script(self.ranks, self.script, arguments, folder, how, code, CPDRUN_RUN_DIR=str(run.path))


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """scripts("ddp", 2) -> its Scripts, with one undisturbed run."""
    made: dict[tuple[str, int], Scripts] = {}

    def make(name: str, ranks: int) -> Scripts:
        if (name, ranks) not in made:
            made[name, ranks] = Scripts(name, ranks, tmp_path_factory.mktemp(f"{name}{ranks}"))
        return made[name, ranks]

    return make


PLACES = [
    *(("ddp", ranks, killed_at) for ranks, killed_at in ((1, 4), (2, 5), (2, LAST))),
    *(pytest.param(name, 2, at, marks=needs[NEEDS[name]]) for name in NEEDS for at in (5, LAST)),
]


@pytest.mark.parametrize(("name", "ranks", "killed_at"), PLACES)
def test_a_killed_script_ends_with_the_weights_of_one_that_was_not(name, ranks, killed_at, scripts, tmp_path):
    script = scripts(name, ranks)
    run = script.new_run(tmp_path)
    script.start(run, tmp_path, killed_at)
    script.start(run, tmp_path)
    assert differing(weights(script.whole), weights(tmp_path)) == 0
    gradients = read_json(run.env)["attached"]["gradients"]
    assert gradients["parameters"] == 4 and gradients["exchange"] != ["left alone"]


BY_HAND = """
import cpdrun
saved = cpdrun.attach(net).checkpoint_dir / "done"
if not saved.exists():
    F.cross_entropy(net(x), y).backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
    saved.touch()
"""


def test_a_script_that_was_never_attached_is_an_error_even_with_a_checkpoint(tmp_path):
    script = tmp_path / "by_hand.py"
    script.write_text(START + BY_HAND)
    run = run_dir(script, tmp_path, 1, "e3m0")
    for _ in range(2):
        said = run_script(1, script, ["saved"], tmp_path, attached, 2, CPDRUN_RUN_DIR=str(run.path))
        assert "has created no optimizer of torch.optim" in said
