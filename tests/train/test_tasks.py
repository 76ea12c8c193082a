"""Batches of any form and tasks of any kind, frozen parameters, and the record of a task's metrics."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import nn

from cpdrun.record import read_json, write_text
from cpdrun.record.measure import ERROR
from cpdrun.sweep import plan
from cpdrun.tasks.regression import Regression
from cpdrun.train.preflight.check import check
from cpdrun.train.rank import run_rank

HERE = __name__
SMALL = ("world_size=4", "batch_size=4", "epochs=1", "optim.lr=0.05")


class Sentences:
    """Samples that are mappings, as in Hugging Face datasets: sequences that count up from a random start."""

    vocab_size, length = 11, 6

    def __init__(self):
        start = torch.randint(0, 11, (48, 1), generator=torch.Generator().manual_seed(0))
        tokens = (start + torch.arange(self.length)) % self.vocab_size
        samples = [{"input_ids": t, "attention_mask": torch.ones_like(t), "labels": t} for t in tokens]
        self.train, self.test = samples[16:], samples[:16]


class CausalModel(nn.Module):
    """The calling convention of Hugging Face: tensors by name, an object with loss and logits (B, T, V)."""

    def __init__(self, vocab_size: int, length: int):
        super().__init__()
        assert length == 6, "a model can ask for any attribute of the data"
        self.embedding, self.head = nn.Embedding(vocab_size, 8), nn.Linear(8, vocab_size)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.embedding(input_ids) * attention_mask.unsqueeze(2))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)


class Pairs:
    """Two inputs and a number to predict."""

    def __init__(self):
        a, b = torch.randn(2, 48, 3, generator=torch.Generator().manual_seed(0))
        samples = [((x, y), (x * y).sum(0, keepdim=True)) for x, y in zip(a, b, strict=True)]
        self.train, self.test = samples[16:], samples[:16]


class TwoArms(nn.Module):
    """The second arm is frozen."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 8), nn.Linear(3, 8), nn.Linear(8, 1)
        self.second.requires_grad_(False)

    def forward(self, a, b):
        return self.head(self.first(a) * self.second(b))


class WorstCase(Regression):
    """A loss and a metric written by a user."""

    measures = Regression.measures | {"root": ERROR}
    judged_by = "root"

    def loss(self, outputs, batch):
        return super().loss(outputs, batch) * 2

    def metrics(self, totals):
        metrics = super().metrics(totals)
        return metrics | {"root": metrics["loss"] ** 0.5}


TEXT = (f"model._target_={HERE}.CausalModel", f"data._target_={HERE}.Sentences")
NUMBERS = (f"model._target_={HERE}.TwoArms", f"data._target_={HERE}.Pairs")


@pytest.fixture
def trained(tmp_path):
    """trained(*typed) -> the run's directory and what its done.json says."""

    def train(*typed):
        (run,) = plan(["model=custom", "data=custom", *SMALL, *typed, f"results_dir={tmp_path}"]).runs
        path = tmp_path / run.name
        path.mkdir()
        write_text(path / "config.yaml", yaml.safe_dump(run.config))
        assert run_rank(str(path)) == 0
        return path, read_json(path / "done.json")

    return train


@pytest.mark.parametrize("how", [(), ("sync=gossip_dpsgd",)])
def test_a_model_in_hugging_faces_convention_is_trained(trained, how):
    exact, batched, own = (
        trained(*TEXT, *how, *typed)[1]
        for typed in (("task=next_token",), ("task=next_token", "emulation=batched"), ("task=model_loss",))
    )
    assert exact["judged_by"] == "test_perplexity" and exact["weights_sha256"] == own["weights_sha256"]
    for name in ("train_loss", "test_loss"):
        assert exact["metrics"][name] == pytest.approx(own["metrics"][name], rel=1e-6), "of equal batches"
        assert exact["metrics"][name] == pytest.approx(batched["metrics"][name], rel=1e-5)
    assert exact["metrics"]["test_loss"] < 2.4 and "num_classes" not in exact["metrics"]


@pytest.mark.parametrize("how", [(), ("emulation=batched",), ("sync=gossip_dpsgd",)])
def test_frozen_parameters_are_neither_changed_nor_exchanged_but_count_as_memory(trained, how):
    path, done = trained(*NUMBERS, "task=regression", "optim.momentum=0.9", "format=e5m2", *how)
    state = torch.load(path / "ckpt" / "last.pt", weights_only=True)
    if how == ("sync=gossip_dpsgd",):
        assert len(state["workers"][0]["weights"]) == 4, "the other two are as the seed has them"
    else:
        (run,) = plan(["model=custom", "data=custom", *SMALL, *NUMBERS, "task=regression"]).runs
        from cpdrun.train.build import build_data, build_model

        at_first = build_model(run.config, build_data(run.config)).state_dict()
        moved = {name for name, value in state["model"].items() if not torch.equal(value, at_first[name])}
        assert moved == {"first.weight", "first.bias", "head.weight", "head.bias"}
    trained_values, all_values = 3 * 8 + 8 + 8 + 1, 2 * (3 * 8 + 8) + 8 + 1
    assert done["memory"]["model_bytes"] == 4 * all_values
    if not how:
        assert done["wire"]["bytes_per_step_real_worker"] < 2 * 4 * trained_values


def test_the_metrics_of_a_users_task_are_recorded_with_their_directions(trained):
    _, done = trained(*NUMBERS, "task=custom", f"task._target_={HERE}.WorstCase")
    assert done["judged_by"] == done["best"]["metric"] == "test_root" and done["best"]["epoch"] == 1
    assert done["metrics"]["test_root"] == pytest.approx(done["metrics"]["test_loss"] ** 0.5)
    assert not done["measures"]["test_root"]["higher_is_better"]


def test_text_is_judged_by_bits_per_byte(make_run, train_here, tmp_path):
    pytest.importorskip("tokenizers")
    data = ("data=pydoc_text", "data.text_bytes=12000", "data.context=32", "data.bpe_vocab=300")
    model = (
        "model=llama",
        "model.layers=2",
        "model.heads=2",
        "model.width=32",
        "optim=muon",
        "schedule=cosine",
    )
    run = make_run(*data, f"data.cache_dir={tmp_path}", *model, "world_size=4", "batch_size=2", "epochs=1")
    assert train_here(run) == 0
    done = read_json(run.done)
    assert done["judged_by"] == "test_bits_per_byte" and done["num_classes"] == 300
    assert done["measures"]["test_loss"] == {"higher_is_better": False, "shown": "nats", "of_samples": False}
    nats, bits = (done["metrics"][f"test_{name}"] for name in ("loss", "bits_per_byte"))
    assert nats < math.log(300)
    assert 1 < nats / math.log(2) / bits < 3  # bytes per token


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ((*NUMBERS,), "the targets of Pairs are float32 of shape (1, 1); the loss is cross-entropy"),
        (
            (*NUMBERS, "task=regression", "label_smoothing=0.1"),
            "label_smoothing=0.1: Regression does not smooth labels",
        ),
        (
            (*TEXT, "task=regression"),
            "the targets of Sentences are int64 of shape (1, 6); the loss is a squared",
        ),
        (("model=convnet", "data=digits", "task=model_loss"), "model: ConvNet gives no `loss`"),
    ],
)
def test_a_task_that_does_not_fit_is_an_error_before_the_start(typed, said):
    (run,) = plan(["model=custom", "data=custom", *SMALL, *typed]).runs
    (problem,) = check([run.config])["problems"]
    assert said in problem


def test_the_default_task_of_the_data_does_not_change_the_name_of_a_run():
    def name(*typed):
        (run,) = plan([*typed]).runs
        return run.name, run.config["task"]["_target_"].rpartition(".")[2]

    assert name("data=pydoc_text", "model=gpt")[1] == "NextToken"
    assert name("data=pydoc_text", "model=gpt") == name("data=pydoc_text", "model=gpt", "task=next_token")
    other, _ = name("data=pydoc_text", "model=gpt", "task=classification")
    assert other != name("data=pydoc_text", "model=gpt")[0]
    assert name("exp=fcn_bits_small", "format=fp32", "seed=0", "aps=false")[1] == "Segmentation"
