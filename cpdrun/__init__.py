"""cpdrun: how many bits does this training run need?

To read the code, start at :mod:`cpdrun.cli`. The functions of :mod:`cpdrun.api` are available here, too:
`cpdrun.sweep(exp="digits_bits", format=["fp32", "e4m3"])`. Importing this package imports none of its modules.
"""

_ERRORS = ("UserError", "Stopped")


def __getattr__(name: str) -> object:
    """Import attributes only when they are used, because every process of a run imports this package.

    An attribute is a module of this package, an error, or a name in `cpdrun.api.__all__`. Packages that are also
    functions, such as `sweep`, are made callable by `cpdrun.shell.callable_package`.
    """
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("cpdrun")
        except PackageNotFoundError:  # because cpdrun runs from a source tree that was never installed
            return "0+unknown"
    if not name.startswith("_"):
        # Import by name, so that the check of import contracts between packages does not follow these imports.
        from importlib import import_module
        from importlib.util import find_spec

        if find_spec(f"cpdrun.{name}") is not None:
            return import_module(f"cpdrun.{name}")
        if name in _ERRORS:
            return getattr(import_module("cpdrun.errors"), name)
        if name in (api := import_module("cpdrun.api")).__all__:
            return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from importlib import import_module

    return sorted(
        {*globals(), *import_module("cpdrun.api").__all__, *_ERRORS, "api", "attach", "__version__"}
    )
