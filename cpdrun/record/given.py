"""Check the values that another program gives for a run, and convert them to plain data.

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
MOST_BITS = 1024
MOST_LETTERS = 80  # the longest name of a format
# The directions and kinds of metrics that a caller may give.
DIRECTIONS = {
    "higher": MEASURES["max"],
    "lower": MEASURES["min"],
    "accuracy": ACCURACY,
    "share": SHARE,
    "nats": NATS,
    "bits": BITS,
}
_OTHERS = ", ".join(list(DIRECTIONS)[1:])


class GivenError(UserError, ValueError):
    """A value cannot be recorded, or its meaning is ambiguous. The message says which values are possible."""


def flag(name: str, value: Any) -> bool:
    value = _bare(value)
    if not isinstance(value, bool):
        raise GivenError(f"{name}={value!r}: True or False is wanted")
    return value


def whole(name: str, value: Any, least: int) -> int:
    value = _bare(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise GivenError(f"{name}={value!r}: a whole number is wanted, e.g. int({name})")
    if value < least:
        raise GivenError(f"{name}={value}: at least {least} is wanted")
    return value


def number(name: str, value: Any, least: float = -math.inf) -> float:
    """Return a finite number of at least `least`. Raises GivenError for other values."""
    value = _bare(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GivenError(f"{name}={value!r}: a number is wanted, e.g. float(...) of what a csv holds")
    if not _is_finite(value):
        raise GivenError(f"{name}={str(value)[:40]}: a finite number is wanted")
    if value < least:
        raise GivenError(f"{name}={value}: at least {least:g} is wanted")
    return value


def format_facts(name: Any, bits: Any, exponent_bits: Any) -> dict[str, Any]:
    """Return the contents of format.json for a built-in format, or for one whose bits are given."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > MOST_LETTERS:
        raise GivenError(f"format={str(name)[:MOST_LETTERS]!r}: a name is wanted, such as 'e4m3' or 'af4'")
    if bits is not None and not 0 < (bits := number("bits", bits)) <= MOST_BITS:
        raise GivenError(f"bits={bits:g}: more than 0 and at most {MOST_BITS} are wanted")
    if exponent_bits is not None:
        exponent_bits = whole("exponent_bits", exponent_bits, 0)
    try:
        ours = None if is_own(name) else parse(name)
    except ValueError as error:
        ours, problem = None, str(error).split("; allowed")[0]
    else:
        problem = f"unknown format {name!r}"
    if ours is None:
        if meant(name) == "fp32":
            raise GivenError(f"format={name!r} is called 'fp32' here: all others are compared with it")
        if bits is None:
            raise GivenError(
                f"{problem}: one of another tool needs its bits a value, e.g. bits=4.5 with its share of a scale"
            )
        return {"name": name, "bits": bits, "exponent_bits": exponent_bits}
    for what, given, known in (
        ("bits", bits, ours.bits),
        ("exponent_bits", exponent_bits, ours.exponent_bits),
    ):
        if given is not None and given != known:
            raise GivenError(f"{what}={given:g}: {name} has {known}; call another format by another name")
    return {"name": name, "bits": ours.bits, "exponent_bits": ours.exponent_bits}


def metrics(given: Any, *, diverged: bool) -> dict[str, float | None]:
    """Return the finite metrics by name. For a diverged run, None replaces values that are not finite."""
    if not isinstance(given, Mapping) or not (given or diverged):
        raise GivenError(f"metrics={given!r}: one at least is wanted, e.g. metrics={{'test_accuracy': .97}}")
    found: dict[str, float | None] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not name.isprintable() or not name:
            raise GivenError(f"metrics has a name that is no text: {name!r}")
        value = _bare(value)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            if not diverged:
                raise GivenError(
                    f"{name}={value}: a finite number is wanted; leave the metric out where it was not measured, and "
                    "say diverged=True of a run whose loss was not finite"
                )
            found[name] = None
        else:
            found[name] = number(name, value)
    return found


def measures(values: Mapping[str, float | None], directions: Any) -> dict[str, Measure]:
    """Return the measure of each metric, from its declaration or its known name. Shares must be from 0 to 1."""
    if directions is not None and not isinstance(directions, Mapping):
        raise GivenError(f"directions={directions!r}: a mapping is wanted, e.g. {{'val_loss': 'lower'}}")
    found = {}
    for name, value in values.items():
        found[name] = _measure(name, (directions or {}).get(name))
        check_share(name, value, found[name])
    return found


def check_share(name: str, value: float | None, measure: Measure | None) -> None:
    if value is not None and measure is not None and not measure.can_be(value):
        raise GivenError(f"{name}={value:g}: a share from 0 to 1 is wanted, {value / 100:g} for {value:g} %")


def _measure(name: str, said: Any) -> Measure:
    known = known_measure(name)
    if said is None:
        if known is None:
            raise GivenError(
                f"which way of {name} is better? say directions={{{name!r}: 'higher'}}, or {_OTHERS}"
            )
        return known
    if not isinstance(said, Measure) and not (isinstance(said, str) and said in DIRECTIONS):
        raise GivenError(f"directions has {said!r} for {name}: higher, {_OTHERS} is wanted")
    measure = said if isinstance(said, Measure) else DIRECTIONS[said]
    if known is None:
        return measure
    if known.higher_is_better != measure.higher_is_better:
        way = "higher" if known.higher_is_better else "lower"
        raise GivenError(
            f"of {name} {way} is better; call a metric that points the other way by another name"
        )
    return known if said in ("higher", "lower") else measure


def config(given: Any, *, aps: bool) -> dict[str, Any]:
    """Return the settings that distinguish this run from others, as plain data."""
    if not isinstance(given, Mapping):
        raise GivenError(f"config={given!r}: a mapping of settings is wanted")
    made = plain("config", given)
    leaves = [key for key, _ in flatten(made)]
    if twice := [key for key in leaves if leaves.count(key) > 1]:
        raise GivenError(f"config has {twice[0]!r} twice, with dots and as a mapping")
    for key in made:
        if key in ARGUMENTS:
            raise GivenError(f"config has {key!r}: it is an argument of its own")
        if not belongs_to_identity(key) and not key.endswith("_dir"):
            raise GivenError(
                f"config has {key!r}, which tells no runs apart here; rename it, or leave it out"
            )
        if key.split(".")[0] == "scaling" and not aps:
            raise GivenError(
                f"config has {key!r}, which counts with aps=True alone; rename it, or leave it out"
            )
    return made


def plain(name: str, value: Any, depth: int = 1) -> Any:
    """Return text, finite numbers, flags, None, or lists and mappings of them. Raises GivenError for other values."""
    if depth > MOST_DEPTH:
        raise GivenError(f"{name.split('.')[0]} is nested too deep, or holds itself")
    value = _bare(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if not _is_finite(value):
            raise GivenError(
                f"{name}={str(value)[:40]}: a finite number is wanted, or None where there is none"
            )
        return value
    if isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{i}]", item, depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str) or ":" in key or not key.isprintable()]:
            raise GivenError(f"{name} has the key {odd[0]!r}: text without a colon is wanted")
        return {str(key): plain(f"{name}.{key}", item, depth + 1) for key, item in value.items()}
    kind = type(value).__name__
    raise GivenError(f"{name} is a {kind}: text, numbers, True, False, None, lists or mappings are wanted")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # The integer is too large for a float.
        return False


def _bare(value: Any) -> Any:
    """Convert a numpy scalar or a tensor with one element to a Python number. Return other values unchanged."""
    if hasattr(value, "item") and not isinstance(value, str | Mapping):
        try:
            return value.item()
        except (TypeError, ValueError, RuntimeError):
            return value
    return value
