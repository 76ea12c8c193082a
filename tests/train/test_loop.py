import math
from importlib.metadata import version

import pytest
import torch
import torch.nn.functional as F

from cpdrun.data.images.digits import Digits
from cpdrun.models.convnet import ConvNet
from cpdrun.optim.schedules import Cosine
from cpdrun.record import read_json, read_json_lines
from cpdrun.train.rank import EXIT_PREEMPTED
from cpdrun.train.seeds import derived_seed, generator


def test_a_run_leaves_its_whole_record(make_run, train_here):
    run = make_run()
    assert train_here(run) == 0
    done = read_json(run.done)
    assert done["status"] == "finished"
    assert done["longest_chain"] == 7, "8 workers, one group"
    assert set(done["metrics"]) == {"test_accuracy", "test_loss", "train_loss"}
    assert (done["test_samples"], done["num_classes"]) == (360, 10)
    assert 0 < done["train_seconds"] < done["wall_seconds"]
    rows = list(read_json_lines(run.metrics))
    assert [row["epoch"] for row in rows] == [1, 2]
    assert [row["step"] for row in rows] == [22, 44]
    assert {key: rows[-1][key] for key in done["metrics"]} == done["metrics"]
    best = max(rows, key=lambda row: row["test_accuracy"])
    assert done["judged_by"] == "test_accuracy"
    assert done["best"] == {"metric": "test_accuracy", "value": best["test_accuracy"], "epoch": best["epoch"]}
    assert {name: said["higher_is_better"] for name, said in done["measures"].items()} == {
        "test_accuracy": True,
        "test_loss": False,
        "train_loss": False,
    }
    layer = rows[0]["layers"]["features.0.0.weight"]
    assert layer["exponent_min"] <= layer["exponent_max"] < 0 and 0 <= layer["underflow"] <= 1
    assert read_json(run.status)["epoch"] == 2
    assert read_json(run.env)["packages"]["torch"] == version("torch")


def test_the_same_run_gives_the_same_numbers_twice(make_run, train_here):
    runs = [make_run(), make_run()]
    for run in runs:
        train_here(run)
    first, second = (read_json(run.done) for run in runs)
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["metrics"] == second["metrics"]


def test_a_run_stopped_and_resumed_ends_with_the_same_weights(make_run, train_here):
    straight, stopped = make_run("epochs=4"), make_run("epochs=4")
    train_here(straight)
    stopped.preempt.touch()
    for _ in range(3):
        assert train_here(stopped) == EXIT_PREEMPTED
        assert not stopped.done.exists()
    stopped.preempt.unlink()
    assert train_here(stopped) == 0
    one, other = read_json(straight.done), read_json(stopped.done)
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["metrics"] == other["metrics"] and one["best"] == other["best"]
    assert [row["epoch"] for row in read_json_lines(stopped.metrics)] == [1, 2, 3, 4]


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(make_run, train_here):
    run = make_run("optim.lr=1e30", "format=fp32", "aps=false", "epochs=5")
    assert train_here(run) == 0
    done = read_json(run.done)
    assert done["status"] == "diverged"
    assert done["metrics"]["train_loss"] is None
    assert 0 <= done["metrics"]["test_accuracy"] <= 1
    assert len(list(read_json_lines(run.metrics))) < 5


def test_fp32_with_one_worker_is_plain_pytorch(make_run, train_here):
    """The loss of every epoch equals that of an ordinary script to float32 rounding: the mean of 22 losses of
    64 samples each, so a few units in the last place of numbers near 1."""
    run = make_run("format=fp32", "aps=false", "world_size=1", "batch_size=64", "epochs=3")
    train_here(run)
    assert [row["train_loss"] for row in read_json_lines(run.metrics)] == pytest.approx(
        plain_pytorch(), rel=1e-5
    )


def plain_pytorch() -> list[float]:
    """What a user would have written; the seeds alone are cpdrun's."""
    data = Digits(test_fraction=0.2)
    torch.manual_seed(derived_seed("weights", 0))
    model = ConvNet(in_channels=1, num_classes=10, width=4, dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = Cosine(warmup_epochs=1.0, warmup_start=0.1, final=0.0)
    epoch_losses = []
    for epoch in range(3):
        losses = []
        order = torch.randperm(len(data.train), generator=generator("order", 0, epoch))
        for s in range(len(data.train) // 64):
            optimizer.param_groups[0]["lr"] = 0.1 * schedule(epoch + s / 22, 3)
            x, y = data.train.fetch_batch(order[64 * s : 64 * (s + 1)])
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        epoch_losses.append(math.fsum(losses) / len(losses))
    return epoch_losses


def test_aps_saves_the_format_that_fails_without(make_run, train_here):
    with_aps, without = make_run("format=e3m0", "epochs=5"), make_run("format=e3m0", "aps=false", "epochs=5")
    train_here(with_aps)
    train_here(without)
    assert read_json(with_aps.done)["metrics"]["test_accuracy"] > 0.85
    assert read_json(without.done)["metrics"]["test_accuracy"] < 0.4


def test_a_part_that_cannot_be_made_is_named_with_status_2(make_run, train_here, capfd):
    assert train_here(make_run("world_size=1000", "batch_size=2")) == 2
    assert "world_size * batch_size = 2000" in capfd.readouterr().err


def test_clipping_and_label_smoothing_change_the_run_as_they_say(make_run, train_here):
    """A tiny clip_norm all but stops SGD; smoothing keeps the loss from going towards zero."""
    plain, clipped, smoothed = (
        make_run(typed) for typed in ("seed=0", "clip_norm=1e-6", "label_smoothing=0.5")
    )
    losses = []
    for run in (plain, clipped, smoothed):
        train_here(run)
        losses.append([row["train_loss"] for row in read_json_lines(run.metrics)])
    assert losses[0][1] < losses[0][0] - 0.3
    assert abs(losses[1][1] - losses[1][0]) < 0.1
    assert losses[2][1] > losses[0][1] + 0.3


def test_the_record_counts_the_bytes_of_a_mean_step_also_after_a_stop(make_run, train_here):
    """Two epochs, the last of them in fp32: half of the steps send four times as much."""
    hybrid, plain, full = (
        make_run("epochs=2", *typed)
        for typed in (("full_precision.last_epochs=1",), (), ("format=fp32", "aps=false"))
    )
    hybrid.preempt.touch()
    train_here(hybrid)
    hybrid.preempt.unlink()
    for run in (hybrid, plain, full):
        assert train_here(run) == 0
    mean, few, many = (
        read_json(run.done)["wire"]["bytes_per_step_real_worker"] for run in (hybrid, plain, full)
    )
    assert few < many and mean == round((few + many) / 2)


def test_the_record_counts_what_a_split_model_exchanges(make_run, train_here):
    """A perceptron 64-32-10 over 2 workers, a batch of 8 samples: see cpdrun/models/parallel/mlp.py."""
    split = (
        "model=mlp_parallel",
        "model.workers=2",
        "model.in_features=64",
        "model.width=32",
        "model.depth=1",
        "model.split=columns",
    )
    run = make_run(
        *split, "model.activations=e5m2", "model.errors=e4m3", "world_size=1", "batch_size=8", "epochs=1"
    )
    train_here(run)
    forward = 8 * 32 // 2 + 8 * 10 // 2  # each worker's half of either layer's outputs, a byte a value
    backward = 8 * 32  # dx of the second layer: 2 (M - 1) / M of all its values; the samples need none
    assert read_json(run.done)["wire"]["bytes_per_step_real_worker"] == forward + backward
