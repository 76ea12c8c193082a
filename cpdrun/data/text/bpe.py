"""Byte-pair encoding (Sennrich et al., arXiv 1508.07909) over bytes, as GPT-2 has it, by the library `tokenizers`.

The vocabulary is made of the training text alone: the 256 bytes, then the most frequent pair merged, again and again.
Of pairs equally frequent the library takes the one of smaller numbers, and it sorts the bytes, so that the same text
gives the same vocabulary (with prefixes it does not: github.com/huggingface/tokenizers/issues/1794).
It and both texts in its tokens are kept in a folder named by their contents and the library's version.

Legend: N tokens of a text, V tokens of the vocabulary.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpdrun.data.base import DataError
from cpdrun.data.cache import written_once

SMALLEST, LARGEST = 257, 65536  # more than bytes; what 16 bits tell apart
PIECE_BYTES = 1 << 16  # encoded at once; a token never crosses from one to the next
PIECES = 64


@dataclass(frozen=True)
class Tokens:
    """train_N, test_N: int32, below V. length_V: int64, the bytes of each token. sha256: of both texts' tokens."""

    train_N: Tensor
    test_N: Tensor
    length_V: Tensor
    sha256: str


def tokens_of(train: bytes, test: bytes, vocab: int, cache_dir: str) -> Tokens:
    """Both texts in the vocabulary of `vocab` tokens that `train` gives; fewer where its pairs do not last that long.

    A text is read as UTF-8; what is none becomes U+FFFD, of 3 bytes. Raises DataError for a vocabulary out of range,
    where `tokenizers` is not installed, and where the cache cannot be written.
    """
    whole = isinstance(vocab, int) and not isinstance(vocab, bool)
    if not whole or not SMALLEST <= vocab <= LARGEST:
        raise DataError(
            f"data.bpe_vocab must be a whole number from {SMALLEST} to {LARGEST}, or null for bytes, not {vocab}"
        )
    try:
        made_by = version("tokenizers")
    except PackageNotFoundError:
        raise DataError(
            f"data.bpe_vocab={vocab} needs the library tokenizers: pip install 'cpdrun[bpe]'; data.bpe_vocab=null, "
            "bytes, needs nothing"
        ) from None
    digest = hashlib.sha256(f"{made_by} {vocab} {len(train)} ".encode())
    digest.update(train)
    digest.update(test)
    try:
        folder = written_once(
            cache_dir,
            f"bpe-{vocab}-{digest.hexdigest()[:16]}",
            lambda unfinished: _write(unfinished, train, test, vocab),
        )
    except OSError as error:
        raise DataError(f"data.cache_dir={cache_dir} cannot be written: {error}") from None
    train_N, test_N, length_V = (np.load(folder / f"{name}.npy") for name in ("train", "test", "lengths"))
    return Tokens(
        torch.from_numpy(train_N.astype(np.int32)),
        torch.from_numpy(test_N.astype(np.int32)),
        torch.from_numpy(length_V.astype(np.int64)),
        hashlib.sha256(train_N.tobytes() + test_N.tobytes()).hexdigest(),
    )


def _write(folder: Path, train: bytes, test: bytes, vocab: int) -> None:
    """tokenizer.json, which any program reads, and the texts in its tokens, 16 bits each."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_pieces(train), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, text in (("train", train), ("test", test)):
        np.save(folder / f"{name}.npy", _encoded(tokenizer, list(_pieces(text))))
    # the library writes a byte as one letter of an alphabet of 256
    lengths = [len(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())]
    np.save(folder / "lengths.npy", np.array(lengths, dtype=np.uint16))


def _encoded(tokenizer: Any, pieces: list[str]) -> np.ndarray:
    """uint16 (N,)."""
    ids = [np.empty(0, np.uint16)]
    for first in range(0, len(pieces), PIECES):
        encodings = tokenizer.encode_batch_fast(pieces[first : first + PIECES])
        ids += [np.array(encoding.ids, dtype=np.uint16) for encoding in encodings]
    return np.concatenate(ids)


def _pieces(text: bytes) -> Iterator[str]:
    """The text in pieces that end with a line where one ends in time, else before a character that would be halved."""
    first = 0
    while first < len(text):
        end = min(first + PIECE_BYTES, len(text))
        if end < len(text):
            line = text.rfind(b"\n", first, end) + 1
            end = line if line > first else _before_a_character(text, first, end)
        yield text[first:end].decode(errors="replace")
        first = end


def _before_a_character(text: bytes, first: int, end: int) -> int:
    """The last place up to `end` where no character of UTF-8 is halved; `end` where the text is none."""
    for place in range(end, max(first, end - 4), -1):
        if text[place] & 0xC0 != 0x80:
            return place
    return end
