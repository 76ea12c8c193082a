"""Find the format that another library's name, or a name in capitals, refers to. Uses only the standard library."""

from __future__ import annotations

import re
from collections.abc import Iterable

E4M3_NOTE = "e4m3 is IEEE-style (maximum 240); hardware FP8 is e4m3fn (448)"
SYNONYMS = {
    "float32": "fp32",
    "float": "fp32",
    "single": "fp32",
    "tfloat32": "tf32",
    "bfloat16": "bf16",
    "bfloat": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8": "e4m3fn (hardware FP8, maximum 448) or e5m2",
    "float8": "e4m3fn (hardware FP8, maximum 448) or e5m2",
    "fp6": "e3m2fn or e2m3fn",
    "float6": "e3m2fn or e2m3fn",
    "float4": "e2m1fn",
    "mxfp8": "mxfp8_e4m3 or mxfp8_e5m2",
    "mxfp6": "mxfp6_e3m2 or mxfp6_e2m3",
    "int8": "mxint8 or int8_channel or linear",
    "int4": "nvint4 or int4_b32",
}
_PREFIX = re.compile(
    r"(torch\.|np\.|numpy\.|jnp\.|ml_dtypes\.)?(float[0-9]+_|fp[0-9]+_)?(?P<rest>u?e[0-9]+m[0-9]+(b[0-9]+)?(fnuz|fn|fo)?)"
)
_MODULE = re.compile(r"(torch|np|numpy|jnp|ml_dtypes)\.")


def meant(name: object) -> str | None:
    """Return the name of this package for a format that is called `name` elsewhere, or None if it is not known.

    If several formats are possible, their names are joined by " or ". In capitals, E4M3 means e4m3fn, the format of
    hardware. float8_e4m3 is ml_dtypes' name for the IEEE-style e4m3. float8_e8m0fnu is not listed, because this package
    has it only as a format of scales.
    """
    if not isinstance(name, str):
        return None
    lower = name.strip().lower().replace("-", "_")
    if match := _PREFIX.fullmatch(lower):
        found = match["rest"]
        if found == "e4m3" and "float8" not in lower:
            found = "e4m3fn"
    else:
        bare = _MODULE.sub("", lower)
        found = SYNONYMS.get(bare, bare if bare != name else None)
    return found if found != name else None


def naming_notes(names: Iterable[object]) -> list[str]:
    """Return a note if e4m3 is among the names, because it is not the FP8 format of hardware, which is e4m3fn."""
    return [E4M3_NOTE] if any(isinstance(name, str) and name == "e4m3" for name in names) else []
