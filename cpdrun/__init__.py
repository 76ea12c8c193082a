"""cpdrun: how many bits does this training run need?

Start at :mod:`cpdrun.cli` and follow it downwards. Importing this package imports nothing else.
"""


def __getattr__(name: str) -> object:
    """`attach` and `__version__`, looked up when asked for: every process of a run imports this package."""
    if name == "attach":
        # by its name: of all that lies in this package only a script's own line leads there
        from importlib import import_module

        return import_module("cpdrun.attach")
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("cpdrun")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"
