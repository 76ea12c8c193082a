"""data=text_table and data=text_files: tables and text files as tokens of a pretrained model's tokenizer."""

import hashlib
import json
import socket
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from torch import nn

import cpdrun.conf
from cpdrun.comm.workers import Workers
from cpdrun.config.errors import ConfigError
from cpdrun.data.base import DataError
from cpdrun.data.text.text_files import TextFiles
from cpdrun.data.text.text_table import TextTable
from cpdrun.data.text.tokenizer import load_tokenizer
from cpdrun.hub import find_hub_problem
from cpdrun.sweep import plan
from cpdrun.tasks.classification import Classification
from cpdrun.train.batches import Batches
from cpdrun.train.build import build
from cpdrun.train.learners.emulated_workers import SharedModel
from cpdrun.train.learners.gradients import BatchedGradients, ChunkedGradients, ExactGradients, Objective

pytest.importorskip("transformers")

EOS = "<|endoftext|>"
TEXTS = ["the cat sat", "a dog", "the dog ran to the cat on a mat", "cat", "dogs ran", "mat"]
LABELS = ["cat", "dog", "dog", "cat", "dog", "cat"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    """Bytes and a few merged tokens, as in GPT-2: with an end-of-text token and without a padding token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=270, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, model_max_length=8)
    fast.save_pretrained(folder)
    return folder


def settings(name, **changed):
    """The arguments of conf/data/NAME.yaml."""
    spec = yaml.safe_load((Path(cpdrun.conf.__file__).with_name("data") / f"{name}.yaml").read_text())
    return {key: value for key, value in spec.items() if key not in ("defaults", "_target_")} | changed


@pytest.fixture
def make(tokenizer_dir, tmp_path):
    """make(test=..., ...) -> TextTable. By default, TEXTS are the training set and the test set."""

    def write_and_read(**changed):
        usual = {"train": csv(tmp_path / "train.csv"), "tokenizer": str(tokenizer_dir), "pad_token": EOS}
        usual["test"] = None if "dataset" in changed else usual["train"]
        return TextTable(**settings("text_table", **usual | changed))

    return write_and_read


def csv(path, texts=TEXTS, labels=LABELS, **columns):
    pd.DataFrame({"text": texts, "label": labels, **columns}).to_csv(path, index=False)
    return str(path)


def decoded(data, split="train"):
    tokenizer, texts = load_tokenizer(data.tokenizer), []
    for i in range(len(getattr(data, split))):
        inputs, _ = getattr(data, split)[i]
        texts.append(tokenizer.decode(inputs["input_ids"]))
    return texts


def test_a_batch_is_filled_up_to_its_longest_text(make, tokenizer_dir):
    train = make().train
    inputs, y = train.fetch_batch(torch.tensor([0, 1, 3]))
    assert {value.dtype for value in (*inputs.values(), y)} == {torch.int64}
    assert y.tolist() == [0, 1, 0]
    lengths = inputs["attention_mask"].sum(1)
    tokenizer = load_tokenizer(str(tokenizer_dir))
    assert inputs["input_ids"].shape == (3, lengths.max())
    for row, length, text in zip(inputs["input_ids"], lengths, ("the cat sat", "a dog", "cat"), strict=True):
        assert tokenizer.decode(row[:length]) == text
        assert (row[length:] == tokenizer.eos_token_id).all()
    single, label = train[3]
    assert torch.equal(single["input_ids"], inputs["input_ids"][2, : lengths[2]]) and label == 0


def test_facts_describe_the_table(make):
    data = make()
    assert (data.num_classes, data.label_names, data.context) == (2, ["cat", "dog"], 128)
    assert data.train.y_N.tolist() == [0, 1, 1, 0, 1, 0]
    assert data.sha256 == make().sha256 and len(data.sha256) == 64


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json", "parquet", "csv.gz"])
def test_all_formats_hold_the_same_table(make, tmp_path, suffix):
    table, path = pd.DataFrame({"text": [*TEXTS, "NA"], "label": [*LABELS, "cat"]}), tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        table.to_parquet(path)
    elif suffix.startswith("js"):
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    both = [csv(tmp_path / "a.csv"), csv(tmp_path / "b.csv", ["NA"], ["cat"])]
    assert make(train=str(path)).sha256 == make(train=both).sha256


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([10, 9, 10, 9, 10, 9], ["9", "10"]),
        (["01", "1", "1", "01", "1", "1"], ["01", "1"]),
        ([True, False, True, False, True, False], ["0", "1"]),
        ([1.0, 0.0, 1.0, 0.0, -1.0, 0.0], ["-1", "0", "1"]),
    ],
)
def test_classes_are_sorted_labels(make, tmp_path, labels, names):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"text": TEXTS, "label": labels}).to_parquet(path)
    assert make(train=str(path), test=str(path)).label_names == names


def test_the_hashed_split_ignores_the_order_and_keeps_equal_texts_together(make, tmp_path):
    texts = [f"text {i % 40}" for i in range(80)]
    labels = ["ab"[i % 2] for i in range(80)]
    parts = []
    for order in (1, -1):
        path = csv(tmp_path / f"{order}.csv", texts[::order], labels[::order])
        data = make(train=path, test=None, test_fraction=0.25)
        sets = [
            [tuple(s[i][0]["input_ids"].tolist()) for i in range(len(s))] for s in (data.train, data.test)
        ]
        assert not {*sets[0]} & {*sets[1]} and len(sets[0]) + len(sets[1]) == 80
        parts.append([sorted(part) for part in sets])
    assert parts[0] == parts[1] and 8 <= len(parts[0][1]) <= 32


def test_the_hashed_split_divides_rows_that_were_chosen_by_their_digests(make, tmp_path):
    texts = sorted(map(str, range(1000)), key=lambda text: hashlib.sha256(text.encode()).digest())[:100]
    path = csv(tmp_path / "t.csv", texts, ["a", "b"] * 50)
    assert 10 <= len(make(train=path, test=None, test_fraction=0.25).test) <= 40


def test_several_columns_are_joined_by_a_newline(make, tmp_path):
    path = csv(tmp_path / "t.csv", title=[f"title {i}" for i in range(6)])
    joined = make(train=path, test=path, text=["title", "text"])
    written = csv(
        tmp_path / "u.csv", [f"title {i}\n{text}" for i, text in enumerate(TEXTS)], [f"{x}" for x in LABELS]
    )
    assert joined.sha256 == make(train=written, test=written).sha256


def test_longer_texts_are_an_error_or_are_cut(make):
    with pytest.raises(
        DataError, match=r"train\.csv, row 1: the text has 5 tokens, more than data\.context=4 "
    ):
        make(context=4)
    with pytest.raises(
        DataError, match=r"train\.csv, row \d: the text has 5 tokens, more than data\.context=4 "
    ):
        make(context=4, test=None, test_fraction=0.5)
    cut = make(context=4, truncate=True)
    inputs, _ = cut.train.fetch_batch(range(6))
    assert inputs["input_ids"].shape == (6, 4)


def test_texts_without_labels_are_packed(make, tokenizer_dir):
    data = make(label=None, context=5)
    x, y = data.train.fetch_batch(range(len(data.train)))
    assert torch.equal(x.flatten()[1:], y.flatten()[:-1])
    tokenizer = load_tokenizer(str(tokenizer_dir))
    text = EOS.join(TEXTS) + EOS
    assert text.startswith(tokenizer.decode(x.flatten()))
    predicted = tokenizer.decode(y.flatten(), skip_special_tokens=True)
    assert data.bytes_per_token == pytest.approx(len(predicted.encode()) / y.numel())
    assert not hasattr(data, "num_classes")


def write(path, text):
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train": None}, r"give the table with either data\.train=FILE or data\.dataset=NAME"),
        ({"dataset": "x"}, r"data\.train=FILE or"),
        ({"test_fraction": 1.5, "test": None}, r"data\.test_fraction must lie between 0 and 1, not 1\.5"),
        ({"text": []}, r"data\.text must name a column"),
        ({"context": 0}, r"data\.context must be at least 1"),
        ({"text": "texts"}, r"data\.text=texts: train\.csv has no such column \(did you mean 'text'\?\)\. It has"),
        ({"label": "class"}, r"data\.label=class: train\.csv has no such column\. It has text, label"),
        ({"pad_token": None}, r"no padding token\. Set data\.pad_token='<\|endoftext"),
        ({"pad_token": "[PAD]"}, r"data\.pad_token='\[PAD\]' is not a token of "),
        ({"tokenizer": None}, r"data\.tokenizer must be given"),
        ({"train": "nowhere.csv"}, r"data\.train: nowhere\.csv cannot be read: No such file"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_one_line(make, changed, message):
    with pytest.raises(DataError, match=message) as told:
        make(**({"train": None} if "dataset" in changed and changed.get("train") else {}) | changed)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", "x", r"a table must be a file that ends in \.csv, .*, not in \.txt"),
        ("t.csv", "", r"t\.csv is not a table in the format \.csv: No columns"),
        ("t.jsonl", "[1", r"is not a table in the format \.jsonl: line 1 is not a JSON object"),
        ("t.csv", "text,label\na,x\n,y\n", r"t\.csv, row 2: the column text is empty \(1 of 2 rows\)"),
        ("t.csv", "text,label\na,x\n  ,y\n", r"t\.csv, row 2: the column text is empty"),
        ("t.csv", "text,label\na,x\nb,\n", r"t\.csv, row 2: the column label is empty"),
        ("t.csv", "text,label\na,x\nb,x\n", r"data\.label=label: all training texts have the label x"),
        ("t.csv", "text,label\n", r"the train set of the table has no rows"),
        ("t.jsonl", '{"text": "a", "label": 1.5}\n', r"row 1: the column label has the label 1\.5, but"),
        ("t.jsonl", '{"text": null, "label": 1}\n', r"row 1: the column text is empty"),
    ],
)
def test_unusable_tables_are_one_line(make, tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=message) as told:
        make(train=path, test=path)
    assert "\n" not in str(told.value)


def test_a_label_that_only_the_test_set_has_is_an_error(make, tmp_path):
    test = csv(tmp_path / "test.csv", ["a cat", "an owl"], ["cat", "owl"])
    with pytest.raises(
        DataError, match=r"test\.csv, row 2: the label owl of the test set is not in .* cat, dog"
    ):
        make(test=test)


def test_a_folder_is_read_by_the_library_datasets(make, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "table"
    folder.mkdir()
    csv(folder / "train.csv")
    csv(folder / "test.csv", TEXTS[:2], LABELS[:2])
    here = make(train=None, dataset=str(folder))
    assert (len(here.train), len(here.test)) == (6, 2)
    assert here.sha256 == make(test=str(folder / "test.csv")).sha256
    assert here.path == str(folder)
    some = make(train=None, dataset=str(folder), train_split="train[:4]", test_split="train[4:]")
    assert (len(some.train), len(some.test)) == (4, 2)
    with pytest.raises(DataError, match=r"the split valid cannot be loaded: Unknown split .valid."):
        make(train=None, dataset=str(folder), test_split="valid")


@pytest.mark.parametrize("kind", ["tokenizer", "dataset"])
def test_a_name_on_the_hub_without_a_network_is_one_line(make, kind, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    changed = {"dataset": "some/name", "train": None} if kind == "dataset" else {"tokenizer": "some/name"}
    with pytest.raises(
        DataError, match=rf"data\.{kind}: some/name is neither a local folder nor in .* reached"
    ) as told:
        make(**changed)
    assert "\n" not in str(told.value)


def test_a_name_that_the_hub_does_not_allow_needs_no_network():
    assert find_hub_problem("a/b/c") == "a/b/c is neither a local folder nor a model on the Hugging Face hub"


@pytest.mark.parametrize(
    ("library", "changed"), [("transformers", {}), ("datasets", {"train": None, "dataset": "x"})]
)
def test_a_missing_library_is_named(make, monkeypatch, library, changed):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DataError, match=rf"needs the library {library}: pip install 'cpdrun\[hf\]'"):
        make(**changed)


def test_a_damaged_tokenizer_is_one_line(make, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"data\.tokenizer=.* cannot be loaded: ") as told:
        make(tokenizer=str(tmp_path))
    assert "\n" not in str(told.value)


class Mean(nn.Module):
    """The mean of the embeddings of the tokens, which does not depend on the filling."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(300, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1).float()
        return self.head((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))


@pytest.mark.parametrize("emulation", [BatchedGradients, ChunkedGradients])
def test_workers_with_texts_of_different_lengths_are_computed_in_one_pass(make, emulation):
    def gradients(kind):
        batches = Batches(make(), 0, torch.device("cpu"), loaders=0, channels_last=False)
        return kind(Objective(SharedModel(Mean(), Workers(3)), batches, Classification()))(index_NxB, 0)

    index_NxB = torch.arange(6).view(3, 2)
    losses, expected = gradients(ExactGradients)
    losses_b, found = gradients(emulation)
    # float32 sums of at most ten terms in another order
    torch.testing.assert_close(losses_b, losses, rtol=2e-6, atol=0)
    for g, g_b in zip(expected, found, strict=True):
        torch.testing.assert_close(g_b, g, rtol=0, atol=1e-6)


def text_files(folder, tokenizer_dir, **changed):
    usual = {"data_dir": str(folder), "tokenizer": str(tokenizer_dir), "context": 8, "test_fraction": 0.25}
    return TextFiles(**settings("text_files", **usual | changed))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    for i in range(20):
        (folder / ("more" if i % 2 else ".") / f"{i}.txt").write_text(f"the cat {i} sat\non a mat {i * i}")
    (folder / "copy.txt").write_text((folder / "0.txt").read_text())
    (folder / "left.md").write_text("not read")
    return folder


def test_documents_of_a_folder_end_with_the_end_of_text_token(folder, tokenizer_dir, capfd):
    data = text_files(folder, tokenizer_dir)
    tokenizer = load_tokenizer(str(tokenizer_dir))
    text = tokenizer.decode(torch.cat([data.train.tokens_N, data.test.tokens_N]))
    documents = text.split(EOS)
    assert documents.pop() == "" and len(documents) in (20, 21), "one may be divided between the sets"
    assert sorted("".join(documents)) == sorted(
        "".join(f"the cat {i} sat\non a mat {i * i}" for i in range(20))
    )
    x, y = data.test.fetch_batch(range(len(data.test)))
    assert x.dtype == torch.int64 and torch.equal(x.flatten()[1:], y.flatten()[:-1])
    predicted = tokenizer.decode(y.flatten(), skip_special_tokens=True)
    assert data.bytes_per_token == pytest.approx(len(predicted) / y.numel())
    assert not hasattr(data, "num_classes") and data.context == 8
    assert "longer than" not in capfd.readouterr().err, "the library's warning about long texts"


def test_sizes_can_be_limited(folder, tokenizer_dir):
    whole = text_files(folder, tokenizer_dir)
    few = text_files(folder, tokenizer_dir, train_samples=5, test_samples=2)
    assert (len(few.train), len(few.test)) == (5, 2) and few.sha256 != whole.sha256
    assert torch.equal(few.test.tokens_N, whole.test.tokens_N[: 2 * 8 + 1])
    less = text_files(folder, tokenizer_dir, text_bytes=300)
    assert 0 < len(less.train) < len(whole.train)
    cut = len(less.train.tokens_N) - 2
    assert torch.equal(less.train.tokens_N[:cut], whole.train.tokens_N[:cut])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"files": ["*.rst"]}, r"data\.data_dir=.* has no file that matches data\.files: \*\.rst"),
        ({"test_samples": 0}, r"data\.test_samples must be at least 1, or null for all, not 0"),
        ({"context": 10**6}, r"data\.context=1000000 needs a text of at least"),
        (
            {"tokenizer": "no/such/name"},
            r"data\.tokenizer: no/such/name is neither a local folder nor a model",
        ),
    ],
)
def test_settings_of_text_files_that_do_not_fit_are_one_line(folder, tokenizer_dir, changed, message):
    with pytest.raises(DataError, match=message):
        text_files(folder, tokenizer_dir, **changed)


def test_a_part_of_a_split_can_be_typed():
    run = planned("data.dataset=some/name", 'data.train_split="train[:2000]"', "data.tokenizer=some/name")
    assert run.config["data"]["train_split"] == "train[:2000]"


def planned(*typed):
    (run,) = plan(["data=text_table", "format=fp32", "aps=false", *typed]).runs
    return run


def test_the_name_of_a_run_depends_on_the_contents_of_table_and_tokenizer(
    tokenizer_dir, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    one, other = csv(tmp_path / "one.csv"), csv(tmp_path / "other.csv", TEXTS[::-1], LABELS)
    (tmp_path / "moved").symlink_to(tokenizer_dir)
    first = planned(f"data.train={one}", f"data.tokenizer={tokenizer_dir}")
    Path("copy.csv").write_bytes(Path(one).read_bytes())
    moved = planned("data.train=copy.csv", "data.tokenizer=moved")
    assert moved.config["data"]["train"] == str(tmp_path / "copy.csv")
    assert moved.config["data"]["tokenizer"] == str(tmp_path / "moved")
    assert first.name == moved.name
    names = [
        planned(f"data.train={other}", f"data.tokenizer={tokenizer_dir}"),
        planned(f"data.train=[{one}]", f"data.test={other}", f"data.tokenizer={tokenizer_dir}"),
        planned(f"data.train={one}", "data.tokenizer=some/name"),
        planned("data.dataset=some/name", f"data.tokenizer={tokenizer_dir}"),
    ]
    assert len({first.name, *(run.name for run in names)}) == 5
    Path("tok").mkdir()
    for file in tokenizer_dir.iterdir():
        content = json.loads(file.read_text())
        Path("tok", file.name).write_text(json.dumps({**content, "changed": True}))
    assert planned(f"data.train={one}", "data.tokenizer=tok").name != first.name
    Path("copy.csv").write_text("text,label\na,b\n")
    with pytest.raises(ConfigError, match=r"data\.files_sha256=.* have changed since the run was planned"):
        build(moved.config, torch.device("cpu"))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ("data.train=nowhere.csv",),
            r"data\.train: /.*/nowhere\.csv cannot be read: No such file or directory",
        ),
        (("data.train=.",), r"data\.train=/.* is a folder\. Name its files"),
        (("data.train=3",), r"data\.train=3: must be a file, or a list of files"),
        (("data.tokenizer=./nowhere",), r"data\.tokenizer=\./nowhere: /.*/nowhere is not a folder"),
        (("data.label=null",), r"data\.label=null: .* Type task=next_token"),
        (("task=next_token",), r"task=next_token does not use the labels .* Type data\.label=null"),
        (("data=text_files",), r"data\.data_dir must be given"),
    ],
)
def test_wrong_settings_are_found_before_anything_is_started(typed, message):
    with pytest.raises(ConfigError, match=message):
        planned(*typed)
