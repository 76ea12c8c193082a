"""What was typed after `cpdrun sweep`: `key=value`, `key=a,b,c`, `+key=value`, `~key`, in Hydra's grammar."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from cpdrun.config.errors import ConfigError


@dataclass(frozen=True)
class Typed:
    """One override. `values` holds one value, or those of an axis, or none where the key is deleted."""

    text: str
    key: str
    values: tuple[Any, ...]
    is_axis: bool
    adds: bool  # written with a plus: the key need not exist
    deletes: bool


def parse(texts: Sequence[str], config_loader: Any) -> list[Typed]:
    """Read overrides; `config_loader` (Hydra's) lets `group=glob(*)` name choices. Raises ConfigError."""
    parser = OverridesParser.create(config_loader)
    return [_parse_one(parser, text) for text in texts]


def _parse_one(parser: OverridesParser, text: str) -> Typed:
    try:
        override = parser.parse_override(text)
        values = _values(override)
    except (HydraException, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"cannot read {text!r} ({reason}); write key=value or key=a,b,c") from None
    if override.package is not None:
        raise ConfigError(f"cannot read {text!r}: packages (@) are not used here; write key=value")
    return Typed(
        text=text,
        key=override.key_or_group,
        values=values,
        is_axis=override.is_sweep_override(),
        adds=override.type in (OverrideType.ADD, OverrideType.FORCE_ADD),
        deletes=override.type == OverrideType.DEL,
    )


def _values(override: Override) -> tuple[Any, ...]:
    if override.type == OverrideType.DEL:
        return ()
    if override.is_sweep_override():
        # Hydra hands the elements of a sweep over as text; the same grammar reads each as one value
        single = OverridesParser.create()
        return tuple(
            single.parse_override(f"x={element}").value() for element in override.sweep_string_iterator()
        )
    return (override.value(),)
