"""Find the cores and GPUs of this machine without torch, and assign them to ranks."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")  # "<quota> <period>" in microseconds, or "max <period>"


def no_place_for_runs() -> str | None:
    """Return the reason why no run can be started here, or None if runs can be started."""
    if sys.platform == "linux":
        return None
    return (
        f"runs can only be started on Linux, but this system is {sys.platform}. Use a container, a virtual machine or "
        "WSL 2. custom_fp, cpdrun formats, vectors and report work here"
    )


def cores() -> int:
    """Return the number of cores that this process may use: its affinity, or the container's quota if it is smaller."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CGROUP_CPU_MAX.read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, int(quota) // int(period)))


def gpus() -> list[str]:
    """Return the names of the GPUs of this process, as in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    return [
        str(i) for i, line in enumerate(ln for ln in listing.stdout.splitlines() if ln.startswith("GPU "))
    ]


class Slots:
    """The free places for ranks.

    The name of a place is "cpu" or the name of a GPU. A name appears once for each rank that fits there.

    >>> slots = Slots(["0", "1"] * 2)
    >>> slots.take(3)
    ['0', '1', '0']
    """

    def __init__(self, free: list[str]) -> None:
        self.count = len(free)
        self._free = free

    def take(self, wanted: int) -> list[str] | None:
        """Reserve `wanted` places, or all places if there are fewer in total, and return them.

        Different GPUs are preferred, and then those with the most free places. If too few places are free, nothing is
        reserved and the result is None.
        """
        wanted = min(wanted, self.count)
        if wanted > len(self._free):
            return None
        taken: list[str] = []
        while len(taken) < wanted:
            left, mine = Counter(self._free), Counter(taken)
            name = max(left, key=lambda name: (-mine[name], left[name]))
            self._free.remove(name)
            taken.append(name)
        return taken

    def give_back(self, places: list[str]) -> None:
        self._free.extend(places)
