"""Every experiment of conf/exp: its first line is its command, its grid counts, and what fits this machine trains."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

import cpdrun.conf
from cpdrun.data.images.fashion_mnist import DEBIAN_DIR
from cpdrun.record import RunDir, read_json, write_text
from cpdrun.sweep import plan

FILES = sorted(Path(cpdrun.conf.__file__).with_name("exp").glob("*.yaml"))
TRAINS_HERE = re.compile(r"digits|_small$|mlp_|conv_model|codebook_(bits|fashion)")
DIVERGES = {"gpt_products_small"}  # in its last cell, e2m1 without scales, so the cell before it is trained
FEW = {  # so that a step costs little: samples of the data set, by its class
    "FashionMNIST": ["data.train_samples=64", "data.test_samples=20"],
    "FashionFolder": ["data.train_images=64", "data.test_images=20"],
    "PydocText": ["data.text_bytes=3000", "max_steps=1"],
    "StreetScenes": ["data.train_images=8", "data.test_images=2"],
}


PRETRAINED = ["all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"]  # scripts/pretrained_models.py makes their folders


@pytest.fixture(autouse=True)
def _files_that_scripts_make(tmp_path, monkeypatch):
    """Make a home folder with stand-ins for the files that scripts make. Their contents are not read here."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cache = tmp_path / "home/.cache/cpdrun"
    for name in PRETRAINED:
        (cache / "models" / name).mkdir(parents=True)
    for name in ("train.csv", "test.csv"):
        (cache / "debian_sections").mkdir(exist_ok=True)
        write_text(cache / "debian_sections" / name, "text,label\n")


@cache
def planned(exp):
    return plan([f"exp={exp}"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_experiment_starts_with_its_command_and_has_a_baseline(file):
    first, second, *_ = file.read_text().splitlines()
    assert first in [
        f"# cpdrun {command} exp={file.stem}" for command in ("sweep", "search", "search --allocate")
    ]
    assert second.startswith("# ")
    sweep = planned(file.stem)
    assert len(sweep.runs) == len({run.name for run in sweep.runs}) >= 3
    if told := re.search(r"(\d[\d,]*) runs", file.read_text().split("defaults:")[0]):
        assert len(sweep.runs) == int(told[1].replace(",", ""))
    assert any(run.config["format"] == "fp32" for run in sweep.runs), "no baseline"


@pytest.mark.parametrize("file", [f for f in FILES if TRAINS_HERE.search(f.stem)], ids=lambda file: file.stem)
def test_a_step_of_an_experiment_is_trained_and_evaluated(file, tmp_path, train_here):
    config = planned(file.stem).runs[-1].config
    kind = config["data"]["_target_"].rsplit(".", 1)[-1]
    if kind.startswith("Fashion") and not DEBIAN_DIR.exists():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    typed = [f"exp={file.stem}", "epochs=1", "device=cpu", f"results_dir={tmp_path}", *FEW.get(kind, [])]
    if "cache_dir" in config["data"]:
        typed.append(f"data.cache_dir={tmp_path}")
    runs = plan([*typed, *_one_step(config, kind)]).runs
    if file.stem in DIVERGES:
        runs = [run for run in runs if run.config["case"] != runs[-1].config["case"]]
    last = runs[-1]
    run = RunDir(tmp_path / last.name)
    run.path.mkdir(parents=True)
    write_text(run.config, yaml.safe_dump(last.config))
    assert train_here(run) == 0
    done = read_json(run.done)
    assert done["status"] == "finished" and 0 <= done["metrics"]["test_accuracy"] <= 1
    assert done["weights_sha256"] != ""


def _one_step(config, kind):
    """Return settings with which the few samples take one step or a few."""
    if kind in ("FashionMNIST", "FashionFolder"):
        return ["world_size=4", "batch_size=8"]
    if kind in ("StreetScenes", "PydocText"):
        return ["world_size=4", "batch_size=2"]
    return ["max_steps=2"]
