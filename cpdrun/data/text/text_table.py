"""A table of texts, for fine-tuning a pretrained model: for classification, or for prediction of the next token.

Shapes: B texts, T positions, N tokens, n texts of a set.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from cpdrun.data.base import DataError
from cpdrun.data.text.table_rows import Rows, read_dataset, read_files
from cpdrun.data.text.text import Windows
from cpdrun.data.text.tokenizer import bytes_per_token, encode, load_tokenizer, pack, pad_token_id

Inputs = dict[str, Tensor]
# The prefix makes the split independent of earlier choices by the digests of the texts, as in `PackageText`.
SPLIT = b"test set:"


class TokenizedTexts(Dataset):
    """Texts of different lengths as tokens, each with its class.

    A sample is ({"input_ids": (T,) int64, "attention_mask": (T,) int64}, class () int64). In a batch, T is the
    length of the longest text, and the attention mask is 0 for padding.

    Args:
        tokens_n: The tokens of each text, (T,) int32.
        y_N: The class of each text, (N,) int64.
        pad_token_id: The token that is used for padding.
    """

    def __init__(self, tokens_n: Sequence[np.ndarray], y_N: Tensor, pad_token_id: int):
        lengths_n = torch.tensor([len(tokens) for tokens in tokens_n])
        self.tokens_N = torch.from_numpy(np.concatenate(tokens_n))
        self.length_n, self.start_n = lengths_n, lengths_n.cumsum(0) - lengths_n
        self.y_N, self.pad_token_id = y_N, pad_token_id

    def __len__(self) -> int:
        return len(self.y_N)

    def __getitem__(self, index: int) -> tuple[Inputs, Tensor]:
        inputs, y = self.fetch_batch([index])
        return {name: value[0] for name, value in inputs.items()}, y[0]

    def fetch_batch(self, indices: Sequence[int] | Tensor) -> tuple[Inputs, Tensor]:
        """Return some texts, padded to the length T of the longest: inputs (B, T) and classes (B,), all int64."""
        index_B = torch.as_tensor(indices)
        length_B, position_T = self.length_n[index_B], torch.arange(int(self.length_n[index_B].max()))
        inside = position_T < length_B[:, None]
        place = torch.where(inside, self.start_n[index_B, None] + position_T, 0)
        ids = torch.where(inside, self.tokens_N[place].long(), self.pad_token_id)
        return {"input_ids": ids, "attention_mask": inside.long()}, self.y_N[index_B]

    def stack_batches(self, batches: Sequence[tuple[Inputs, Tensor]]) -> tuple[Inputs, Tensor]:
        """Stack the batches of several workers, padded to the longest of all texts: (workers, B, T)."""
        T = max(inputs["input_ids"].shape[1] for inputs, _ in batches)
        filling = {"input_ids": self.pad_token_id, "attention_mask": 0}

        def stack(name: str) -> Tensor:
            filled = [pad(x[name], (0, T - x[name].shape[1]), value=filling[name]) for x, _ in batches]
            return torch.stack(filled)

        return {name: stack(name) for name in filling}, torch.stack([y for _, y in batches])


class TextTable:
    """A table with a column of texts and, for classification, a column of labels.

    Without labels, a sample is T tokens and the token that follows each of them, as in `TextFiles`.

    Args:
        train: The file or files of the training set: .csv, .tsv, .jsonl, .json or .parquet.
        test: The file or files of the test set. With None, rows of the training files are the test set.
        dataset: The name of a dataset on the Hugging Face hub, or a folder, in place of files.
        dataset_config: The configuration of this dataset.
        dataset_revision: The branch, tag or commit of this dataset on the hub. With None, it is the newest one.
        train_split: The split of this dataset that is the training set.
        test_split: The split that is the test set. With None, rows of the training split are the test set.
        test_fraction: The fraction of the rows that is the test set if there is no file or split for it. A row belongs
            to the test set if the SHA-256 digest of SPLIT and its text, as a fraction of 2**256, is smaller.
        text: The column of the text. Several columns are joined by a newline.
        label: The column of the label, strings or whole numbers. With None, there are no labels.
        context: The largest number of tokens of a text, or the number of tokens T of a sample without labels.
        truncate: Whether longer texts are cut. Otherwise, they are an error.
        tokenizer: The name of a model on the hub, or a folder with a tokenizer.
        pad_token: The padding token. With None, it is the tokenizer's own.
        files_sha256: The digest of the files. If they have another one, they have changed since the run was planned.
        tokenizer_sha256: The digest of the tokenizer, which identifies it in the config. Not used here.

    Attributes:
        label_names: The classes in the order of their numbers. Only for classification.
        num_classes: The number of classes. Only for classification.
        pad_token_id: The number of the padding token. Only for classification.
        bytes_per_token: The average number of bytes of the tokens to predict in the test set. Only without labels.
        path: The first file or the folder. None for a dataset on the hub.
        sha256: The SHA-256 digest of the texts, their labels and their tokens.

    Raises:
        DataError: An argument is invalid, or a file, a column, a label, a text or the tokenizer is missing or
            unusable.
    """

    path: str | None
    train: TokenizedTexts | Windows
    test: TokenizedTexts | Windows

    def __init__(
        self,
        train: str | list[str] | None,
        test: str | list[str] | None,
        dataset: str | None,
        dataset_config: str | None,
        dataset_revision: str | None,
        train_split: str,
        test_split: str | None,
        test_fraction: float,
        text: str | list[str],
        label: str | None,
        context: int,
        truncate: bool,
        tokenizer: str | None,
        pad_token: str | None,
        files_sha256: str | None = None,
        tokenizer_sha256: str | None = None,
    ):
        if (train is None) == (dataset is None):
            raise DataError("give the table with either data.train=FILE or data.dataset=NAME")
        if test is not None and train is None:
            raise DataError("data.test needs data.train. With data.dataset, set data.test_split")
        if context < 1:
            raise DataError(f"data.context must be at least 1, not {context}")
        columns = [text] if isinstance(text, str) else text
        if not columns:
            raise DataError("data.text must name a column, or several columns, such as [title,body]")
        if train is not None:
            rows = read_files("train", train, columns, label)
            test_rows = None if test is None else read_files("test", test, columns, label)
            self.path = train if isinstance(train, str) else train[0]
        else:
            splits = [train_split] if test_split is None else [train_split, test_split]
            name = str(dataset)
            both = [
                read_dataset(name, dataset_config, dataset_revision, split, columns, label)
                for split in splits
            ]
            rows, test_rows = both[0], both[1] if test_split else None
            self.path = name if Path(name).expanduser().is_dir() else None
        self.context = context
        loaded = load_tokenizer(tokenizer)
        if test_rows is None:
            rows, test_rows = split_by_digest(rows, test_fraction)
        for name, part in (("train", rows), ("test", test_rows)):
            if not part.texts:
                raise DataError(f"the {name} set of the table has no rows")
        if label is None:
            tokens = self._pack(loaded, rows, test_rows)
        else:
            tokens = self._classify(loaded, rows, test_rows, label, truncate, pad_token)
        digest = hashlib.sha256()
        for part in (rows, test_rows):
            digest.update("\0".join([*part.texts, *map(str, part.labels)]).encode(errors="replace"))
        for tokens_N in tokens:
            digest.update(tokens_N.numpy().tobytes())
        self.sha256 = digest.hexdigest()

    def _pack(self, tokenizer: Any, train: Rows, test: Rows) -> list[Tensor]:
        """Make both sets for prediction of the next token and return their tokens."""
        tokens = [pack(tokenizer, rows.texts, None) for rows in (train, test)]
        self.train, self.test = windows = [Windows(tokens_N, self.context) for tokens_N in tokens]
        self.bytes_per_token = bytes_per_token(tokenizer, windows[1].predicted())
        return tokens

    def _classify(
        self, tokenizer: Any, train: Rows, test: Rows, label: str, truncate: bool, pad_token: str | None
    ) -> list[Tensor]:
        """Make the training set and the test set for classification, and return their tokens."""
        self.pad_token_id = pad_token_id(tokenizer, pad_token)
        y_train, y_test, names = number_labels(train, test, label)
        self.label_names, self.num_classes = names, len(names)
        sets = []
        for rows, y_N in ((train, y_train), (test, y_test)):
            tokens_n = list(encode(tokenizer, rows.texts, self.context if truncate else None))
            self._check_lengths(rows, [len(tokens) for tokens in tokens_n])
            sets.append(TokenizedTexts(tokens_n, y_N, self.pad_token_id))
        self.train, self.test = sets
        return [texts.tokens_N for texts in sets]

    def _check_lengths(self, rows: Rows, lengths: list[int]) -> None:
        """Raise DataError if a text has no tokens or more tokens than the context."""
        if 0 in lengths:
            raise DataError(f"{rows.place(lengths.index(0))}: the tokenizer finds no tokens in the text")
        too_long = [i for i, length in enumerate(lengths) if length > self.context]
        if too_long:
            raise DataError(
                f"{rows.place(too_long[0])}: the text has {lengths[too_long[0]]} tokens, more than "
                f"data.context={self.context} ({len(too_long)} of {len(lengths)} texts). Set data.truncate=true to "
                f"cut them, or data.context={max(lengths)}"
            )


def split_by_digest(rows: Rows, test_fraction: float) -> tuple[Rows, Rows]:
    """Divide rows into a training set and a test set by the SHA-256 digests of SPLIT and their texts.

    Equal texts are always in the same set, and the result does not depend on the order of the rows.

    Raises:
        DataError: The fraction is not between 0 and 1.
    """
    if not 0 < test_fraction < 1:
        raise DataError(f"data.test_fraction must lie between 0 and 1, not {test_fraction}")
    below = int(test_fraction * 2**256)
    parts: tuple[list[int], list[int]] = ([], [])
    for i, text in enumerate(rows.texts):
        digest = hashlib.sha256(SPLIT + text.encode(errors="replace")).digest()
        parts[int.from_bytes(digest) < below].append(i)
    return rows.subset(parts[0]), rows.subset(parts[1])


def number_labels(train: Rows, test: Rows, column: str) -> tuple[Tensor, Tensor, list[str]]:
    """Return the classes of both sets, int64, and the names of the classes in the order of their numbers.

    The classes are the sorted distinct labels of the training set. Labels are sorted as numbers if all of them are
    whole numbers.

    Raises:
        DataError: There is only one class, a label is neither a string nor a whole number, or the test set has a label
            that the training set does not have.
    """
    labels: list[list[Any]] = [
        [_label(rows, i, column) for i in range(len(rows.labels))] for rows in (train, test)
    ]
    if all(_is_whole(label) for part in labels for label in part):
        labels = [[int(label) for label in part] for part in labels]
    names = sorted(set(labels[0]))
    if len(names) < 2:
        raise DataError(
            f"data.label={column}: all training texts have the label {names[0]}, but two are needed"
        )
    numbers = {name: number for number, name in enumerate(names)}
    for i, label in enumerate(labels[1]):
        if label not in numbers:
            raise DataError(
                f"{test.place(i)}: the label {label} of the test set is not in the training set, which has "
                f"{', '.join(map(str, names[:8]))}{', ...' if len(names) > 8 else ''}"
            )
    y_train, y_test = (torch.tensor([numbers[label] for label in part]) for part in labels)
    return y_train, y_test, [str(name) for name in names]


def _label(rows: Rows, i: int, column: str) -> str:
    """Return a label as a string. A whole number is written without a decimal point."""
    value = rows.labels[i]
    if isinstance(value, float | np.floating):
        if not float(value).is_integer():
            raise DataError(
                f"{rows.place(i)}: the column {column} has the label {value}, but labels must be strings or whole "
                "numbers"
            )
        value = int(value)
    return str(int(value)) if isinstance(value, bool | np.bool_) else str(value)


def _is_whole(label: str) -> bool:
    """Return whether a label is a whole number without leading zeros."""
    digits = label.removeprefix("-")
    return digits.isascii() and digits.isdigit() and str(int(label)) == label
