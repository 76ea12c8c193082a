"""A text as samples of tokens, which are bytes or tokens of a vocabulary that is learned from the training text.

Shapes: B texts, T positions, N tokens, V tokens of the vocabulary.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from cpdrun.data.base import DataError
from cpdrun.data.text.bpe import tokens_of

CACHE_DIR = "~/.cache/cpdrun"  # for a config.yaml from before the key data.cache_dir existed


class Text:
    """A text, whose last part is the test set.

    A sample is T tokens and the token that follows each of them, (T,) int64 both.

    Args:
        text: The text. Any bytes are allowed.
        context: The number of tokens T of a sample.
        test_fraction: The fraction of the text that is the test set.
        bpe_vocab: The size of the vocabulary. With None, tokens are bytes.
        cache_dir: The folder that contains the cache of vocabularies.

    Attributes:
        vocab_size: The number of tokens V of the vocabulary.
        bytes_per_token: The average number of bytes of the tokens to predict in the test set. With this number, bits
            per byte can be compared between vocabularies.
        sha256: The SHA-256 digest of the text, and of the tokens if they are not bytes.

    Raises:
        DataError: The training text or the test text has fewer than context + 1 tokens, an argument is out of range, or
            `bpe.tokens_of` raises it.
    """

    in_channels = 1
    bytes_per_token: float

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
            self.bytes_per_token = tokens.length_V[self.test.predicted().long()].double().mean().item()
            self.sha256 = hashlib.sha256(f"{self.sha256} {tokens.sha256}".encode()).hexdigest()
        self.num_classes = self.vocab_size


class Windows(Dataset):
    """Consecutive stretches of `context` tokens of a text.

    Args:
        tokens_N: The tokens, (N,) of an integer dtype.
        context: The number of tokens of a stretch.

    Raises:
        DataError: The text is shorter than one stretch and the token after it.
    """

    def __init__(self, tokens_N: Tensor, context: int):
        self.tokens_N = tokens_N
        self.context = context
        if len(self) < 1:
            what = "bytes" if tokens_N.dtype == torch.uint8 else "tokens"
            raise DataError(
                f"data.context={context} needs a text of at least {context + 1} {what}, not {len(tokens_N)}"
            )

    def __len__(self) -> int:
        return (len(self.tokens_N) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.fetch_batch([index])
        return x[0], y[0]

    def fetch_batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens (B, T) int64 of some samples and the token that follows each of them, of the same shape."""
        first_B = torch.as_tensor(indices) * self.context
        text = self.tokens_N[first_B[:, None] + torch.arange(self.context + 1)].long()
        return text[:, :-1], text[:, 1:]

    def predicted(self) -> Tensor:
        """Return the tokens to predict of all samples."""
        return self.tokens_N[1 : 1 + len(self) * self.context]


def _bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
