"""Fine-tuning a pretrained model gives the weights of a plain training loop with the library transformers."""

import csv
import shutil

import pytest
import torch
import torch.nn.functional as F
import yaml
from tiny_models import tiny_bert

from cpdrun.config.errors import ConfigError
from cpdrun.record import RunDir, read_json, write_text
from cpdrun.sweep import plan
from cpdrun.train.build import build, build_data
from cpdrun.train.instantiate import part
from cpdrun.train.rank import run_rank
from cpdrun.train.seeds import derived_seed, generator

transformers = pytest.importorskip("transformers")

NOUNS, GOOD, BAD = (
    ("film", "book", "meal", "hotel"),
    ("great", "lovely", "superb"),
    ("awful", "boring", "poor"),
)
STEPS, BATCH, SEED, LR = 6, 8, 3, 2e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tiny pretrained BERT, its tokenizer, and a table of reviews."""
    folder = tmp_path_factory.mktemp("pretrained")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "was", "and", *NOUNS, *GOOD, *BAD]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    tiny_bert(len(words)).save_pretrained(folder)
    with (folder / "reviews.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["comment", "sentiment"])
        for i in range(80):
            adjectives = GOOD if i % 2 else BAD
            words = f"The {NOUNS[i % 4]} was {adjectives[i % 3]}", f"and {adjectives[i % 5 % 3]}"
            writer.writerow([" ".join(words[: 1 + i % 3 // 2]) + f" the {NOUNS[i // 20]}", "bg"[i % 2]])
    return folder


@pytest.fixture
def train(folder, tmp_path, monkeypatch):
    """train("recipe=bf16", ...) -> the run and its config, trained in this process."""
    for name in ("RANK", "WORLD_SIZE", "CPDRUN_ATTEMPT_DIR"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()

    def train_run(*typed):
        settings = (
            *(
                "model=huggingface",
                f"model.name={folder}",
                "data=text_table",
                f"data.train={folder}/reviews.csv",
            ),
            *("data.text=comment", "data.label=sentiment", "data.context=16", "data.test_fraction=0.3"),
            "optim=adamw",
            *(f"optim.lr={LR}", "world_size=1", f"batch_size={BATCH}", f"max_steps={STEPS}", "epochs=1"),
            *(f"seed={SEED}", "schedule=poly", "schedule.power=1.0", "device=cpu", f"results_dir={tmp_path}"),
        )
        (planned,) = plan([*settings, *typed]).runs
        run = RunDir(tmp_path / planned.name)
        run.path.mkdir()
        write_text(run.config, yaml.safe_dump(planned.config))
        assert run_rank(str(run.path)) == 0
        return run, planned.config

    yield train_run
    torch.set_num_threads(threads)


def plain_loop(folder, config, autocast):
    """Fine-tune with transformers alone: the same rows, order of rows, seeds of dropout, and learning rates."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    data = build_data(config)  # only for the split into training and test rows
    torch.manual_seed(derived_seed("weights", SEED))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    order = part("partition", config["partition"]).deal(
        data.train, 1, BATCH, seed=SEED, epoch=0, draws=generator
    )
    losses = []
    for step, indices in enumerate(order[:STEPS, 0]):
        texts = [tokenizer.decode(data.train[i][0]["input_ids"], skip_special_tokens=True) for i in indices]
        labels = torch.stack([data.train[i][1] for i in indices])
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        torch.manual_seed(derived_seed("dropout", SEED, step, 0))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        loss = F.cross_entropy(logits.float(), labels)
        for group in optimizer.param_groups:
            group["lr"] = LR * (1 - step / STEPS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, sum(losses) / STEPS


def weights(run):
    return torch.load(run.checkpoint, weights_only=True)["model"]


def test_fp32_gives_the_weights_of_a_plain_loop_with_transformers(folder, train):
    run, config = train()
    model, train_loss = plain_loop(folder, config, autocast=False)
    expected = model.state_dict()
    trained = weights(run)
    assert set(trained) == set(expected)
    assert all(torch.equal(trained[name], expected[name]) for name in expected)
    assert read_json(run.done)["metrics"]["train_loss"] == pytest.approx(train_loss, abs=1e-12)


def test_bf16_is_close_to_autocast(folder, train):
    """The recipe rounds products only. Autocast also computes GELU in bf16, so the bits differ.

    The difference of the trained weights was 4% of their change in norm, and the losses differed by 6e-6.
    """
    run, config = train("recipe=bf16")
    model, train_loss = plain_loop(folder, config, autocast=True)
    expected, trained = model.state_dict(), weights(run)
    torch.manual_seed(derived_seed("weights", SEED))
    start = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2).state_dict()
    difference = torch.cat([(trained[name] - expected[name]).flatten() for name in expected])
    change = torch.cat([(expected[name] - start[name]).flatten() for name in expected])
    assert difference.norm() < 0.1 * change.norm()
    assert read_json(run.done)["metrics"]["train_loss"] == pytest.approx(train_loss, rel=2e-3)


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
def test_gradient_checkpointing_does_not_change_the_weights_under_a_recipe(train, recipe):
    runs = [
        train(f"recipe={recipe}", "max_steps=2", f"model.gradient_checkpointing={on}")[0]
        for on in ("false", "true")
    ]
    stored, computed_again = (weights(run) for run in runs)
    assert all(torch.equal(stored[name], computed_again[name]) for name in stored)


def test_lora_leaves_the_pretrained_weights_unchanged(folder, train):
    run, _ = train("model.lora.rank=2", "max_steps=2")
    trained = weights(run)
    pretrained = transformers.AutoModel.from_pretrained(folder).state_dict()
    assert any("lora_B" in name and value.any() for name, value in trained.items())  # initially zero
    for name, value in pretrained.items():
        (found,) = (v for n, v in trained.items() if n.replace(".base_layer", "").endswith(f"bert.{name}"))
        assert torch.equal(found, value), name


def test_weights_in_bf16_are_trained_in_bf16(folder, train):
    run, _ = train("model.dtype=bf16", "max_steps=2")
    trained = weights(run)
    assert {value.dtype for value in trained.values() if value.is_floating_point()} == {torch.bfloat16}
    pretrained = transformers.AutoModel.from_pretrained(folder).state_dict()
    name = "encoder.layer.0.output.dense.weight"
    assert not torch.equal(trained[f"bert.{name}"], pretrained[name].bfloat16())


def test_a_checkpoint_that_changed_after_planning_is_an_error(folder, tmp_path, train, monkeypatch):
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    _, config = train(f"model.name={moved}", f"data.tokenizer={folder}", "max_steps=1")
    build(config, torch.device("cpu"))
    tiny_bert(17, initializer_range=0.1).save_pretrained(moved)
    with pytest.raises(ConfigError, match=r"model\.sha256=.* have changed since the run was planned"):
        build(config, torch.device("cpu"))
