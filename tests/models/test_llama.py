"""The Llama against the one of Hugging Face's transformers, with the same weights."""

import pytest
import torch

from cpdrun.models.llama import Llama

THEIRS = {  # their names of ours
    "symbols": "model.embed_tokens",
    "blocks": "model.layers",
    "norm": "model.norm",
    "norm1": "input_layernorm",
    "norm2": "post_attention_layernorm",
    "attention": "self_attn",
    "project": "o_proj",
    "head": "lm_head",
} | {name: f"{name}_proj" for name in ("q", "k", "v", "gate", "up", "down")}


def llama(tied=True, **changed):
    torch.manual_seed(0)
    sizes = {"num_classes": 61, "context": 24, "layers": 3, "heads": 2, "width": 32, "hidden": None} | changed
    return Llama(**sizes, theta=1000.0, norm_eps=1e-5, tied=tied)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_transformers(tied):
    transformers = pytest.importorskip("transformers")
    ours = llama(tied)
    for parameter in ours.parameters():  # larger than at the start, so that every part matters
        torch.nn.init.normal_(parameter, std=0.3)
    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=96,  # 8/3 of 32 is 85.3
        num_hidden_layers=3,
        num_attention_heads=2,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=tied,
    )
    theirs = transformers.LlamaForCausalLM(config)
    weights = {
        ".".join(THEIRS.get(part, part) for part in name.split(".")): p
        for name, p in ours.state_dict().items()
    }
    theirs.load_state_dict(weights)
    tokens_BxT = torch.randint(61, (4, 24))
    with torch.no_grad():
        logits_BxTxV = theirs(tokens_BxT).logits
        # some thousand float32 operations one after the other, on logits of size 10
        torch.testing.assert_close(ours(tokens_BxT).transpose(1, 2), logits_BxTxV, rtol=1e-4, atol=1e-4)


def test_sizes_are_those_of_the_yaml_and_the_first_loss_is_that_of_guessing():
    sizes = {"num_classes": 256, "context": 128}
    small = llama(**sizes, layers=3, heads=3, width=96)
    counts = [sum(p.numel() for p in m.parameters()) for m in (small, llama(**sizes, width=128, layers=4))]
    assert [round(count, -4) for count in counts] == [360_000, 840_000]
    tokens_BxT = torch.randint(256, (4, 128))
    loss = torch.nn.functional.cross_entropy(small(tokens_BxT[:, :-1]), tokens_BxT[:, 1:]).item()
    assert loss == pytest.approx(5.545, abs=0.1)  # ln 256
    stds = {name: p.std().item() for name, p in small.named_parameters() if p.dim() > 1}
    for name, std in stds.items():
        into_residual = name.endswith(("project.weight", "down.weight"))
        assert std == pytest.approx(0.02 / (6**0.5 if into_residual else 1), rel=0.05), name


def test_settings_that_do_not_fit_are_refused():
    for key in ("layers", "heads", "width", "hidden"):
        with pytest.raises(ValueError, match=rf"model\.{key} must be a whole number, at least 1, not 0"):
            llama(**{key: 0})
    with pytest.raises(
        ValueError, match=r"model\.heads must divide model\.width = 32 into even parts.*; 5 does"
    ):
        llama(heads=5)
    with pytest.raises(ValueError, match=r"texts of 25 tokens \(data\.context\) .* 24 positions"):
        llama()(torch.zeros(1, 25, dtype=torch.int64))
