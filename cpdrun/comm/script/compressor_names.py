"""Creation of compressors by name, for functions with an argument `compressor`.

The argument is a `Compressor` or the name of a file in conf/compressor, such as top_k, qsgd or sign. The compressor
sends values in the format `fmt`, scaled if `aps` is true, as in a run. With power_sgd, the factors are summed in `fmt`.
Further keyword arguments, such as keep=0.1 or rank=4, replace the defaults of the file. Gradients are synchronized as
in a run with sync=compressed or sync=power_sgd.
"""

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from importlib.resources import files
from pkgutil import resolve_name
from typing import Any

import torch.distributed as dist
import yaml
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.sums.scaling import ScalingRule
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sync.compressed_sync import CompressedSync
from cpdrun.comm.sync.power_sgd import PowerSGDSync
from cpdrun.comm.workers import Workers

POWER_SGD = "power_sgd"
CompressorSync = CompressedSync | PowerSGDSync


def make_compressed_sync(
    compressor: Compressor | str,
    fmt: Sum | NumberFormat | str | None,
    *,
    names: Sequence[str],
    world_size: int,
    options: dict[str, Any],
    scaling: ScalingRule | None = None,
    seed: int = 0,
    full_precision_layers: Sequence[str] = (),
    group: dist.ProcessGroup | Workers | None = None,
) -> CompressorSync:
    """Return the synchronization for a compressor.

    Args:
        compressor: A compressor or its name.
        fmt: The format of the values, or a sum for power_sgd.
        names: The names of the parameters.
        world_size: The number of workers.
        options: Further settings from the caller, such as `error_feedback`. Missing settings have their defaults.
        scaling: The scaling rule.
        seed: The seed of random numbers.
        full_precision_layers: Glob patterns of parameters that stay in fp32.
        group: The process group, or the workers.

    Raises:
        ValueError: The compressor is unknown or has no such setting, or the format or the scaling rule does not fit the
            compressor.
    """
    run_settings: dict[str, Any] = {
        "parameter_names": names,
        "world_size": world_size,
        "seed": seed,
        "scaling": scaling,
        "full_precision": {"layers": tuple(full_precision_layers)},
        "group": group,
    }
    if compressor == POWER_SGD:
        defaults = _defaults("sync", POWER_SGD)
        if isinstance(fmt, Sum):  # The error feedback of a Sum is for rounding errors, not for factors.
            remembered = [option.name for option in fields(Sum)[1:] if option.name != "error_feedback"]
            defaults |= {name: getattr(fmt, name) for name in remembered}
        settings = _settled(POWER_SGD, defaults, options)
        return PowerSGDSync(format=fmt or "fp32", **settings, **run_settings)
    of_sync = _defaults("sync", "compressed") | {"compressor": None}
    own = {key: value for key, value in options.items() if key not in of_sync}
    settings = of_sync | {key: value for key, value in options.items() if key in of_sync}
    if isinstance(compressor, Compressor):
        _check_alone(type(compressor).__name__, fmt, scaling, own)
        return CompressedSync(**settings | {"compressor": compressor}, **run_settings | {"scaling": None})
    settings["compressor"] = compressor_by_name(compressor, fmt or "fp32", scaling is not None, **own)
    return CompressedSync(format=fmt or "fp32", **settings, **run_settings)


def check_format_or_compressor(fmt: Any, compressor: Any) -> None:
    """Raise TypeError if neither a format nor a compressor is given."""
    if fmt is None and compressor is None:
        raise TypeError("fmt is missing: pass a format, such as fmt='e4m3', or compressor='top_k'")


def compressor_by_name(name: str, fmt: Sum | NumberFormat | str, aps: bool, **options: Any) -> Compressor:
    """Create the compressor that a file in conf/compressor describes.

    Raises:
        ValueError: The name is unknown, or the format or the settings do not fit the compressor.
    """
    if name not in _names():
        known = ", ".join([*_names(), POWER_SGD])
        raise ValueError(f"compressor={name!r}: choose one of {known}, or pass a Compressor")
    if isinstance(fmt, Sum):
        raise ValueError(
            f"fmt is a Sum, but compressor={name} always adds in float32. Pass a format, such as fmt={fmt.fmt.name!r}"
        )
    defaults = _defaults("compressor", name)
    of_run = {
        key: {"format": fmt, "aps": aps}[key] for key, value in defaults.items() if value == f"${{{key}}}"
    }
    if "format" not in of_run and not parse(fmt).is_fp32:
        raise ValueError(
            f"fmt={fmt}: compressor={name} does not send values in a number format. Leave fmt out"
        )
    if "aps" not in of_run and aps:
        raise ValueError(f"aps=True: compressor={name} has its own scale. Leave aps out")
    settings = _settled(name, {key: value for key, value in defaults.items() if key not in of_run}, options)
    return _class_of("compressor", name)(**settings, **of_run)


def _check_alone(kind: str, fmt: Any, scaling: ScalingRule | None, options: dict[str, Any]) -> None:
    """Raise ValueError if settings are passed together with a `Compressor` object, which has its own settings."""
    beside = {"fmt": fmt, "aps or scaling": scaling, **dict.fromkeys(options, True)}
    for key, value in beside.items():
        if value is not None:
            raise ValueError(
                f"{key} cannot be combined with a Compressor object. Pass {key} to {kind}(...) instead"
            )


def _settled(name: str, defaults: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    if unknown := sorted(options.keys() - defaults.keys()):
        raise ValueError(
            f"{unknown[0]}: compressor={name} has no such setting. Its settings: {', '.join(defaults) or 'none'}"
        )
    return defaults | options


@cache
def _names() -> tuple[str, ...]:
    found = (files("cpdrun.conf") / "compressor").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in found if file.name.endswith(".yaml")))


@cache
def _file(group: str, name: str) -> dict[str, Any]:
    return yaml.safe_load((files("cpdrun.conf") / group / f"{name}.yaml").read_text(encoding="utf-8"))


def _defaults(group: str, name: str) -> dict[str, Any]:
    return {key: value for key, value in _file(group, name).items() if key != "_target_"}


def _class_of(group: str, name: str) -> type:
    return resolve_name(_file(group, name)["_target_"])
