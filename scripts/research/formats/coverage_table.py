"""Measure the share of the multiply-accumulates that recipes round in known architectures.

    python scripts/research/formats/coverage_table.py [NAME ...] [--recipe nvfp4] [--output FILE.md]

The architectures come from the package transformers. The models are small and have random weights, so nothing is
downloaded. For each architecture, the script counts the multiply-accumulates of one forward and one backward pass in
training mode (custom_fp.recipe.coverage). It does so twice: with the recipe alone, and with `operations=True`. The last
column lists the products that stay in float32 with `operations=True`. If a model cannot be built or run, its row
contains the error. The exit status is 1 if any architecture fails, or if `operations=True` rounds less than 99% of its
multiply-accumulates.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import shlex
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import custom_fp
import torch
from custom_fp.recipe.coverage import Coverage, percent_text
from custom_fp.recipe.files import load
from torch import Tensor, nn

from cpdrun.record import write_text

BATCH, LENGTH, VOCABULARY = 2, 64, 256
SMALL = {  # small sizes for language models, whose configs share most of these settings
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 8,
}


def tokens() -> Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH))


def text() -> dict[str, Tensor]:
    return {"input_ids": tokens()}


def images(size: int = 64) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(BATCH, 3, size, size)}


Builder = Callable[[], tuple[nn.Module, dict[str, Tensor]]]


def causal(model_type: str, attention: str = "sdpa", **settings: Any) -> Builder:
    """Return a function that builds a causal language model and its inputs."""

    def build() -> tuple[nn.Module, dict[str, Tensor]]:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(model_type, **{**SMALL, **settings})
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention), text()

    return build


def named(
    kind: str, inputs: Callable[[], dict[str, Tensor]], attention: str = "sdpa", **settings: Any
) -> Builder:
    """Return a function that builds a model of the named transformers class, with these settings, and its inputs."""

    def build() -> tuple[nn.Module, dict[str, Tensor]]:
        import transformers

        model_class = getattr(transformers, kind)
        config = model_class.config_class(**settings)
        config._attn_implementation = attention
        return model_class(config), inputs()

    return build


def speech() -> dict[str, Tensor]:
    return {"input_features": torch.randn(BATCH, 16, 64), "decoder_input_ids": tokens()}


def text_to_text() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "decoder_input_ids": tokens()}


def images_and_text() -> dict[str, Tensor]:
    return images() | text()


MOE = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
ENCODER = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
ARCHITECTURES: Mapping[str, Builder] = {
    "Llama, sdpa": causal("llama"),
    "Llama, eager": causal("llama", "eager"),
    "Mixtral": causal("mixtral", num_local_experts=8, num_experts_per_tok=2),
    "Qwen3-MoE": causal("qwen3_moe", head_dim=16, **MOE),
    "DeepSeek-V3": causal(
        "deepseek_v3",
        num_key_value_heads=4,
        moe_intermediate_size=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
    ),
    "GPT-2": named("GPT2LMHeadModel", text, **GPT2),
    "GPT-NeoX": causal("gpt_neox"),
    "OPT": causal("opt", ffn_dim=128, word_embed_proj_dim=64),
    "Falcon": causal("falcon", alibi=False, new_decoder_architecture=True, num_kv_heads=2),
    "Gemma 2": causal("gemma2", "eager", head_dim=16, query_pre_attn_scalar=16),
    "Gemma 3": causal("gemma3_text", head_dim=16, query_pre_attn_scalar=16),
    "Phi-3": causal("phi3"),
    "Mamba": causal("mamba", "eager", state_size=8),
    "Mamba-2": causal("mamba2", "eager", state_size=16, num_heads=8, head_dim=16, n_groups=1, chunk_size=16),
    "BERT": named("BertForMaskedLM", text, **ENCODER),
    "RoBERTa": named("RobertaForMaskedLM", text, **{**ENCODER, "max_position_embeddings": 160}),
    "DistilBERT": named(
        "DistilBertForMaskedLM", text, vocab_size=VOCABULARY, dim=64, hidden_dim=128, n_layers=2, n_heads=4
    ),
    "T5": named(
        "T5ForConditionalGeneration",
        text_to_text,
        "eager",
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    ),
    "ViT": named("ViTForImageClassification", images, **VISION),
    "Swin": named(
        "SwinForImageClassification",
        images,
        "eager",
        image_size=64,
        patch_size=4,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "CLIP": named(
        "CLIPModel",
        images_and_text,
        text_config={**ENCODER, "projection_dim": 64},
        vision_config={**VISION, "projection_dim": 64},
        projection_dim=64,
    ),
    "Whisper": named(
        "WhisperForConditionalGeneration",
        speech,
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=32,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    ),
}


def coverage_of(build: Builder, recipe: str, ingredients: Mapping[str, Any], operations: bool) -> Coverage:
    """Build a model, apply a recipe to it, and return its coverage."""
    torch.manual_seed(0)
    model, inputs = build()
    applied = custom_fp.apply_recipe(model.train(), recipe, operations=operations, **ingredients)
    has_cache = "use_cache" in inspect.signature(model.forward).parameters
    return applied.coverage(model, **inputs, **({"use_cache": False} if has_cache else {}))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures to measure (default: all)")
    parser.add_argument("--recipe", default="nvfp4")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import transformers

    given = load(arguments.recipe).get("ingredients", {})
    ingredients = {"bf16_layers": 0} if "bf16_layers" in given else {}
    lines = [
        "| model | recipe | with operations | in float32 with operations |",
        "|---|---|---|---|",
    ]
    is_complete = True
    for name in arguments.names or ARCHITECTURES:
        try:
            alone, everything = (
                coverage_of(ARCHITECTURES[name], arguments.recipe, ingredients, operations)
                for operations in (False, True)
            )
        except Exception as error:
            is_complete = False
            row = [name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", "", ""]
        else:
            is_complete &= everything.rounded >= 0.99
            left = [f"{where} {_percent(share)}" for where, share in everything.in_float32().items()]
            left += [f"{where} (not counted)" for where in everything.uncounted]
            row = [name, alone.summary(), everything.summary(), "; ".join(left)]
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
    if arguments.output:
        command = shlex.join(["python", *sys.argv])
        ingredient_text = "".join(f" with {key}={value}" for key, value in ingredients.items())
        header = [
            "# Coverage of known architectures",
            "",
            f"    {command}",
            "",
            "Shares of the multiply-accumulates of a forward and a backward pass that read each format, under the",
            f"recipe {arguments.recipe}{ingredient_text}, alone and with `operations=True`. The models are tiny ones",
            f"of transformers {transformers.__version__} with random weights. Their inputs are {BATCH} sequences of",
            f"{LENGTH} tokens, or {BATCH} images. Elementwise multiplications whose results are added are not counted.",
            "",
        ]
        write_text(arguments.output, "\n".join([*header, *lines, ""]))
    return 0 if is_complete else 1


def _percent(share: float) -> str:
    return percent_text(share) if share >= 0.005 else f"{100 * share:.2g}%"


if __name__ == "__main__":
    sys.exit(main())
