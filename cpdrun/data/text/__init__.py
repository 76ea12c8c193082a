"""Texts as tokens.

pydoc    The documentation of Python.
package  The texts of a Debian package, or of any folder.
text     The base class, which divides a text into samples.
bpe      Tokens that are longer than a byte.

These use the tokenizer of a pretrained model:
text_table  A table of texts, with a class for each text or without classes.
text_files  The texts of a folder.
table_rows  The rows of a table.
tokenizer   Loading and calling a tokenizer.
"""

from cpdrun.data.text.package import PackageText
from cpdrun.data.text.pydoc import PydocText

__all__ = ["PackageText", "PydocText"]
