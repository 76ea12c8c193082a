"""English text that is part of every Python: CPython's pydoc_data.topics.

The text differs between versions of Python. Its `sha256` identifies the text that a run used.
"""

from pydoc_data.topics import topics

from cpdrun.data.text.text import CACHE_DIR, Text


class PydocText(Text):
    """The topics in the order of their names.

    Args:
        context: The number of tokens of a sample.
        test_fraction: The fraction of the text that is the test set.
        text_bytes: The number of bytes that are used, from the start. With None, the whole text is used.
        bpe_vocab: The size of the vocabulary. With None, tokens are bytes.
        cache_dir: The folder that contains the cache.
    """

    def __init__(
        self,
        context: int,
        test_fraction: float,
        text_bytes: int | None,
        bpe_vocab: int | None = None,
        cache_dir: str = CACHE_DIR,
    ):
        text = "\n".join(topics[name] for name in sorted(topics)).encode()[:text_bytes]
        super().__init__(text, context, test_fraction, bpe_vocab, cache_dir)
