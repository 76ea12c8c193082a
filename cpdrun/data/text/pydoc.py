"""English text that every Python ships: CPython's pydoc_data.topics.

It differs between Python versions: `sha256` tells which text a run saw.
"""

from pydoc_data.topics import topics

from cpdrun.data.text.text import CACHE_DIR, Text


class PydocText(Text):
    """The topics in the order of their names, the first `text_bytes` of them (None: all)."""

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
