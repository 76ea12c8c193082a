"""The training loop: the record of a run, divergence, plain PyTorch as its special case, and what settings change."""

import math
from importlib.metadata import version

import pytest
import torch
import torch.nn.functional as F

from cpdrun.data.images.digits import Digits
from cpdrun.models.convnet import ConvNet
from cpdrun.optim.schedules import Cosine
from cpdrun.record import read_json, read_json_lines
from cpdrun.train.seeds import derived_seed, generator

FP32 = ("format=fp32", "aps=false")


@pytest.fixture
def trained(make_run, train_here):
    """trained(*typed) -> the run directory of a run that ended well, and its done.json."""

    def train(*typed):
        run = make_run(*typed)
        assert train_here(run) == 0
        return run, read_json(run.done)

    return train


def test_a_run_leaves_its_complete_record(trained):
    run, done = trained()
    assert done["status"] == "finished"
    assert done["longest_chain"] == 7, "8 workers, one group"
    assert set(done["metrics"]) == {"test_accuracy", "test_loss", "train_loss"}
    assert (done["test_samples"], done["num_classes"]) == (360, 10)
    assert 0 < done["train_seconds"] < done["wall_seconds"]
    rows = list(read_json_lines(run.metrics))
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 22), (2, 44)]
    assert {key: rows[-1][key] for key in done["metrics"]} == done["metrics"]
    best = max(rows, key=lambda row: row["test_accuracy"])
    assert done["judged_by"] == "test_accuracy"
    assert done["best"] == {"metric": "test_accuracy", "value": best["test_accuracy"], "epoch": best["epoch"]}
    directions = {name: measure["higher_is_better"] for name, measure in done["measures"].items()}
    assert directions == {"test_accuracy": True, "test_loss": False, "train_loss": False}
    layer = rows[0]["layers"]["features.0.0.weight"]
    assert layer["exponent_min"] <= layer["exponent_max"] < 0 and 0 <= layer["underflow"] <= 1
    assert read_json(run.status)["epoch"] == 2
    assert read_json(run.env)["packages"]["torch"] == version("torch")


def test_fewer_evaluations_change_nothing_but_the_learning_curve(trained):
    always, done = trained("epochs=3")
    run, sparse = trained("epochs=3", "eval_every=2")
    rows, others = list(read_json_lines(run.metrics)), list(read_json_lines(always.metrics))
    assert ["test_accuracy" in row for row in rows] == [False, True, True]
    assert [row["train_loss"] for row in rows] == [row["train_loss"] for row in others]
    assert sparse["weights_sha256"] == done["weights_sha256"] and sparse["metrics"] == done["metrics"]


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(trained):
    run, done = trained("optim.lr=1e30", *FP32, "epochs=5")
    assert done["status"] == "diverged"
    assert done["metrics"]["train_loss"] is None
    assert 0 <= done["metrics"]["test_accuracy"] <= 1
    assert len(list(read_json_lines(run.metrics))) < 5


def test_fp32_with_one_worker_is_plain_pytorch(trained):
    """Each epoch has the loss of an ordinary script, to float32 rounding: the mean of 22 losses of 64 samples each,
    so a few units in the last place of numbers near 1."""
    run, _ = trained(*FP32, "world_size=1", "batch_size=64")
    ours = [row["train_loss"] for row in read_json_lines(run.metrics)]
    assert ours == pytest.approx(plain_pytorch(epochs=2), rel=1e-5)


def plain_pytorch(epochs: int) -> list[float]:
    """Train as a user would have written it. Only the seeds are cpdrun's."""
    data = Digits(test_fraction=0.2)
    torch.manual_seed(derived_seed("weights", 0))
    model = ConvNet(in_channels=1, num_classes=10, width=4, dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = Cosine(warmup_epochs=1.0, warmup_start=0.1, final=0.0)
    epoch_losses = []
    for epoch in range(epochs):
        losses = []
        order = torch.randperm(len(data.train), generator=generator("order", 0, epoch))
        for s in range(len(data.train) // 64):
            optimizer.param_groups[0]["lr"] = 0.1 * schedule(epoch + s / 22, epochs)
            x, y = data.train.fetch_batch(order[64 * s : 64 * (s + 1)])
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        epoch_losses.append(math.fsum(losses) / len(losses))
    return epoch_losses


def test_aps_saves_the_format_that_fails_without(trained):
    (_, with_aps), (_, without) = (
        trained("format=e3m0", f"aps={aps}", "epochs=4") for aps in ("true", "false")
    )
    assert with_aps["metrics"]["test_accuracy"] > 0.8
    assert without["metrics"]["test_accuracy"] < 0.4


@pytest.mark.parametrize(
    "typed",
    [
        ("precision=mixed_fp16",),
        ("precision=mxfp8", "format=mxfp8_e4m3", "sync=requantised", "aps=false"),
        ("precision=mxfp8", "format=mxfp8_e4m3", "sync=requantised", "aps=false", "emulation=batched"),
        ("precision=int8", *FP32, "world_size=2", "batch_size=32"),
    ],
    ids=["mixed_fp16", "mxfp8", "mxfp8 batched", "int8"],
)
def test_low_precision_learns(trained, typed):
    _, done = trained(*typed, "epochs=3")
    assert done["metrics"]["test_accuracy"] > 0.8


def test_a_batch_larger_than_the_training_set_is_an_error_of_status_2(make_run, train_here, capfd):
    assert train_here(make_run("world_size=1000", "batch_size=2")) == 2
    assert "world_size * batch_size = 2000" in capfd.readouterr().err


def test_clipping_and_label_smoothing_change_the_loss(trained):
    """A tiny clip_norm all but stops SGD; smoothing keeps the loss from going towards zero."""
    runs = [trained(typed)[0] for typed in ("seed=0", "clip_norm=1e-6", "label_smoothing=0.5")]
    plain, clipped, smoothed = ([row["train_loss"] for row in read_json_lines(run.metrics)] for run in runs)
    assert plain[1] < plain[0] - 0.3
    assert abs(clipped[1] - clipped[0]) < 0.1
    assert smoothed[1] > plain[1] + 0.3


def test_bytes_per_step_are_a_mean_over_epochs_of_fp32_and_others_even_after_a_stop(make_run, train_here):
    """Two epochs, the last of them in fp32: half of the steps send four times as much."""
    cases = (("full_precision.last_epochs=1",), (), FP32)
    runs = [make_run("data.test_fraction=0.9", *typed) for typed in cases]
    runs[0].preempt.touch()
    train_here(runs[0])
    runs[0].preempt.unlink()
    for run in runs:
        assert train_here(run) == 0
    mean, few, many = (read_json(run.done)["wire"]["bytes_per_step_real_worker"] for run in runs)
    assert few < many and mean == round((few + many) / 2)


def test_the_exchange_of_a_model_parallel_layer_is_counted(trained):
    """A perceptron 64-32-10 over 2 workers, a batch of 8 samples: see cpdrun/models/parallel/mlp.py."""
    split = [
        f"model.{key}" for key in ("workers=2", "in_features=64", "width=32", "depth=1", "split=columns")
    ]
    formats = ("model.activations=e5m2", "model.errors=e4m3", "data.test_fraction=0.9")
    _, done = trained("model=mlp_parallel", *split, *formats, "world_size=1", "batch_size=8", "epochs=1")
    forward = 8 * 32 // 2 + 8 * 10 // 2  # each worker's half of either layer's outputs, a byte a value
    backward = 8 * 32  # dx of the second layer: 2 (M - 1) / M of all its values; the samples need none
    assert done["wire"]["bytes_per_step_real_worker"] == forward + backward
