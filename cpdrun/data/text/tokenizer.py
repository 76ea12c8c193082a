"""Tokenizers of pretrained models, loaded with the library transformers from a folder or from the Hugging Face hub.

Shapes: N tokens.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpdrun.data.base import DataError
from cpdrun.hub import find_hub_problem

INSTALL = "pip install 'cpdrun[hf]'"
TEXTS_AT_ONCE = 256


def load_tokenizer(name: str | None) -> Any:
    """Load a tokenizer. A folder is read without any access to the network.

    Args:
        name: The name of a model on the Hugging Face hub, or a folder that contains a tokenizer.

    Raises:
        DataError: The library transformers is not installed, or the tokenizer cannot be loaded.
    """
    if name is None:
        raise DataError(
            "data.tokenizer must be given: the name of a model on the Hugging Face hub, or a folder with a tokenizer "
            "(with model=huggingface, the default is model.name)"
        )
    # A process that is forked later does not inherit the tokenizer's threads and would wait for them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise DataError(f"data.tokenizer={name} needs the library transformers: {INSTALL}") from None
    folder = Path(name).expanduser()
    place = str(folder) if folder.is_dir() else name
    try:
        return AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # The library raises many kinds of exceptions for damaged files.
        if folder.is_dir():
            raise DataError(f"data.tokenizer={name} cannot be loaded: {_first_line(error)}") from None
    if problem := find_hub_problem(name):
        raise DataError(f"data.tokenizer: {problem}")
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        raise DataError(f"data.tokenizer={name} cannot be loaded: {_first_line(error)}") from None


def pad_token_id(tokenizer: Any, pad_token: str | None) -> int:
    """Return the number of the padding token.

    Args:
        tokenizer: The tokenizer.
        pad_token: The token. With None, it is the tokenizer's own.

    Raises:
        DataError: The tokenizer does not have this token, or has no padding token of its own.
    """
    if pad_token is not None:
        if pad_token not in tokenizer.get_vocab():
            raise DataError(f"data.pad_token={pad_token!r} is not a token of {tokenizer.name_or_path}")
        return tokenizer.convert_tokens_to_ids(pad_token)
    if tokenizer.pad_token_id is None:
        usual = f"data.pad_token='{tokenizer.eos_token}'" if tokenizer.eos_token else "data.pad_token=TOKEN"
        raise DataError(f"the tokenizer {tokenizer.name_or_path} has no padding token. Set {usual}")
    return tokenizer.pad_token_id


def encode(tokenizer: Any, texts: Sequence[str], context: int | None) -> Iterator[np.ndarray]:
    """Yield the tokens of each text with the tokens that the model expects around a text, (N,) int32.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        context: The number of tokens to which longer texts are cut. With None, no text is cut.
    """
    for first in range(0, len(texts), TEXTS_AT_ONCE):
        encoded = tokenizer(
            list(texts[first : first + TEXTS_AT_ONCE]),
            truncation=context is not None,
            max_length=context,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # Without it, the library prints a warning about long texts.
        )
        yield from (np.array(ids, dtype=np.int32) for ids in encoded["input_ids"])


def pack(tokenizer: Any, texts: Iterable[str], most: int | None) -> Tensor:
    """Return the tokens of all texts, each followed by the end-of-text token, (N,) int32.

    Args:
        tokenizer: The tokenizer.
        texts: The texts. Reading stops once there are enough tokens.
        most: The maximum number of tokens to return. With None, all are returned.

    Raises:
        DataError: The tokenizer has no end-of-text token.
    """
    if tokenizer.eos_token_id is None:
        raise DataError(
            f"the tokenizer {tokenizer.name_or_path} has no end-of-text token. Prediction of the next token needs the "
            "tokenizer of a causal language model"
        )
    parts, count = [np.empty(0, np.int32)], 0
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        parts.append(np.array([*ids, tokenizer.eos_token_id], dtype=np.int32))
        count += len(parts[-1])
        if most is not None and count >= most:
            break
    return torch.from_numpy(np.concatenate(parts)[:most])


def bytes_per_token(tokenizer: Any, tokens_N: Tensor) -> float:
    """Return the average number of bytes of UTF-8 that a token represents. An end-of-text token has no bytes."""
    text = tokenizer.decode(tokens_N.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return len(text.encode(errors="replace")) / len(tokens_N)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
