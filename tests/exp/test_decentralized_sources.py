"""The decentralised experiments that name github.com/aparna-aketi/Low_Precision_DL (commit fab2528) do what its
trainers do, written down here from trainer_choco.py and run.sh; a step of one trains on data laid out as CIFAR-10."""

import numpy as np
import pytest
import yaml
from hydra.utils import instantiate
from image_layouts import write_cifar10

from cpdrun.record import RunDir, read_json, write_text
from cpdrun.sweep import plan

EPOCHS = 200
RATES = {  # milestones, and the factor by which each multiplies the learning rate
    "decentralized_resnet20": ([100, 150], 0.1),
    "decentralized_vgg11": ([30, 60, 90, 120, 150, 180], 0.5),
    "decentralized_cifar100": ([100, 150], 0.1),
    "decentralized_imagenette": ([100, 150], 0.1),
}


@pytest.mark.parametrize("name", RATES)
def test_the_recipe_is_that_of_the_trainers(name):
    configs = [run.config for run in plan([f"exp={name}", "seed=0"]).runs]
    milestones, gamma = RATES[name]
    for config in configs:
        assert (config["world_size"], config["world_size"] * config["batch_size"]) == (8, 256)
        optim = {key: config["optim"][key] for key in ("lr", "momentum", "nesterov", "weight_decay")}
        assert optim == {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
        schedule = instantiate(config["schedule"], _convert_="all")
        assert config["epochs"] == EPOCHS and schedule(0, EPOCHS) == 0.1
        for epoch in range(1, EPOCHS):  # the first is where we say that we differ
            theirs = gamma ** sum(epoch >= milestone for milestone in milestones)
            assert schedule(epoch, EPOCHS) == pytest.approx(theirs, rel=1e-12)
        (matrix,) = instantiate(config["topology"]).matrices(8)
        assert all(matrix[i, i] == matrix[i, i - 1] == 0.5 for i in range(8))
        assert config["sync"]["closing_rounds"] == 51 and config["norm"]["groups"] == 8
        eight = config["format"] != "fp32"
        assert config["precision"]["_target_"].endswith("Int8") == eight
        assert config["norm"]["_target_"].endswith("RangeEvoNorm") == eight
        assert config["sync"]["eta"] == (0.01 if "keep" in config["compressor"] else 1.0)
    assert len({config["partition"]["skew"] for config in configs}) == 2


def test_a_step_of_8_bits_and_1_percent_trains_on_the_layout_of_cifar10(tmp_path, train_here):
    write_cifar10(tmp_path, samples=4)
    typed = ["exp=decentralized_resnet20", "case=8 bits\\, 99% top-k", "sync=gossip_deep_squeeze", "seed=0"]
    typed += ["partition.skew=0.8", "epochs=1", "batch_size=2", "device=cpu", "sync.closing_rounds=1"]
    (planned,) = plan([*typed, f"data.data_dir={tmp_path}", f"results_dir={tmp_path}"]).runs
    run = RunDir(tmp_path / planned.name)
    run.path.mkdir()
    write_text(run.config, yaml.safe_dump(planned.config))
    assert train_here(run) == 0
    done = read_json(run.done)
    assert done["status"] == "finished" and done["topology"] == {
        "neighbours": 1,
        "spectral_gap": pytest.approx(1 - np.cos(np.pi / 8)),
    }
    assert done["memory"]["activation_bytes"] * 4 == 3_301_888, "what batches of 2 leave in float32"
    assert done["memory"]["model_bytes"] < 1_093_032 / 3.8
