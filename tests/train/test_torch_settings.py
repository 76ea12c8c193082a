"""float32 is IEEE float32 in ranks and in attached scripts, and GPUs use deterministic algorithms."""

import json
import os
import platform
import subprocess
import sys

import pytest
import torch
import yaml

from cpdrun.cli import main
from cpdrun.config.identity import identity_hash
from cpdrun.record import SweepDir, read_json

SETTINGS = """
import torch
from torch.backends import cuda, cudnn
precisions = [cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision]
legacy = [cuda.matmul.allow_tf32, cudnn.allow_tf32]  # raise an error if they contradict the above
with cudnn.flags(enabled=False):
    pass
"""
STEP = """
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 2)).sum().backward()
optimizer.step()
print("settings", *precisions, *legacy)
print("loss 1.0")
"""
ON_A_GPU = """
import json, os, warnings
import torch
from cpdrun.train.ranks import torch_settings

torch_settings._has_gpu = lambda: True
torch_settings.configure_torch({"threads": 1, "device": "auto", "tf32": True})
for _ in range(2):
    torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))  # has no deterministic implementation, on any device
facts = torch_settings.numerics_facts(torch.device("cuda"))
settings = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
fills = torch.utils.deterministic.fill_uninitialized_memory
print(json.dumps([facts, settings, fills, os.environ["CUBLAS_WORKSPACE_CONFIG"]]))
"""

STEPS = """
import resource
import torch
from cpdrun.train.ranks.torch_settings import keep_freed_memory

keep_freed_memory()
for _ in range(3):  # the first steps grow the heap
    torch.ones(100, 1 << 18).sum()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(100, 1 << 18).sum()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.fixture
def in_tf32():
    """torch's settings as a program may leave them, restored afterwards."""
    operations = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    before = [operation.fp32_precision for operation in operations]
    for operation in operations:
        operation.fp32_precision = "tf32"
    yield
    for operation, precision in zip(operations, before, strict=True):
        operation.fp32_precision = precision


@pytest.mark.parametrize("typed", [(), ("tf32=true",)], ids=["default", "tf32=true without a GPU"])
def test_a_rank_computes_in_ieee_float32(make_run, train_here, in_tf32, typed):
    run = make_run("epochs=1", "max_steps=1", *typed)
    assert train_here(run) == 0
    assert read_json(run.env)["float32"] == "ieee"
    exec(SETTINGS, found := {})
    assert found["precisions"] == ["ieee"] * 3 and found["legacy"] == [False, False]
    assert not torch.are_deterministic_algorithms_enabled()  # on a CPU, where it would change speed


def test_an_attached_script_computes_in_ieee_float32(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SETTINGS + STEP)
    assert main(["sweep", "script=train.py", "device=cpu", "script.metrics.loss=loss ([0-9.]+)"]) == 0
    (run,) = SweepDir(tmp_path / "results" / "train").runs()
    assert "settings ieee ieee ieee False False" in run.last_attempt().rank_log(0).read_text()
    assert read_json(run.env)["float32"] == "ieee"


def test_on_a_gpu_tf32_can_be_allowed_and_nondeterministic_operations_are_named():
    done = subprocess.run(
        [sys.executable, "-c", ON_A_GPU],
        env={name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"},
        capture_output=True,
        text=True,
        check=True,
    )
    facts, settings, fills, workspace = json.loads(done.stdout)
    assert facts == {"float32": "tf32", "nondeterministic": ["put_"]}
    assert settings == [True, True] and not fills and workspace == ":4096:8"
    assert done.stderr.count("put_ does not have a deterministic implementation") == 1


def test_tf32_changes_the_name_of_a_run_only_if_true(make_run):
    config = yaml.safe_load(make_run().config.read_text())
    without = {key: value for key, value in config.items() if key != "tf32"}
    assert config["tf32"] is False and identity_hash(config) == identity_hash(without)
    assert identity_hash(config | {"tf32": True}) != identity_hash(config)


@pytest.mark.skipif(
    platform.libc_ver() < ("glibc", "2.35"), reason="blocks of 100 MiB are kept by glibc 2.35 and newer"
)
def test_steps_reuse_the_freed_memory_of_earlier_steps():
    answer = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    pages = 10 * 100 * (1 << 18) * 4 // 4096  # the page faults of 10 steps that do not reuse memory
    # If another thread allocates at the same time, a step may need new memory.
    assert int(answer.stdout) < pages / 2
