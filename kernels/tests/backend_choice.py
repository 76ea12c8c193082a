"""Run the operators on CPU tensors in another backend than the compiled extension."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from custom_fp import backends


@contextmanager
def _resolved(chosen: Callable) -> Iterator[None]:
    with mock.patch.object(backends, "_backend", lambda of, device: backends._resolve(chosen(of, device))):
        backends.function.cache_clear()
        try:
            yield
        finally:
            backends.function.cache_clear()


def in_reference() -> object:
    """Within this context, the reference implementation computes everything."""
    return _resolved(lambda of, device: of.any)


def in_cuda() -> object:
    """Within this context, CPU tensors go to the CUDA backend. Its launches need a replaced driver."""
    return _resolved(lambda of, device: (of.cuda if device == "cpu" else None) or of.any)
