"""Orders of summation, found by name: `order=tree` is the class in tree.py. A new one is a file beside it."""

import importlib
import pkgutil
from functools import cache

from cpdrun.comm.sums.orders.base import AUTO, Level, Order

__all__ = ["AUTO", "Level", "Order", "order_named"]

NAMES = sorted({module.name for module in pkgutil.iter_modules(__path__)} - {"base"})


def order_named(name: str, group_size: int | str | None = AUTO) -> Order:
    """Raises ValueError for an unknown name, and for groups in an order that has none. `aligned_12`: 12 bits of it."""
    kind, _, suffix = str(name).partition("_")
    if kind not in NAMES or not isinstance(name, str):
        raise ValueError(f"order={name!r}: choose one of {', '.join(NAMES)}")
    order = _kind(kind).of(group_size)
    return order.with_suffix(suffix) if kind != name else order


@cache
def _kind(name: str) -> type[Order]:
    module = importlib.import_module(f"{__name__}.{name}")
    (kind,) = (kind for kind in Order.__subclasses__() if kind.__module__ == module.__name__)
    return kind
