"""What a record keeps of a run's number format, so that readers need not import a module that a record names."""

from typing import Any

from custom_fp.formats.names import parse
from custom_fp.formats.scalar import Format


def format_facts(name: str) -> dict[str, Any]:
    """{"name": as the config has it, "bits": bits a value, the share of a block's scale included, "exponent_bits": of a
    floating-point format, else None}. Imports the module of a format of the user's own; ValueError as `parse`."""
    fmt = parse(name)
    exponent_bits = fmt.exponent_bits if isinstance(fmt, Format) else None
    return {"name": name, "bits": fmt.bits, "exponent_bits": exponent_bits}
