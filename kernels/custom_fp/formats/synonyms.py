"""What a name that is no format's was meant to be: other libraries' names, and capitals. Standard library only."""

from __future__ import annotations

import re

SYNONYMS = {
    "float32": "fp32",
    "float": "fp32",
    "single": "fp32",
    "tfloat32": "tf32",
    "bfloat16": "bf16",
    "bfloat": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8": "e4m3 or e5m2",
    "float8": "e4m3 or e5m2",
    "fp6": "e3m2fn or e2m3fn",
    "float6": "e3m2fn or e2m3fn",
    "float4": "e2m1fn",
    "mxfp8": "mxfp8_e4m3 or mxfp8_e5m2",
    "mxfp6": "mxfp6_e3m2 or mxfp6_e2m3",
    "int8": "mxint8 or int8_channel or linear",
    "int4": "nvint4 or int4_b32",
}
_PREFIX = re.compile(
    r"(torch\.|np\.|numpy\.|jnp\.|ml_dtypes\.)?(float\d+_|fp\d+_)?(?P<rest>u?e\d+m\d+(b\d+)?(fnuz|fn|fo)?)"
)
_MODULE = re.compile(r"(torch|np|numpy|jnp|ml_dtypes)\.")


def meant(name: object) -> str | None:
    """What to type for `name` (E4M3: 'e4m3', float8_e4m3fn: 'e4m3fn', fp8: 'e4m3 or e5m2'); None where that is not
    known, as of float8_e8m0fnu, which is a scale's format here."""
    if not isinstance(name, str):
        return None
    lower = name.strip().lower().replace("-", "_")
    if match := _PREFIX.fullmatch(lower):
        found = match["rest"]
    else:
        bare = _MODULE.sub("", lower)
        found = SYNONYMS.get(bare, bare if bare != name else None)
    return found if found != name else None
