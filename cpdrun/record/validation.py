"""Check the values that another program passes for a run, and convert them to plain data.

Numbers may be numpy scalars or tensors with one element. Their method `item` converts them.
"""

import math
from collections.abc import Mapping
from typing import Any

from custom_fp.formats.names import is_own, parse
from custom_fp.formats.synonyms import meant

from cpdrun.config.identity import belongs_to_identity
from cpdrun.config.overrides import flatten
from cpdrun.config.yaml_files import MOST_DEPTH
from cpdrun.errors import UserError
from cpdrun.record.measure import ACCURACY, BITS, MEASURES, NATS, SHARE, Measure, known_measure

ARGUMENTS = ("format", "aps", "seed", "world_size")
MAX_BITS = 1024
MAX_NAME_LENGTH = 80  # the maximum length of a format's name, in characters
# The directions and kinds of metrics that a caller may pass.
DIRECTIONS = {
    "higher": MEASURES["max"],
    "lower": MEASURES["min"],
    "accuracy": ACCURACY,
    "share": SHARE,
    "nats": NATS,
    "bits": BITS,
}
_OTHERS = ", ".join(list(DIRECTIONS)[1:])


class InvalidValueError(UserError, ValueError):
    """Raised if a value cannot be recorded, or its meaning is ambiguous."""


def boolean(name: str, value: Any) -> bool:
    """Return True or False. Raises InvalidValueError for other values."""
    value = _python_scalar(value)
    if not isinstance(value, bool):
        raise InvalidValueError(f"{name}={value!r} must be True or False")
    return value


def integer(name: str, value: Any, least: int) -> int:
    """Return an integer of at least `least`. Raises InvalidValueError for other values."""
    value = _python_scalar(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError(f"{name}={value!r} must be a whole number, e.g. int({name})")
    if value < least:
        raise InvalidValueError(f"{name}={value} must be at least {least}")
    return value


def number(name: str, value: Any, least: float = -math.inf) -> float:
    """Return a finite number of at least `least`. Raises InvalidValueError for other values."""
    value = _python_scalar(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValueError(
            f"{name}={value!r} must be a number, e.g. float(...) of a column of a CSV file"
        )
    if not _is_finite(value):
        raise InvalidValueError(f"{name}={str(value)[:40]} must be finite")
    if value < least:
        raise InvalidValueError(f"{name}={value} must be at least {least:g}")
    return value


def format_facts(name: Any, bits: Any, exponent_bits: Any) -> dict[str, Any]:
    """Return the contents of format.json for a built-in format, or for one whose bits are given."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > MAX_NAME_LENGTH:
        raise InvalidValueError(
            f"format={str(name)[:MAX_NAME_LENGTH]!r} must be a name, such as 'e4m3' or 'af4'"
        )
    if bits is not None and not 0 < (bits := number("bits", bits)) <= MAX_BITS:
        raise InvalidValueError(f"bits={bits:g} must be more than 0 and at most {MAX_BITS}")
    if exponent_bits is not None:
        exponent_bits = integer("exponent_bits", exponent_bits, 0)
    try:
        ours = None if is_own(name) else parse(name)
    except ValueError as error:
        ours, problem = None, str(error).split("; allowed")[0]
    else:
        problem = f"unknown format {name!r}"
    if ours is None:
        if meant(name) == "fp32":
            raise InvalidValueError(f"format={name!r} is called 'fp32' in cpdrun. Pass format='fp32'")
        if bits is None:
            raise InvalidValueError(
                f"{problem}. A format of another tool needs the number of bits per value, including the share of a "
                "scale, e.g. bits=4.5"
            )
        return {"name": name, "bits": bits, "exponent_bits": exponent_bits}
    for what, given, known in (
        ("bits", bits, ours.bits),
        ("exponent_bits", exponent_bits, ours.exponent_bits),
    ):
        if given is not None and given != known:
            raise InvalidValueError(
                f"{what}={given:g}, but {name} has {known}. If this is a different format, use another name"
            )
    return {"name": name, "bits": ours.bits, "exponent_bits": ours.exponent_bits}


def metrics(given: Any, *, diverged: bool) -> dict[str, float | None]:
    """Return the finite metrics by name. For a diverged run, None replaces values that are not finite."""
    if not isinstance(given, Mapping) or not (given or diverged):
        raise InvalidValueError(
            f"metrics={given!r} must have a metric, e.g. metrics={{'test_accuracy': .97}}"
        )
    found: dict[str, float | None] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not name.isprintable() or not name:
            raise InvalidValueError(f"metrics has a name that is not printable text: {name!r}")
        value = _python_scalar(value)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            if not diverged:
                raise InvalidValueError(
                    f"{name}={value} must be finite; leave out a metric that was not measured, and pass "
                    "diverged=True for a run whose loss was not finite"
                )
            found[name] = None
        else:
            found[name] = number(name, value)
    return found


def measures(values: Mapping[str, float | None], directions: Any) -> dict[str, Measure]:
    """Return the measure of each metric, from its declaration or its known name. Shares must be from 0 to 1."""
    if directions is not None and not isinstance(directions, Mapping):
        raise InvalidValueError(f"directions={directions!r} must be a mapping, e.g. {{'val_loss': 'lower'}}")
    found = {}
    for name, value in values.items():
        found[name] = _measure(name, (directions or {}).get(name))
        check_share(name, value, found[name])
    return found


def check_share(name: str, value: float | None, measure: Measure | None) -> None:
    """Raise InvalidValueError if a share is not from 0 to 1."""
    if value is not None and measure is not None and not measure.can_be(value):
        raise InvalidValueError(
            f"{name}={value:g} must be a share from 0 to 1, e.g. {value / 100:g} for {value:g}%"
        )


def _measure(name: str, declared: Any) -> Measure:
    known = known_measure(name)
    if declared is None:
        if known is None:
            raise InvalidValueError(
                f"is a higher {name} better? Pass directions={{{name!r}: 'higher'}}, or {_OTHERS}"
            )
        return known
    if not isinstance(declared, Measure) and not (isinstance(declared, str) and declared in DIRECTIONS):
        raise InvalidValueError(f"directions has {declared!r} for {name}; allowed: higher, {_OTHERS}")
    measure = declared if isinstance(declared, Measure) else DIRECTIONS[declared]
    if known is None:
        return measure
    if known.higher_is_better != measure.higher_is_better:
        direction = "higher" if known.higher_is_better else "lower"
        raise InvalidValueError(
            f"a {direction} {name} is better. For a metric with the opposite direction, use another name"
        )
    return known if declared in ("higher", "lower") else measure


def config(given: Any, *, aps: bool) -> dict[str, Any]:
    """Return the settings that distinguish this run from others, as plain data."""
    if not isinstance(given, Mapping):
        raise InvalidValueError(f"config={given!r} must be a mapping of settings")
    settings = plain("config", given)
    leaves = [key for key, _ in flatten(settings)]
    if twice := [key for key in leaves if leaves.count(key) > 1]:
        raise InvalidValueError(f"config has {twice[0]!r} twice, with dots and as a mapping")
    for key in settings:
        if key in ARGUMENTS:
            raise InvalidValueError(
                f"config has {key!r}, which is a separate argument. Pass {key}=... instead"
            )
        if not belongs_to_identity(key) and not key.endswith("_dir"):
            raise InvalidValueError(
                f"config has {key!r}, which cpdrun does not use to distinguish runs. Rename the key, or leave it out"
            )
        if key.split(".")[0] == "scaling" and not aps:
            raise InvalidValueError(
                f"config has {key!r}, which is allowed only with aps=True. Rename the key, or leave it out"
            )
    return settings


def plain(name: str, value: Any, depth: int = 1) -> Any:
    """Return text, finite numbers, booleans, None, or lists and mappings of them; raise InvalidValueError otherwise."""
    if depth > MOST_DEPTH:
        raise InvalidValueError(f"{name.split('.')[0]} is nested too deeply, or contains itself")
    value = _python_scalar(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if not _is_finite(value):
            raise InvalidValueError(f"{name}={str(value)[:40]} must be finite, or None")
        return value
    if isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{i}]", item, depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str) or ":" in key or not key.isprintable()]:
            raise InvalidValueError(
                f"{name} has the key {odd[0]!r}; keys must be printable text without a colon"
            )
        return {str(key): plain(f"{name}.{key}", item, depth + 1) for key, item in value.items()}
    kind = type(value).__name__
    raise InvalidValueError(
        f"{name} is a {kind}; allowed are text, numbers, True, False, None, lists and mappings"
    )


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # The integer is too large for a float.
        return False


def _python_scalar(value: Any) -> Any:
    """Convert a numpy scalar or a tensor with one element to a Python number. Return other values unchanged."""
    if hasattr(value, "item") and not isinstance(value, str | Mapping):
        try:
            return value.item()
        except (TypeError, ValueError, RuntimeError):
            return value
    return value
