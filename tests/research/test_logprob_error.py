"""Test the measurement of log-probability errors on a tiny language model."""

import copy
import gzip
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny_llama

pytest.importorskip("transformers", reason="the script measures models of transformers")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts" / "research" / "formats")
    return importlib.import_module("logprob_error")


@pytest.fixture
def model() -> torch.nn.Module:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    return tiny_llama(96, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.1, **sizes).eval()


def test_fewer_bits_have_larger_errors(
    script: Any, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ("fp16_mixed", "bf16", "mxfp8", "nvfp4")
    monkeypatch.setattr(script, "RECIPES", {name: script.RECIPES[name] for name in chosen})
    prompts = script.random_prompts(96, prompts=8, tokens=64)
    with torch.inference_mode():
        rows = script.measure_all(lambda: copy.deepcopy(model), {"random tokens": prompts})
    error = rows.set_index(["arithmetic", "name", "head"])["rms_relative"].to_dict()
    fp16, bf16, mxfp8, nvfp4 = (error["recipe", name, "own"] for name in chosen)
    assert 0 < 4 * fp16 < bf16 < mxfp8 / 4 < nvfp4 / 4
    assert bf16 < error["cast", "bf16", "own"]
    assert error["recipe", "mxfp8", "fp32"] < mxfp8
    assert error["recipe", "mxfp8", "fp32"] == pytest.approx(error["recipe", "mxfp8", "bf16"], rel=0.1)
    assert ("recipe", "bf16", "bf16") not in error
    assert (rows["low"] <= rows["rms_relative"]).all() and (rows["rms_relative"] <= rows["high"]).all()
    assert (rows["prompts"] == 8).all() and (rows["tokens"] == 8 * 63).all()
    text = script.as_markdown(rows, "header")
    assert "| cast to fp16 |" in text and "| `nvfp4` |" in text and "1.048%" in text
    assert re.search(r"\| `bf16` \| [\d.]+% \([\d.]+ to [\d.]+\) \|  \| ", text), (
        "bf16 has no other 16-bit head"
    )


def test_the_cast_model_computes_what_torch_computes(script: Any, model: torch.nn.Module) -> None:
    """Both round the results of layers once, and differ in the order of float32 sums."""
    tokens = script.random_prompts(96, prompts=1, tokens=32)[0]
    with torch.inference_mode():
        variant = script.cast_variant(lambda: copy.deepcopy(model), "bf16")
        ours = variant.heads["own"](variant.body(tokens))
        theirs = copy.deepcopy(model).to(torch.bfloat16)(tokens).logits
        exact = model(tokens).logits
    assert ours.dtype == torch.bfloat16
    rms = (theirs - exact).square().mean().sqrt()
    assert (ours.float() - theirs.float()).square().mean().sqrt() < rms


def test_log_probabilities_are_those_of_the_next_tokens(script: Any, model: torch.nn.Module) -> None:
    tokens = script.random_prompts(96, prompts=1, tokens=8)[0]
    with torch.inference_mode():
        logits = model(tokens).logits
        loss = model(tokens, labels=tokens).loss
    assert -script.log_probabilities(logits, tokens).mean().item() == pytest.approx(loss.item(), rel=1e-6)


def test_equal_models_have_no_error(script: Any) -> None:
    reference = [torch.tensor([-1.0, -2.0]), torch.tensor([-3.0, -4.0])]
    found = script.summarize([torch.zeros(2), torch.zeros(2)], reference)
    assert found["rms_relative"] == found["low"] == found["high"] == 0
    found = script.summarize([torch.tensor([0.1, 0.0]), torch.tensor([0.0, 0.3])], reference)
    assert found["rms_relative"] == pytest.approx((0.1 / 30) ** 0.5)
    assert found["rms_nats"] == pytest.approx((0.1 / 4) ** 0.5)
    assert found["largest_nats"] == pytest.approx(0.3)


PROSE = (
    "The port of a bus is a logical bridge. It has one\ndriver, and the driver has {} services of its own."
)


def test_prompts_are_prose_of_different_files(script: Any, tmp_path: Path) -> None:
    text = (
        "=====\nTitle\n=====\n\n"
        + PROSE.format("many")
        + "\n\n- a list item\n\n\tcode();\n\n"
        + PROSE.format("few")
    )
    expected = " ".join(PROSE.format("many").split()) + "\n\n" + " ".join(PROSE.format("few").split())
    assert script.read_prose(text) == expected
    (tmp_path / "translations").mkdir()
    (tmp_path / "short.rst").write_text(PROSE.format("no"))
    for i in range(3):
        for folder in (tmp_path, tmp_path / "translations"):
            with gzip.open(folder / f"{i}.rst.gz", "wt") as file:
                file.write(f"{text}\n\n{PROSE.format(i)}")

    def tokenizer(text: str) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}

    prompts = script.read_prompts(tmp_path, tokenizer, prompts=3, tokens=60)
    assert [tuple(prompt.shape) for prompt in prompts] == [(1, 60)] * 3
    with pytest.raises(ValueError, match="contains 3 files with 60 tokens of prose, but 4 are needed"):
        script.read_prompts(tmp_path, tokenizer, prompts=4, tokens=60)
