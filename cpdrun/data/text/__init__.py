"""Texts as tokens: what is read (pydoc, package), how it is cut into samples (text), and tokens longer than a byte
(bpe)."""

from cpdrun.data.text.package import PackageText
from cpdrun.data.text.pydoc import PydocText

__all__ = ["PackageText", "PydocText"]
