"""What was typed after `cpdrun sweep`: `key=value`, `key=a,b,c`, `+key=value`, `~key`, in Hydra's grammar."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.paths import RESULTS_DIR, results_dir_of
from cpdrun.config.script import as_typed

# Hydra is imported in the functions that parse, because `cpdrun report` only needs `typed_form`.
if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override

MOST_VALUES = 100_000  # of an axis, and runs of a sweep; a range of more would be read for minutes
# Text that the grammar takes without quotes, and for text.
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[A-Za-z_/][A-Za-z0-9_./@%+~-]*", re.IGNORECASE)


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
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create(config_loader)
    experiments = config_loader.get_group_options("exp")
    for text in texts:
        if not text.isprintable():
            raise ConfigError(f"cannot read {text!r}: it holds what no terminal shows")
        if text in experiments:
            raise ConfigError(f"cannot read {text!r}; the experiment of that name is exp={text}")
    return [_text(text) or _parse_one(parser, text) for text in texts]


def _text(text: str) -> Typed | None:
    """Read a word whose value is text, whatever it holds: a script, its arguments, its launcher, or results_dir."""
    is_folder = text.startswith(RESULTS_DIR)
    found = (RESULTS_DIR[:-1], results_dir_of(text)) if is_folder else as_typed(text)
    if found is None:
        return None
    key, value = found
    return Typed(text=text, key=key, values=(value,), is_axis=False, adds=False, deletes=False)


def _parse_one(parser: "OverridesParser", text: str) -> Typed:
    from hydra.core.override_parser.types import OverrideType
    from hydra.errors import HydraException

    try:
        (override,) = parser.parse_overrides([text])
        deletes = override.type == OverrideType.DEL
        values = () if deletes else _values(override)
    except (HydraException, ValueError, TypeError) as error:
        raise ConfigError(f"cannot read {text!r}; write key=value or key=a,b,c") from error
    if override.package is not None or not override.key_or_group:
        raise ConfigError(f"cannot read {text!r}; write key=value or key=a,b,c")
    return Typed(
        text=text,
        key=override.key_or_group,
        values=values,
        is_axis=override.is_sweep_override(),
        adds=override.type in (OverrideType.ADD, OverrideType.FORCE_ADD),
        deletes=deletes,
    )


def _values(override: "Override") -> tuple[Any, ...]:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if override.is_sweep_override():
        # Hydra hands the elements of a sweep over as text; the same grammar reads each as one value
        single = OverridesParser.create()
        elements = list(itertools.islice(override.sweep_string_iterator(), MOST_VALUES + 1))
        if len(elements) > MOST_VALUES:
            raise ConfigError(f"{override.input_line}: an axis has at most {MOST_VALUES:,} values")
        return tuple(_plain_number(text) or single.parse_override(f"x={text}").value() for text in elements)
    return (override.value(),)


def _plain_number(text: str) -> int | None:
    """1 and up, which the grammar would read the same and a hundred times as slowly."""
    return int(text) if text.isascii() and text.isdecimal() and text[0] != "0" else None


def typed_form(value: Any) -> str:
    """`value` as it is typed behind `key=`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(typed_form, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{typed_form(item)}' for key, item in value.items())}}}"
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)
