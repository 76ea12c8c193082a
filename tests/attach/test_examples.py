"""Scripts like those in the documentation of libraries, in a run: fp32 changes no bit of their weights, and e3m0 with
APS gives those of the emulation, in one process and in two.
"""

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import by_emulation
import pytest
import torch
import yaml
from forked import attached, plainly, run_script

from cpdrun.record import RunDir
from cpdrun.sweep import plan

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
SHORT = {
    "ddp_digits": "--epochs 1 --save w",
    "nanogpt": "--max_iters 3 --warmup_iters 2 --eval_interval 3 --eval_iters 1 --out w",
    "hf_trainer": "--max_steps 3 --gradient_accumulation_steps {workers} --output_dir w",
    "accelerate_digits": "--epochs 1 --save w",
    "fabric_digits": "--epochs 1 --save w",
    "lightning_digits": "--epochs 1 --save w",
    "timm_digits": "--epochs 1 --save w",
}
LIBRARY = {
    "hf_trainer": "transformers",
    "accelerate_digits": "accelerate",
    "fabric_digits": "lightning",
    "lightning_digits": "lightning",
    "timm_digits": "timm",
}
ACCUMULATES = ("nanogpt", "hf_trainer", "accelerate_digits")

needs = {
    name: pytest.mark.skipif(importlib.util.find_spec(lib) is None, reason=f"needs {lib}")
    for name, lib in LIBRARY.items()
}


def scripts_and_ranks(*of_one_rank: str) -> pytest.MarkDecorator:
    """All scripts with two ranks, and some with one."""
    pairs = [*((name, 2) for name in SHORT), *((name, 1) for name in of_one_rank)]
    params = [pytest.param(name, ranks, marks=needs.get(name, ())) for name, ranks in pairs]
    return pytest.mark.parametrize(("name", "ranks"), params)


def source(name: str) -> list[str]:
    return (SCRIPTS / f"{name}.py").read_text().splitlines()


def run_dir(script: Path, folder: Path, ranks: int, fmt: str, *more: str) -> RunDir:
    """Return the run directory of the script, which is started in `folder`."""
    typed = (f"script={script}", f"format={fmt}", f"aps={fmt != 'fp32'}".lower(), "seed=0", "device=cpu")
    here = (f"nproc={ranks}", f"script.work_dir={folder}", f"results_dir={folder / 'results'}")
    (planned,) = plan([*typed, *here, *more]).runs
    run = RunDir(folder / planned.name)
    run.path.mkdir(parents=True)
    run.config.write_text(yaml.safe_dump(planned.config))
    return run


def weights(folder: Path) -> dict[str, torch.Tensor]:
    if (folder / "w").is_dir():
        from safetensors.torch import load_file

        return load_file(folder / "w" / "model.safetensors")
    saved = torch.load(folder / "w")
    return saved.get("model", saved)


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> int:
    """Return the number of bytes that differ."""
    assert one.keys() == other.keys()
    return sum(int((_bytes(one[name]) != _bytes(other[name])).sum()) for name in one)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1).view(torch.uint8)


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., dict[str, torch.Tensor]]:
    """trained("ddp_digits", 2, 2, plainly) -> its weights. With a format, it trains in a run."""

    def train(name: str, ranks: int, workers: int, how: Callable, fmt: str | None = None) -> dict:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        script, run = SCRIPTS / f"{name}.py", {}
        if fmt:
            interceptor = run_dir(script, folder, ranks, fmt, f"world_size={workers}")
            run = {"CPDRUN_RUN_DIR": str(interceptor.path)}
        # One process accumulates what several processes share.
        arguments = SHORT[name].format(workers=workers // ranks).split()
        run_script(ranks, script, arguments, folder, how, **run)
        return weights(folder)

    return train


def workers_of(name: str, ranks: int) -> int:
    """Return the number of workers. A process that accumulates emulates two."""
    return 2 if name in ACCUMULATES else ranks


@scripts_and_ranks("timm_digits", "hf_trainer")
def test_fp32_changes_no_bit(name, ranks, trained):
    workers = workers_of(name, ranks)
    alone = trained(name, ranks, workers, plainly)
    assert differing(alone, trained(name, ranks, workers, attached, "fp32")) == 0


@scripts_and_ranks("timm_digits", "lightning_digits", *ACCUMULATES)
def test_e3m0_equals_the_emulation(name, ranks, trained):
    workers = workers_of(name, ranks)
    oracle = by_emulation.ranks if ranks == 2 else partial(by_emulation.micro_batches, workers)
    expected = trained(name, ranks, workers, oracle)
    assert differing(expected, trained(name, ranks, workers, attached, "e3m0")) == 0


@needs["hf_trainer"]
def test_two_processes_that_accumulate_emulate_four_workers(trained):
    expected = trained("hf_trainer", 2, 4, partial(by_emulation.micro_batches, 4))
    assert differing(expected, trained("hf_trainer", 2, 4, attached, "e3m0")) == 0


@needs["hf_trainer"]
def test_a_sweep_from_an_empty_folder_typed_twice(tmp_path):
    """The Trainer is found and logs by itself."""
    words = f"sweep script={SCRIPTS / 'hf_trainer.py'} format=e3m0 aps=true seed=3 device=cpu".split()
    words.append("script_args=--max_steps 5 --seed {seed} --output_dir {run_dir}/out")
    command = [sys.executable, "-m", "cpdrun.cli", *words]
    first, second = (
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240) for _ in range(2)
    )
    assert first.returncode == 0 and "1 done" in first.stdout, first.stdout + first.stderr
    assert second.returncode == 0 and "Nothing to do" in second.stdout, second.stdout + second.stderr
    (done,) = tmp_path.glob("results/hf_trainer/runs/*/done.json")
    ended = json.loads(done.read_text())
    assert ended["judged_by"] == "eval_loss" and 1 < ended["metrics"]["eval_loss"] < 6
    assert (done.parent / "out" / "model.safetensors").is_file()


def test_scripts_need_at_most_two_lines_and_mostly_none():
    changed = {}
    for name in SHORT:
        script = ast.parse("\n".join(source(name)))
        del script.body[0]  # the docstring
        changed[name] = sum("cpdrun" in line for line in ast.unparse(script).splitlines())
    assert max(changed.values()) == 2
    assert list(changed.values()).count(0) >= 4


@needs["timm_digits"]
def test_the_two_lines_do_nothing_outside_of_a_run(trained, tmp_path):
    without = tmp_path / "without.py"
    without.write_text("\n".join(line for line in source("timm_digits") if "cpdrun" not in line))
    run_script(1, without, SHORT["timm_digits"].split(), tmp_path / "without")
    assert differing(weights(tmp_path / "without"), trained("timm_digits", 1, 1, plainly)) == 0
