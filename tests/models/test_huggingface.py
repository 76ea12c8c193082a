"""Pretrained models of the library transformers: heads, adapters, errors, and equality with a plain training loop."""

from pathlib import Path

import pytest
import torch
import yaml
from tiny_models import tiny_bert, tiny_llama

import cpdrun.conf
from cpdrun.models.huggingface import _print_once, load_pretrained

pytest.importorskip("transformers")


def load(name, lora=None, **changed):
    """Load a model with the settings of conf/model/huggingface.yaml."""
    settings = yaml.safe_load(
        Path(cpdrun.conf.__file__).with_name("model").joinpath("huggingface.yaml").read_text()
    )
    del settings["_target_"]
    return load_pretrained(**settings | {"name": name, "lora": settings["lora"] | (lora or {})} | changed)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """The folder of a tiny BERT without a head."""
    folder = tmp_path_factory.mktemp("bert")
    tiny_bert(64).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """The folder of a tiny Llama that predicts the next token."""
    folder = tmp_path_factory.mktemp("llama")
    tiny_llama(64).save_pretrained(folder)
    return str(folder)


def test_a_model_gets_the_head_that_its_data_needs(bert, llama, capsys):
    tokens = torch.arange(8).reshape(2, 4)
    _print_once.cache_clear()
    classifier = load(bert, num_classes=3)
    assert classifier(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.shape == (2, 3)
    assert "not in the checkpoint, so random: classifier.bias, classifier.weight" in capsys.readouterr().err
    assert load(llama)(tokens).logits.shape == (2, 4, 64)
    assert capsys.readouterr() == ("", "")


def test_the_pretrained_weights_do_not_depend_on_the_seed_and_the_new_head_does(bert):
    def loaded(seed):
        torch.manual_seed(seed)
        return load(bert, num_classes=3).state_dict()

    first, second = loaded(0), loaded(1)
    different = {name for name in first if not torch.equal(first[name], second[name])}
    assert different == {"classifier.weight"}


def test_lora_trains_adapters_and_a_new_head_only(bert):
    model = load(bert, num_classes=3, lora={"rank": 2, "target_modules": ["query"]})
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert (
        len([name for name in trained if "query.lora_" in name]) == 4
    )  # two matrices for each of two layers
    assert {name.split(".")[-3] for name in trained if "lora" not in name} == {"modules_to_save"}


def test_bf16_weights_and_gradient_checkpointing(llama):
    tokens = torch.arange(8).reshape(2, 4)
    model = load(llama, dtype="bf16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}

    def gradients(**options):
        model = load(llama, **options).train()
        model(tokens).logits.logsumexp(-1).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    for stored, computed_again in zip(gradients(), gradients(gradient_checkpointing=True), strict=True):
        assert torch.equal(stored, computed_again)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head": "regression"}, "model.head must be classification or next_token, not regression"),
        ({"dtype": "fp16"}, "model.dtype must be fp32 or bf16, not fp16"),
        ({"head": "classification"}, "needs data with classes, such as data=text_table"),
        ({"context": 33, "num_classes": 2}, r"data.context=33 is too long: .* reads at most 32 tokens"),
        ({"lora": {"rank": 0}, "num_classes": 2}, "model.lora.rank must be a whole number, at least 1"),
        ({"lora": {"rank": 2, "target_modules": ["nothing"]}, "num_classes": 2}, "model.lora.target_modules"),
        ({}, "is not a pretrained model for next_token: its checkpoint lacks"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(bert, arguments, message):
    with pytest.raises(ValueError, match=message):
        load(bert, **arguments)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=rf"model.name={tmp_path} cannot be loaded: .*config.json"):
        load(str(tmp_path), num_classes=2)


def test_a_name_that_is_no_model_is_named_without_a_network():
    with pytest.raises(
        ValueError, match=r"model.name=no/such/model cannot be loaded: .* neither a local folder nor"
    ):
        load("no/such/model", num_classes=2)
