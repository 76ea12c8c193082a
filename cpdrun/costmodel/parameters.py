"""The parameters of a cost. Times are in seconds; sizes are in bytes unless the name says bits or values."""

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
    """Parameters are missing or incomplete. The message says what to do."""


class NotCalibratedError(CalibrationError):
    """There is no calibration."""


@dataclass(frozen=True)
class Network:
    """The connection between two workers, each with its own link.

    A link is equally fast in both directions at once. A message of n bytes takes message_s of its sender's processor
    and arrives latency_s + n / bandwidth after it has left. This is the model of Hockney, "The communication challenge
    for MPP" (Parallel Computing 20, 1994), with alpha and 1/beta. The overhead o, which messages in flight do not
    share, is separate (Culler et al., "LogP", PPoPP 1993).

    Attributes:
        latency_s: The latency of a message, in seconds.
        bandwidth_bytes_per_s: The bandwidth of a link, in bytes per second.
        message_s: The processor time of a message, in seconds.
        burst_bytes: The bytes that an idle link lets through at once before its rate applies. This is the depth of a
            token bucket (Cruz, "A calculus for network delay", IEEE Trans. Inf. Theory 37, 1991). It is 0 for a plain
            wire.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    message_s: float = 0.0
    burst_bytes: float = 0.0

    def wire_s(self, n_bytes: float) -> float:
        """Return the seconds of n consecutive bytes on a busy link, without latency."""
        return n_bytes / self.bandwidth_bytes_per_s

    def hop_s(self, n_bytes: float) -> float:
        """Return alpha + n beta, the seconds of a message that overlaps with nothing."""
        return self.latency_s + self.message_s + self.wire_s(n_bytes)


@dataclass(frozen=True)
class Codec:
    """The processor time of one worker, in seconds per value, in a format of `bits` bits.

    For a compressor, times are averages over the values of a model: pack_s compresses a value, and unpack_s decodes a
    message's value and adds it.

    Attributes:
        bits: The bit width.
        pack_s: The time to scale, round and pack, once for each value of the gradient.
        add_s: The time to unpack and add a summand, N times for each value of a worker's own shard.
        sum_s: The time to pack the sum, once for each value of a worker's own shard.
        unpack_s: The time to unpack, once for each value of the result.
        largest_s: The time to find max|g| for APS, once for each value of the gradient.
    """

    bits: float
    pack_s: float
    add_s: float
    sum_s: float
    unpack_s: float
    largest_s: float = 0.0

    def packed_bytes(self, values: float) -> float:
        """Return the size of packed values in bytes."""
        return values * self.bits / 8


@dataclass(frozen=True)
class Workload:
    """The step of one worker without any exchange.

    Attributes:
        numels: The number of values of each parameter tensor, in forward order.
        forward_s: The seconds of forward.
        backward_s: The seconds of backward.
        update_s: The seconds of the optimizer's step.
        check_s: The seconds that cpdrun's own training loop takes to check the sums, which are in fresh memory, for
            inf and NaN.
    """

    numels: tuple[int, ...]
    forward_s: float
    backward_s: float
    update_s: float
    check_s: float = 0.0

    @property
    def values(self) -> int:
        """The number of values of all parameters."""
        return sum(self.numels)

    @property
    def compute_s(self) -> float:
        """The seconds of a step."""
        return self.forward_s + self.backward_s + self.update_s + self.check_s


@dataclass(frozen=True)
class Calibration:
    """What `cpdrun doctor --calibrate` measured: a model on this machine, and the network between its ranks.

    Attributes:
        about: Model, batch size, threads, device and ranks, for the reader.
        workload: The step of one worker.
        codecs: The codecs by the name of the format.
        network: The measured network, or None if there was only one rank.
        compressors: The codecs of compressors by their `compressor_key`.
    """

    about: dict[str, Any]
    workload: Workload
    codecs: dict[str, Codec]
    network: Network | None
    compressors: dict[str, Codec] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Calibration":
        """Return the inverse of `as_json`.

        Raises:
            CalibrationError: The values are not those of a calibration.
        """
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
    """Return the name of a compressor in a calibration.

    The name is the settings as JSON, sorted by dotted key, with all values as text.
    """
    return json.dumps({key: str(settings[key]) for key in sorted(settings)})


def read_calibration(path: Path) -> Calibration | None:
    """Return the calibration in `path`, or None if there is no such file.

    Raises:
        CalibrationError: The file is not a calibration.
    """
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
    """Return the names of all known networks, the slowest first."""
    names = [item.name.removesuffix(".yaml") for item in _NETWORKS.iterdir() if item.name.endswith(".yaml")]
    return sorted(names, key=lambda name: network(name).bandwidth_bytes_per_s)


def network(name: str) -> Network:
    """Return the network called `name`, or the network in the user's yaml file of this name.

    Raises:
        CalibrationError: The network is unknown, or the file is not a network.
    """
    source = Path(name) if name.endswith((".yaml", ".yml")) else _NETWORKS.joinpath(f"{name}.yaml")
    try:
        return _make(Network, yaml.safe_load(source.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError):
        known = ", ".join(network_names())
        raise CalibrationError(f"unknown network {name!r}: choose {known}, or a yaml file") from None
    except TypeError as error:
        raise CalibrationError(f"network {name}: {error}") from None


def _make(kind: type, values: Mapping[str, Any]) -> Any:
    """Return a dataclass made from plain numbers, and raise a TypeError that names an unsuitable key."""
    for one in fields(kind):
        value = values.get(one.name, 0)
        if one.name != "numels" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TypeError(f"{one.name}={value!r} is not a number")
    return kind(**values)
