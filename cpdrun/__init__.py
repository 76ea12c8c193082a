"""cpdrun: how many bits does this training run need?

Start at :mod:`cpdrun.cli` and follow it downwards. Importing this package imports nothing else.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("cpdrun")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
