"""Byte-pair encoding (Sennrich et al., arXiv 1508.07909) over bytes, as in GPT-2, with the library `tokenizers`.

The vocabulary is learned from the training text only. It starts with the 256 bytes, and the most frequent pair of
tokens is merged repeatedly. The library sorts the bytes and breaks ties between equally frequent pairs by the smaller
token numbers, so the same text always gives the same vocabulary. (With prefixes of words it would not:
github.com/huggingface/tokenizers/issues/1794.)

The vocabulary and the tokens of both texts are kept in a folder of the cache, whose name depends on the contents of the
texts and on the version of the library.

Shapes: N tokens of a text, V tokens of the vocabulary.
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

SMALLEST, LARGEST = 257, 65536  # the 256 bytes and one merged pair; as many as 16 bits can index
PIECE_BYTES = 1 << 16  # the bytes of a text that are encoded at once; no token crosses the end of a piece
PIECES = 64  # the pieces that the library encodes in one call


@dataclass(frozen=True)
class Tokens:
    """A training text and a test text as tokens.

    Attributes:
        train_N: The tokens of the training text, int32, below V.
        test_N: The tokens of the test text, int32, below V.
        length_V: The number of bytes of each token of the vocabulary, int64.
        sha256: The SHA-256 digest of the tokens of both texts.
    """

    train_N: Tensor
    test_N: Tensor
    length_V: Tensor
    sha256: str


def tokens_of(train: bytes, test: bytes, vocab: int, cache_dir: str) -> Tokens:
    """Return both texts as tokens of a vocabulary that is learned from the training text.

    A text is read as UTF-8. Bytes that are not valid UTF-8 become U+FFFD, which has 3 bytes.

    Args:
        train: The training text.
        test: The test text.
        vocab: The size of the vocabulary. It is smaller if the training text does not have enough pairs of tokens.
        cache_dir: The folder that contains the cache.

    Raises:
        DataError: The size of the vocabulary is out of range, `tokenizers` is not installed, or the cache cannot be
            written.
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
            f"data.bpe_vocab={vocab} needs the library tokenizers: pip install 'cpdrun[bpe]', or use bytes as tokens "
            "with data.bpe_vocab=null"
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
    """Write tokenizer.json, which other programs can read, and the tokens of both texts as uint16."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_pieces(train), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, text in (("train", train), ("test", test)):
        np.save(folder / f"{name}.npy", _encoded(tokenizer, list(_pieces(text))))
    # The library represents each byte as one of 256 characters, so a token has as many characters as bytes.
    lengths = [len(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())]
    np.save(folder / "lengths.npy", np.array(lengths, dtype=np.uint16))


def _encoded(tokenizer: Any, pieces: list[str]) -> np.ndarray:
    """Return the tokens of a text, (N,) uint16."""
    ids = [np.empty(0, np.uint16)]
    for first in range(0, len(pieces), PIECES):
        encodings = tokenizer.encode_batch_fast(pieces[first : first + PIECES])
        ids += [np.array(encoding.ids, dtype=np.uint16) for encoding in encodings]
    return np.concatenate(ids)


def _pieces(text: bytes) -> Iterator[str]:
    """Yield the text in pieces of at most PIECE_BYTES bytes.

    A piece ends at the end of a line if possible, and otherwise at the end of a character.
    """
    first = 0
    while first < len(text):
        end = min(first + PIECE_BYTES, len(text))
        if end < len(text):
            line = text.rfind(b"\n", first, end) + 1
            end = line if line > first else _before_a_character(text, first, end)
        yield text[first:end].decode(errors="replace")
        first = end


def _before_a_character(text: bytes, first: int, end: int) -> int:
    """Return the last position up to `end` that does not divide a UTF-8 character.

    If the text is not valid UTF-8, this is `end`.
    """
    for place in range(end, max(first, end - 4), -1):
        if text[place] & 0xC0 != 0x80:
            return place
    return end
