"""Which processor trained a run. Equal settings give equal bits on one processor and need not on two: the libraries
below torch choose their code, and with it the order of float32 sums, by the vector instructions they find."""

import platform
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from cpdrun.record.files import read_object
from cpdrun.record.layout import RunDir

CPUINFO = Path("/proc/cpuinfo")
VECTOR = (
    *("sse4_2", "avx", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd", "asimdhp", "sve", "sve2", "bf16"),
)  # that libraries ask for, as Linux names them: x86, then Arm

Processor = tuple[str, str | None]  # name; its vector instructions, None where the record is from before


@cache
def processor() -> tuple[str, str]:
    """Name of this machine's processor, and which of VECTOR it has, in that order, with blanks between."""
    lines = CPUINFO.read_text(errors="replace").splitlines() if CPUINFO.exists() else []
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    name = facts.get("model name") or platform.processor() or platform.machine()
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    return name, " ".join(word for word in VECTOR if word in flags)


def processors(runs: Iterable[RunDir]) -> Counter[Processor]:
    """How many of `runs` each processor, or GPU, trained, by their env.json; those without one are not counted."""
    found: Counter[Processor] = Counter()
    for run in runs:
        env = read_object(run.env) or {}
        device, vector = env.get("device"), env.get("cpu_vector")
        if isinstance(device, str):
            on_cpu = device == env.get("cpu", device) and isinstance(vector, str)
            found[device, vector if on_cpu else None] += 1
    return found


def differ(kinds: Iterable[Processor]) -> bool:
    """Whether these are processors of more than one kind; where one's instructions are not known, the names decide."""
    kinds = list(kinds)
    names = {name for name, _ in kinds}
    known = {(name, vector) for name, vector in kinds if vector is not None}
    return len(names) > 1 or len(known) > 1


def described(kind: Processor) -> str:
    name, vector = kind
    return f"{name} ({vector})" if vector else name
