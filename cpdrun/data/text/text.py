"""One text, as samples of tokens: bytes, or tokens of a vocabulary made of its training part.

Legend: B texts, T positions, N tokens, V tokens of the vocabulary.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from cpdrun.data.base import DataError
from cpdrun.data.text.bpe import tokens_of

CACHE_DIR = "~/.cache/cpdrun"  # where a config.yaml older than the key data.cache_dir names none


class Text:
    """train and test of (int64 (T,) tokens, int64 (T,) each one's next token); the last share of the text is test.

    text: any bytes. bpe_vocab: None, where a token is a byte, or how many tokens the vocabulary has, kept in cache_dir
    once made. bytes_per_token: of the tokens of `test` that are predicted, on average, so that bits per byte compare
    across vocabularies. sha256: of the text, and of its tokens where they are not its bytes. Raises DataError for a
    text shorter than context + 1 tokens, on either side, and for what bpe.tokens_of refuses.
    """

    in_channels = 1

    def __init__(
        self, text: bytes, context: int, test_fraction: float, bpe_vocab: int | None, cache_dir: str
    ):
        if not 0 < test_fraction < 1:
            raise DataError(f"data.test_fraction must lie between 0 and 1, not {test_fraction}")
        cut = int(len(text) * (1 - test_fraction))
        train, test = text[:cut], text[cut:]
        self.context = context
        self.sha256 = hashlib.sha256(text).hexdigest()
        if bpe_vocab is None:
            self.vocab_size, self.bytes_per_token = 256, 1
            self.train, self.test = (Windows(_bytes(part), context) for part in (train, test))
        else:
            tokens = tokens_of(train, test, bpe_vocab, cache_dir)
            self.vocab_size = len(tokens.length_V)
            self.train, self.test = Windows(tokens.train_N, context), Windows(tokens.test_N, context)
            predicted_N = self.test.tokens_N[1 : 1 + len(self.test) * context].long()
            self.bytes_per_token = tokens.length_V[predicted_N].double().mean().item()
            self.sha256 = hashlib.sha256(f"{self.sha256} {tokens.sha256}".encode()).hexdigest()
        self.num_classes = self.vocab_size


class Windows(Dataset):
    """Stretches of `context` tokens, one after the other, of integers (N,); raises DataError where there is none."""

    def __init__(self, tokens_N: Tensor, context: int):
        self.tokens_N = tokens_N
        self.context = context
        if len(self) < 1:
            what = "bytes" if tokens_N.dtype == torch.uint8 else "tokens"
            raise DataError(f"data.context = {context} is longer than the text of {len(tokens_N)} {what}")

    def __len__(self) -> int:
        return (len(self.tokens_N) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.fetch_batch([index])
        return x[0], y[0]

    def fetch_batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        first_B = torch.as_tensor(indices) * self.context
        text = self.tokens_N[first_B[:, None] + torch.arange(self.context + 1)].long()
        return text[:, :-1], text[:, 1:]


def _bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
