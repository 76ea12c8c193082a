"""English text as bytes: CPython's pydoc_data.topics, which every Python ships.

It differs between Python versions: `sha256` tells which text a run saw. Legend: B texts, T positions.
"""

import hashlib
from collections.abc import Sequence
from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.utils.data import Dataset

from cpdrun.data.base import DataError


class PydocText:
    """train and test of (int64 (T,) bytes, int64 (T,) each one's next byte); the last share of the text is test."""

    num_classes = vocab_size = 256
    bytes_per_token = 1
    in_channels = 1

    def __init__(self, context: int, test_fraction: float, text_bytes: int | None):
        if not 0 < test_fraction < 1:
            raise DataError(f"data.test_fraction must lie between 0 and 1, not {test_fraction}")
        text = "\n".join(topics[name] for name in sorted(topics)).encode()[:text_bytes]
        self.context = context
        self.sha256 = hashlib.sha256(text).hexdigest()
        cut = int(len(text) * (1 - test_fraction))
        self.train, self.test = Windows(text[:cut], context), Windows(text[cut:], context)


class Windows(Dataset):
    """Stretches of `context` bytes, one after the other; raises DataError where the text has none."""

    def __init__(self, text: bytes, context: int):
        self.bytes_N = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.context = context
        if len(self) < 1:
            raise DataError(f"data.context = {context} is longer than the text of {len(text)} bytes")

    def __len__(self) -> int:
        return (len(self.bytes_N) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.fetch_batch([index])
        return x[0], y[0]

    def fetch_batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        first_B = torch.as_tensor(indices) * self.context
        text = self.bytes_N[first_B[:, None] + torch.arange(self.context + 1)].long()
        return text[:, :-1], text[:, 1:]
