"""Scripts run in gloo ranks as those of cpdrun.comm do; torch is itself again after every test."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "comm"))


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """One thread, as each rank has; and nothing interceptor."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    if "cpdrun.attach.intercept.interceptor" in sys.modules:
        interceptor = sys.modules["cpdrun.attach.intercept.interceptor"].Interceptor
        if interceptor.current is not None:
            interceptor.current.uninstall()


@pytest.fixture
def intercept() -> Callable[..., Any]:
    """Return a function that intercepts this process, as for a run with the given settings."""
    from intercepted_script import config

    from cpdrun.attach.intercept.interceptor import Interceptor

    def installed(*typed: str) -> Interceptor:
        if Interceptor.current is not None:
            Interceptor.current.uninstall()
        made = Interceptor(config(*typed))
        made.install()
        return made

    return installed
