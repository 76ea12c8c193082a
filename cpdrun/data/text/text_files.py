"""The text files in a folder, tokenized by a pretrained model's tokenizer, for prediction of the next token.

As in `PackageText`, each document is used once, in the order of the SHA-256 digests of the documents' contents.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from cpdrun.data.base import DataError
from cpdrun.data.text.package import check_text_bytes, read_documents
from cpdrun.data.text.text import Windows
from cpdrun.data.text.tokenizer import bytes_per_token, load_tokenizer, pack


class TextFiles:
    """A text whose documents end with the end-of-text token of the tokenizer. Its last part is the test set.

    A sample is T tokens and the token that follows each of them, (T,) int64 both. Bytes that are not valid UTF-8 are
    read as U+FFFD.

    Args:
        data_dir: The folder that contains the files.
        files: Glob patterns, below `data_dir`, of the files to read. They may be compressed with gzip.
        leave_out: Patterns of paths, below `data_dir`, of files that are not read.
        split_at: A regular expression that matches the text between two documents of a file. With None, each file is
            one document.
        context: The number of tokens T of a sample.
        test_fraction: The fraction of the text that is the test set.
        text_bytes: The number of bytes that are used, from the start. With None, the whole text is used.
        train_samples: The number of training samples that are used. With None, all are used.
        test_samples: The number of test samples that are used. With None, all are used.
        tokenizer: The name of a model on the Hugging Face hub, or a folder with a tokenizer.
        tokenizer_sha256: The digest of the tokenizer, which identifies it in the config. Not used here.

    Attributes:
        bytes_per_token: The average number of bytes of the tokens to predict in the test set. With this number, bits
            per byte can be compared between tokenizers.
        sha256: The SHA-256 digest of the text and of the tokens.

    Raises:
        DataError: No file matches, a file cannot be read, the tokenizer cannot be loaded, an argument is invalid, or
            the training text or the test text has fewer than context + 1 tokens.
    """

    def __init__(
        self,
        data_dir: str,
        files: Sequence[str],
        leave_out: Sequence[str],
        split_at: str | None,
        context: int,
        test_fraction: float,
        text_bytes: int | None,
        train_samples: int | None,
        test_samples: int | None,
        tokenizer: str | None,
        tokenizer_sha256: str | None = None,
    ):
        self.path, self.context = Path(data_dir).expanduser(), context
        check_text_bytes(text_bytes)
        if not 0 < test_fraction < 1:
            raise DataError(f"data.test_fraction must lie between 0 and 1, not {test_fraction}")
        for key, samples in (("train_samples", train_samples), ("test_samples", test_samples)):
            if samples is not None and samples < 1:
                raise DataError(f"data.{key} must be at least 1, or null for all, not {samples}")
        loaded = load_tokenizer(tokenizer)
        documents = read_documents(self.path, files, leave_out, split_at)
        if not documents:
            raise DataError(
                f"data.data_dir={data_dir} has no file that matches data.files: {', '.join(files)}"
            )
        end = min(sum(map(len, documents)), text_bytes or sum(map(len, documents)))
        cut = int(end * (1 - test_fraction))
        digest = hashlib.sha256()
        sets = []
        for first, last, samples in ((0, cut, train_samples), (cut, end, test_samples)):
            most = None if samples is None else samples * context + 1
            tokens_N = pack(loaded, _between(documents, first, last), most)
            digest.update(tokens_N.numpy().tobytes())
            sets.append(Windows(tokens_N, context))
        self.train, self.test = sets
        self.bytes_per_token = bytes_per_token(loaded, self.test.predicted())
        self.sha256 = digest.hexdigest()


def _between(documents: Sequence[bytes], first: int, last: int) -> Iterator[str]:
    """Yield the documents, or their parts, between two byte positions in the concatenation of all documents."""
    begin = 0
    for document in documents:
        part = document[max(first - begin, 0) : max(last - begin, 0)]
        begin += len(document)
        if part:
            yield part.decode(errors="replace")
