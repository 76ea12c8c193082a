"""Identify the processor that trained a run.

Runs with equal settings may have different bits if they are trained on different processors. The libraries that torch
calls select their code according to the available vector instructions, and the code determines the order of float32
sums.
"""

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
)  # the vector instructions on which libraries depend, with their names in Linux: first x86, then Arm

Processor = tuple[
    str, str | None
]  # the name and the vector instructions of a processor. In older records, the vector instructions are None.


@cache
def processor() -> tuple[str, str]:
    """Return the name of this machine's processor, and its instructions in VECTOR, separated by blanks."""
    lines = CPUINFO.read_text(errors="replace").splitlines() if CPUINFO.exists() else []
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    name = facts.get("model name") or platform.processor() or platform.machine()
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    return name, " ".join(word for word in VECTOR if word in flags)


def processors(runs: Iterable[RunDir]) -> Counter[Processor]:
    """Return the number of runs that each processor or GPU trained, without runs whose env.json names no device."""
    found: Counter[Processor] = Counter()
    for run in runs:
        env = read_object(run.env) or {}
        device, vector = env.get("device"), env.get("cpu_vector")
        if isinstance(device, str):
            on_cpu = device == env.get("cpu", device) and isinstance(vector, str)
            found[device, vector if on_cpu else None] += 1
    return found


def differ(kinds: Iterable[Processor]) -> bool:
    """Return True if there are several kinds of processors. Unknown instructions count as equal."""
    kinds = list(kinds)
    names = {name for name, _ in kinds}
    known = {(name, vector) for name, vector in kinds if vector is not None}
    return len(names) > 1 or len(known) > 1


def described(kind: Processor) -> str:
    name, vector = kind
    return f"{name} ({vector})" if vector else name
