"""What a record keeps of a run's number format, so that readers need not import a module that a record names."""

from typing import Any

from custom_fp.formats.names import parse


def format_facts(name: str) -> dict[str, Any]:
    """{"name": as the config has it, "bits": bits a value, the share of a block's scale included, "exponent_bits": of a
    floating-point format, else None}. Imports the module of a format of the user's own; ValueError as `parse`."""
    fmt = parse(name)
    return {"name": name, "bits": fmt.bits, "exponent_bits": fmt.exponent_bits}
