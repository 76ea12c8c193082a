"""Tiny models of the library transformers with random weights, for tests."""

from typing import Any

import torch


def tiny_bert(vocab_size: int, **settings: Any) -> Any:
    """Return a BERT without a head: two layers of width 16, up to 32 tokens."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    return _made(BertModel, BertConfig, {"vocab_size": vocab_size, "num_hidden_layers": 2} | sizes | settings)


def tiny_llama(vocab_size: int, **settings: Any) -> Any:
    """Return a Llama that predicts the next token, with tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "tie_word_embeddings": True}
    return _made(LlamaForCausalLM, LlamaConfig, {"vocab_size": vocab_size} | sizes | settings)


def _made(model: Any, config: Any, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return model(config(**{"num_attention_heads": 2} | settings))
