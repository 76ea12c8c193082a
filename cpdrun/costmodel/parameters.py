"""Parameters of the cost model: network, codec, and workload.

Times are in seconds. Sizes are in bytes unless their names say bits or values.
"""

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
    """Parameters are missing or incomplete."""


class NotCalibratedError(CalibrationError):
    """There is no calibration."""


@dataclass(frozen=True)
class Network:
    """The connection between two workers, each of which has its own full-duplex link.

    A message of n bytes occupies the sender's processor for message_s, and arrives latency_s + n / bandwidth after it
    leaves. This is the model of Hockney, "The communication challenge for MPP" (Parallel Computing 20, 1994), with
    alpha = latency_s and 1/beta = bandwidth. message_s is the overhead o of LogP (Culler et al., PPoPP 1993), which
    every message pays even if several are in flight.

    Attributes:
        latency_s: The latency of a message, in seconds.
        bandwidth_bytes_per_s: The bandwidth of a link, in bytes per second.
        message_s: The processor time of a message, in seconds.
        burst_bytes: The bytes that an idle link lets through at once, or 0 without a token bucket. This is the depth of
            the bucket (Cruz, "A calculus for network delay", IEEE Trans. Inf. Theory 37, 1991).
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    message_s: float = 0.0
    burst_bytes: float = 0.0

    def wire_s(self, n_bytes: float) -> float:
        """Return the seconds on a busy link, without latency."""
        return n_bytes / self.bandwidth_bytes_per_s

    def hop_s(self, n_bytes: float) -> float:
        """Return the seconds of a single message: latency, overhead, and wire time."""
        return self.latency_s + self.message_s + self.wire_s(n_bytes)


@dataclass(frozen=True)
class Codec:
    """The seconds per value that a worker spends on encoding and adding.

    For a compressor, these are averages over a model's values. `pack_s` is the time to compress a value, and `unpack_s`
    the time to decode and add one.

    Attributes:
        bits: The bits of a packed value.
        pack_s: The time to scale, round, and pack. Once for each value of the gradient.
        add_s: The time to unpack and add a summand. N times for each value of the worker's own shard.
        sum_s: The time to pack a sum. Once for each value of the worker's own shard.
        unpack_s: The time to unpack. Once for each value of the result.
        largest_s: The time to find max|g| for APS. Once for each value of the gradient.
    """

    bits: float
    pack_s: float
    add_s: float
    sum_s: float
    unpack_s: float
    largest_s: float = 0.0

    def packed_bytes(self, values: float) -> float:
        return values * self.bits / 8


@dataclass(frozen=True)
class Workload:
    """A training step of one worker without any exchange.

    Attributes:
        numels: The number of values of each parameter tensor, in forward order.
        forward_s: The seconds of the forward pass.
        backward_s: The seconds of the backward pass.
        update_s: The seconds of the optimizer's step.
        check_s: The seconds in which cpdrun's training loop copies the summed gradients and checks them for inf and
            NaN.
    """

    numels: tuple[int, ...]
    forward_s: float
    backward_s: float
    update_s: float
    check_s: float = 0.0

    @property
    def values(self) -> int:
        """The number of values of the model."""
        return sum(self.numels)

    @property
    def compute_s(self) -> float:
        """The seconds per step."""
        return self.forward_s + self.backward_s + self.update_s + self.check_s


@dataclass(frozen=True)
class Calibration:
    """The measurements of `cpdrun doctor --calibrate` for one model on one machine.

    Attributes:
        about: A description of the measurement: model, batch size, threads, device, and ranks.
        workload: The training step of one worker.
        codecs: The codecs keyed by format.
        network: The network between the ranks; None with one rank.
        compressors: The codecs of compressors, keyed by `compressor_key`.
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
        """Recreate a calibration from the values that `as_json` returned.

        Raises:
            CalibrationError: The values do not describe a calibration.
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
            raise CalibrationError(f"not a calibration by `cpdrun doctor --calibrate` ({error})") from None


def compressor_key(settings: Mapping[str, Any]) -> str:
    """Return the key of a compressor in `Calibration.compressors`.

    Example: '{"_target_": "cpdrun.comm.compressors.TopK", "density": "0.01"}'
    """
    return json.dumps({key: str(settings[key]) for key in sorted(settings)})


def read_calibration(path: Path) -> Calibration | None:
    """Read a calibration file, or return None if there is none.

    Raises:
        CalibrationError: The file does not contain a calibration.
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
    """Return the names of the predefined networks, slowest first."""
    names = [item.name.removesuffix(".yaml") for item in _NETWORKS.iterdir() if item.name.endswith(".yaml")]
    return sorted(names, key=lambda name: network(name).bandwidth_bytes_per_s)


def network(name: str) -> Network:
    """Return a predefined network, or one from a yaml file.

    Raises:
        CalibrationError: The network is unknown, or the file does not describe one.
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
    """Build a dataclass whose fields, except `numels`, are numbers.

    Raises:
        TypeError: A value is not a number.
    """
    for one in fields(kind):
        value = values.get(one.name, 0)
        if one.name != "numels" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TypeError(f"{one.name}={value!r} is not a number")
    return kind(**values)
