"""What layers a run's model has, asked of a process that has torch (cpdrun.train.layers)."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpdrun.errors import UserError
from cpdrun.record import read_json, write_json


@dataclass(frozen=True)
class Layer:
    """A module with parameters of its own. macs: multiplications of its forward product, of one sample."""

    name: str
    kind: str
    parameters: dict[str, int]  # values, by their full names
    multiplies: bool  # a Linear or Conv layer
    macs: int
    input_gradient: bool  # whether its input takes a gradient

    @property
    def values(self) -> int:
        return sum(self.parameters.values())


def ask_layers(config: Mapping[str, Any]) -> list[Layer]:
    """In the order of the model's modules. Raises UserError for a model or data that cannot be built."""
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "config.json", Path(folder) / "layers.json"
        write_json(given, dict(config))
        command = [sys.executable, "-m", "cpdrun.train.layers", str(given), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        found = read_json(out)
    if done.returncode or not isinstance(found, list):
        lines = done.stderr.strip().splitlines() or ["it ended without a word"]
        raise UserError(f"the model's layers cannot be looked at: {lines[-1]}")
    return [Layer(**facts) for facts in found]
