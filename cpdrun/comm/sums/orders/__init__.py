"""Orders of summation, found by name: `order=tree` is the class in tree.py. A new one is a file beside it."""

import importlib
import pkgutil
from functools import cache

from cpdrun.comm.sums.orders.base import AUTO, Level, Order

__all__ = ["AUTO", "Level", "Order", "order_named"]

NAMES = sorted({module.name for module in pkgutil.iter_modules(__path__)} - {"base"})


def order_named(name: str, group_size: int | str | None = AUTO) -> Order:
    """Raises ValueError for an unknown name, and for groups in an order that has none."""
    if name not in NAMES:
        raise ValueError(f"order={name!r}: choose one of {', '.join(NAMES)}")
    return _kind(name).of(group_size)


@cache
def _kind(name: str) -> type[Order]:
    module = importlib.import_module(f"{__name__}.{name}")
    (kind,) = (kind for kind in Order.__subclasses__() if kind.__module__ == module.__name__)
    return kind
