"""Find the layers of a run's model in a process that imports torch (cpdrun.train.layers)."""

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
    """A module with parameters of its own.

    Attributes:
        name: The name of the module.
        kind: The class of the module.
        parameters: The number of values of each parameter, by its full name.
        multiplies: Whether the module is a Linear or Conv layer.
        macs: The multiplications of the forward product of one sample.
        input_gradient: Whether the input takes a gradient.
    """

    name: str
    kind: str
    parameters: dict[str, int]
    multiplies: bool
    macs: int
    input_gradient: bool

    @property
    def values(self) -> int:
        """The number of parameter values."""
        return sum(self.parameters.values())


def ask_layers(config: Mapping[str, Any]) -> list[Layer]:
    """Return the layers in the order of the model's modules.

    Raises:
        UserError: The model or the data cannot be built.
    """
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
