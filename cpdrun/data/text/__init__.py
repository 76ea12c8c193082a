"""Texts as tokens.

pydoc    The documentation of Python.
package  The texts of a Debian package, or of any folder.
text     The base class, which divides a text into samples.
bpe      Tokens that are longer than a byte.
"""

from cpdrun.data.text.package import PackageText
from cpdrun.data.text.pydoc import PydocText

__all__ = ["PackageText", "PydocText"]
