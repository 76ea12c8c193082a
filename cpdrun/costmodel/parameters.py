"""What a cost is a function of. Times in seconds, sizes in bytes unless the name says bits or values."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from cpdrun.errors import UserError
from cpdrun.record import read_json

_NETWORKS = files(f"{__package__}").joinpath("networks")


class CalibrationError(UserError):
    """Parameters that are not there or not whole; the message says what to do."""


class NotCalibratedError(CalibrationError):
    """There is no calibration at all."""


@dataclass(frozen=True)
class Network:
    """The way between two workers; each has a link of its own, as fast in both directions at once.

    A message of n bytes takes message_s of its sender's processor and arrives latency_s + n / bandwidth
    after it left: Hockney, "The communication challenge for MPP" (Parallel Computing 20, 1994), alpha and
    1/beta, with the overhead o kept apart that messages in flight do not share (Culler et al., "LogP",
    PPoPP 1993). burst_bytes: what an idle link lets through at once before its rate holds, the depth of a
    token bucket (Cruz, "A calculus for network delay", IEEE Trans. Inf. Theory 37, 1991); 0 for a plain
    wire.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    message_s: float = 0.0
    burst_bytes: float = 0.0

    def wire_s(self, n_bytes: float) -> float:
        """n bytes in a row, without latency, on a link that is busy already."""
        return n_bytes / self.bandwidth_bytes_per_s

    def hop_s(self, n_bytes: float) -> float:
        """alpha + n beta: one message that nothing overlaps."""
        return self.latency_s + self.message_s + self.wire_s(n_bytes)


@dataclass(frozen=True)
class Codec:
    """Seconds a value (a summand's value for add_s) takes a worker's processor, in a format of `bits` bits; of a
    compressor the average over a model's values, pack_s to compress one, unpack_s to decode a message's and add it."""

    bits: float
    pack_s: float  # scale, round, pack: once for each value of the gradient
    add_s: float  # unpack and add one summand: N times for each value of the own shard
    sum_s: float  # pack the sum: once for each value of the own shard
    unpack_s: float  # once for each value of the result
    largest_s: float = 0.0  # max|g|, with APS: once for each value of the gradient

    def packed_bytes(self, values: float) -> float:
        return values * self.bits / 8


@dataclass(frozen=True)
class Workload:
    """One worker's step without any exchange. numels: values of each parameter tensor, in forward order."""

    numels: tuple[int, ...]
    forward_s: float
    backward_s: float
    update_s: float  # the optimizer's step
    check_s: float = 0.0  # cpdrun's own loop: the sums in fresh memory, looked through for inf and NaN

    @property
    def values(self) -> int:
        return sum(self.numels)

    @property
    def compute_s(self) -> float:
        return self.forward_s + self.backward_s + self.update_s + self.check_s


@dataclass(frozen=True)
class Calibration:
    """What `cpdrun doctor --calibrate` measured: a model on this machine, and the network between its ranks."""

    about: dict[str, Any]  # model, batch size, threads, device, ranks: for the reader
    workload: Workload
    codecs: dict[str, Codec]  # by the format's name
    network: Network | None  # None: one rank, nothing to measure
    compressors: dict[str, Codec] = field(default_factory=dict)  # by their `compressor_key`

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Calibration":
        """The inverse of `as_json`. Raises CalibrationError."""
        try:
            workload = dict(values["workload"])
            return cls(
                dict(values["about"]),
                _make(Workload, workload | {"numels": tuple(workload["numels"])}),
                {name: _make(Codec, codec) for name, codec in values["codecs"].items()},
                _make(Network, values["network"]) if values["network"] else None,
                {key: _make(Codec, codec) for key, codec in values.get("compressors", {}).items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise CalibrationError(f"not what `cpdrun doctor --calibrate` writes ({error})") from None


def compressor_key(settings: Mapping[str, Any]) -> str:
    """A compressor's name in a calibration: its settings, by their dotted keys, as JSON of texts, in their order."""
    return json.dumps({key: str(settings[key]) for key in sorted(settings)})


def read_calibration(path: Path) -> Calibration | None:
    """What is in `path`; None where there is no such file. Raises CalibrationError."""
    values = read_json(path)
    if values is None:
        if path.exists():
            raise CalibrationError(f"{path} is not JSON: measure again with `cpdrun doctor --calibrate`")
        return None
    try:
        return Calibration.from_json(values)
    except CalibrationError as error:
        raise CalibrationError(f"{path}: {error}; measure again") from None


def network_names() -> list[str]:
    """Every network known by name, slowest first."""
    names = [item.name.removesuffix(".yaml") for item in _NETWORKS.iterdir() if item.name.endswith(".yaml")]
    return sorted(names, key=lambda name: network(name).bandwidth_bytes_per_s)


def network(name: str) -> Network:
    """The network called `name`, or that of a yaml file of the user's own. Raises CalibrationError."""
    source = Path(name) if name.endswith((".yaml", ".yml")) else _NETWORKS.joinpath(f"{name}.yaml")
    try:
        return _make(Network, yaml.safe_load(source.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError):
        known = ", ".join(network_names())
        raise CalibrationError(f"unknown network {name!r}: choose {known}, or a yaml file") from None
    except TypeError as error:
        raise CalibrationError(f"network {name}: {error}") from None


def _make(kind: type, values: Mapping[str, Any]) -> Any:
    """A dataclass from plain numbers; TypeError says which key is unknown, missing or no number."""
    for one in fields(kind):
        value = values.get(one.name, 0)
        if one.name != "numels" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TypeError(f"{one.name}={value!r} is not a number")
    return kind(**values)
