"""Experiments of a user's own folder."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def experiment(tmp_path) -> Callable[..., Path]:
    """`experiment("epochs: 2")` writes exp/mine.yaml and returns its configuration folder."""

    def write(text: str | bytes, name: str = "mine") -> Path:
        (tmp_path / "exp").mkdir(exist_ok=True)
        (tmp_path / "exp" / f"{name}.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return write
