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
    """One thread, as each rank has; and nothing held."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    if "cpdrun.attach.hold" in sys.modules:
        hold = sys.modules["cpdrun.attach.hold"].Hold
        if hold.current is not None:
            hold.current.uninstall()


@pytest.fixture
def hold() -> Callable[..., Any]:
    """This process held to a run, as typed; to one at a time."""
    from held_script import config

    from cpdrun.attach.hold import Hold

    def installed(*typed: str) -> Hold:
        if Hold.current is not None:
            Hold.current.uninstall()
        made = Hold(config(*typed))
        made.install()
        return made

    return installed
