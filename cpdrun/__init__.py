"""cpdrun: how many bits does this training run need?

To read the code, start at :mod:`cpdrun.cli`. The functions of :mod:`cpdrun.api` are available here, too:
`cpdrun.sweep(exp="digits_bits", format=["fp32", "e4m3"])`. Importing this package imports none of its modules.
"""

# Packages. Those that are also functions are made callable by cpdrun.shell.callable_package.
_PACKAGES = ("api", "attach", "sweep", "search", "report")
# The other names in cpdrun.api.__all__, and the former names of functions.
_FUNCTIONS = (
    *(
        "predict",
        "judge",
        "status",
        "logs",
        "cancel",
        "formats",
        "init",
        "doctor",
        "load",
        "plot",
        "plots",
        "Answer",
    ),
    *("next", "screen", "explain", "work", "vectors", "schema", "calibrate"),
)
_ERRORS = ("UserError", "Stopped")


def __getattr__(name: str) -> object:
    """Import attributes only when they are used, because every process of a run imports this package."""
    if name in _PACKAGES or name in _FUNCTIONS or name in _ERRORS:
        # Import by name, so that the check of import contracts between packages does not follow these imports.
        from importlib import import_module

        if name in _PACKAGES:
            return import_module(f"cpdrun.{name}")
        return getattr(import_module("cpdrun.api" if name in _FUNCTIONS else "cpdrun.errors"), name)
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("cpdrun")
    except PackageNotFoundError:  # because cpdrun runs from a source tree that was never installed
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES, *_FUNCTIONS, *_ERRORS, "__version__"})
