"""Full-size experiments train for one step and are evaluated, on small data in the layout of their dataset.

Their networks and recipes are unchanged, except for the width of AlexNet's fully connected layers. There are fewer
workers and samples, and large images are smaller. test_decentralized_sources.py has the step of
decentralized_resnet20.
"""

import pytest
import yaml
from image_layouts import write_cifar10, write_cifar100, write_image_folder

from cpdrun.data.images.fashion_mnist import DEBIAN_DIR
from cpdrun.data.images.imagenette import CLASSES
from cpdrun.data.images.street_scenes import write_street_scenes
from cpdrun.record import RunDir, read_json, write_text
from cpdrun.sweep import plan

WRITERS = {
    "CIFAR10": write_cifar10,
    "CIFAR100": write_cifar100,
    "ImageFolders": lambda folder: write_image_folder(folder, ("n01440764", "n01443537"), train=3, test=2),
    "Imagenette": lambda folder: write_image_folder(folder, CLASSES, train=1, test=1),
    "Cityscapes": lambda folder: write_street_scenes(folder, train_images=4, test_images=1, height=32),
}
EXPERIMENTS = {  # the arguments that select a cell and make its step small
    "resnet50_bits": ["data.size=32", "sync.group_size=2"],
    "resnet50_fp16": ["case=pure", "data.size=32", "sync.group_size=2"],
    "davidnet_bits": [],
    "resnet18_cifar10_bits": [],
    "alexnet_bits": ["data.size=64", "model.hidden=256"],
    "fcn_bits": ["data.crop=33"],
    "hybrid_bits": [],
    "codebook_cifar10": [],
    "decentralized_vgg11": [],
    "decentralized_cifar100": [],
    "decentralized_imagenette": ["case=ResNet-18\\, 8 bits\\, 99% top-k", "data.size=64"],
    "decentralized_momentum": [],
    "pure_fp16_ablation": ["case=pure", "data.train_samples=4", "data.test_samples=2"],
    "transformer_bits": ["data.text_bytes=3000"],
}


@pytest.mark.parametrize("exp", EXPERIMENTS)
def test_a_full_size_experiment_takes_a_step(exp, tmp_path, train_here):
    typed = [f"exp={exp}", "seed=0", "world_size=2", "batch_size=2", "max_steps=1", "device=cpu", "loaders=0"]
    typed += ["checkpoint.keep=false", f"results_dir={tmp_path}", *EXPERIMENTS[exp]]
    config = plan(typed).runs[-1].config
    kind = config["data"]["_target_"].rpartition(".")[2]
    if kind == "FashionMNIST" and not DEBIAN_DIR.exists():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    if kind in WRITERS:
        WRITERS[kind](tmp_path)
        typed.append(f"data.data_dir={tmp_path}")
    if "closing_rounds" in config["sync"]:
        typed.append("sync.closing_rounds=1")
    planned = plan(typed).runs[-1]
    run = RunDir(tmp_path / planned.name)
    run.path.mkdir()
    write_text(run.config, yaml.safe_dump(planned.config))
    assert train_here(run) == 0
    done = read_json(run.done)
    assert done["status"] == "finished" and 0 <= done["metrics"]["test_accuracy"] <= 1
