"""Pretrained models of the library transformers, for classification of texts and for prediction of the next token.

The weights come from the Hugging Face hub or from a folder. With `lora.rank`, the pretrained weights are frozen and
low-rank adapters are trained (LoRA, Hu et al., arXiv 2106.09685), as the library peft adds them.
"""

import sys
import warnings
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cpdrun.hub import find_hub_problem

INSTALL = "pip install 'cpdrun[hf]'"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
HEADS = {"classification": "AutoModelForSequenceClassification", "next_token": "AutoModelForCausalLM"}


def load_pretrained(
    name: str,
    revision: str | None,
    sha256: str | None,
    head: str | None,
    dtype: str,
    gradient_checkpointing: bool,
    lora: Mapping[str, Any],
    num_classes: int | None = None,
    context: int | None = None,
    pad_token_id: int | None = None,
) -> nn.Module:
    """Load a pretrained model and give it a head.

    Args:
        name: The name of a model on the Hugging Face hub, or a folder that `save_pretrained` wrote.
        revision: The branch, tag or commit on the hub. With None, it is the newest one.
        sha256: The digest of the folder's contents. `cpdrun.train.build` checks it. Not used here.
        head: "classification" or "next_token". With None, it is "classification" if `num_classes` is given.
        dtype: The dtype of the weights, "fp32" or "bf16".
        gradient_checkpointing: Whether the backward pass computes activations again instead of storing them.
        lora: The settings of LoRA: `rank`, `alpha` (None means 2 * rank), `dropout` and `target_modules`. With
            rank=None, all weights are trained.
        num_classes: The number of classes.
        context: The largest number of tokens of a text.
        pad_token_id: The number of the padding token. Models that classify the last token of a text need it.

    Returns:
        A model whose outputs have `logits`: (B, K) for K classes, or (B, T, V) for T positions and V tokens.

    Raises:
        ValueError: A library is not installed, the model cannot be loaded, it does not fit the data, or an argument is
            invalid.
    """
    head = head or ("classification" if num_classes else "next_token")
    if head not in HEADS or dtype not in DTYPES:
        key, value, allowed = ("head", head, HEADS) if head not in HEADS else ("dtype", dtype, DTYPES)
        raise ValueError(f"model.{key} must be {' or '.join(allowed)}, not {value}")
    if head == "classification" and not num_classes:
        raise ValueError("model.head=classification needs data with classes, such as data=text_table")
    model = _from_pretrained(name, revision, head, dtype, num_classes)
    model.config.use_cache = False  # Training generates no text, so it needs no cache of keys and values.
    model.config.pad_token_id = pad_token_id if pad_token_id is not None else model.config.pad_token_id
    longest = getattr(model.config, "max_position_embeddings", None)
    if context is not None and longest is not None and context > longest:
        raise ValueError(
            f"data.context={context} is too long: {name} reads at most {longest} tokens. Type data.context={longest} "
            "or less"
        )
    if lora["rank"] is not None:
        model = _with_lora(model, head, **lora)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def _from_pretrained(name: str, revision: str | None, head: str, dtype: str, num_classes: int | None) -> Any:
    """Load the weights. A folder is read without any access to the network."""
    try:
        import transformers
    except ImportError:
        raise ValueError(f"model=huggingface needs the library transformers: {INSTALL}") from None
    transformers.logging.set_verbosity_error()  # `_report_new_weights` replaces its report
    transformers.logging.disable_progress_bar()
    folder = Path(name).expanduser()
    local = folder.is_dir()
    load = partial(
        getattr(transformers, HEADS[head]).from_pretrained,
        str(folder) if local else name,
        revision=revision or "main",
        dtype=DTYPES[dtype],
        output_loading_info=True,
        **({"num_labels": num_classes} if head == "classification" else {}),
    )
    try:
        model, loading = load(local_files_only=True)
    except (OSError, ValueError) as error:
        problem = _one_line(error) if local else find_hub_problem(name)
        if problem:
            raise ValueError(f"model.name={name} cannot be loaded: {problem}") from None
        try:
            model, loading = load()
        except (OSError, ValueError) as error:
            raise ValueError(f"model.name={name} cannot be loaded: {_one_line(error)}") from None
    _report_new_weights(name, model, head, sorted(loading["missing_keys"]))
    return model


def _report_new_weights(name: str, model: nn.Module, head: str, missing: list[str]) -> None:
    """Print which weights are not in the checkpoint and therefore random.

    Raises:
        ValueError: These weights are more than a new classification head.
    """
    if not missing:
        return
    values = {key: parameter.numel() for key, parameter in model.named_parameters()}
    new = sum(values.get(key, 0) for key in missing)
    if head == "next_token" or new > sum(values.values()) / 2:
        raise ValueError(
            f"model.name={name} is not a pretrained model for {head}: its checkpoint lacks {len(missing)} "
            f"weights, such as {missing[0]}"
        )
    _print_once(f"not in the checkpoint, so random: {', '.join(missing)}")


@cache
def _print_once(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # stdout may be JSON


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _with_lora(
    model: Any,
    head: str,
    rank: int,
    alpha: int | None,
    dropout: float,
    target_modules: list[str] | str | None,
) -> nn.Module:
    """Freeze a model and add trainable low-rank adapters. A new classification head is trained, too."""
    try:
        import peft
    except ImportError:
        raise ValueError(f"model.lora needs the library peft: {INSTALL}") from None
    if not isinstance(rank, int) or rank < 1:
        raise ValueError(f"model.lora.rank must be a whole number, at least 1, or null, not {rank}")
    settings = peft.LoraConfig(
        task_type="SEQ_CLS" if head == "classification" else "CAUSAL_LM",
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=dropout,
        target_modules=target_modules,
    )
    try:
        with warnings.catch_warnings():  # peft asks for a deprecated attribute
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            return peft.get_peft_model(model, settings)
    except ValueError as error:
        raise ValueError(f"model.lora.target_modules={target_modules}: {str(error).split('. ')[0]}") from None
